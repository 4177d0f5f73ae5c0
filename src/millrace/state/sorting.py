"""Sorting and grouping rows by fingerprint.

Fingerprints are uniform, so one scatter into about n buckets leaves almost nothing to sort. A
bucket that is still large (few distinct keys, many rows of one) is merge-sorted, so no input makes
this quadratic. The order is stable: rows of one key stay in arrival order.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.jit import kernel


@kernel
def sort_order(hi: UInt64Array, lo: UInt64Array) -> Int64Array:
    """The permutation that sorts rows by (hi, lo)."""
    n = len(hi)
    order = np.empty(n, np.int64)
    if n == 0:
        return order
    low = hi[0]
    high = hi[0]
    for i in range(n):
        if hi[i] < low:
            low = hi[i]
        if hi[i] > high:
            high = hi[i]
    buckets: int = 1
    while buckets < n:
        buckets *= 2
    scale = np.float64(buckets) / (np.float64(high - low) + 1.0)
    where = np.empty(n, np.int64)
    starts = np.zeros(buckets + 2, np.int64)
    for i in range(n):
        b = int(np.float64(hi[i] - low) * scale)
        if b >= buckets:
            b = buckets - 1
        where[i] = b
        starts[b + 2] += 1
    for k in range(2, buckets + 2):
        starts[k] += starts[k - 1]
    for i in range(n):
        bucket = where[i]
        order[starts[bucket + 1]] = i
        starts[bucket + 1] += 1
    for k in range(buckets):
        first = starts[k]
        last = starts[k + 1]
        if last - first > 32:
            _sort_large(hi, lo, order, first, last)
        else:
            _insertion(hi, lo, order, first, last)
    return order


@kernel
def _insertion(hi: UInt64Array, lo: UInt64Array, order: Int64Array, first: int, last: int) -> None:
    for i in range(first + 1, last):
        row = order[i]
        j = i - 1
        while j >= first and (
            hi[order[j]] > hi[row] or (hi[order[j]] == hi[row] and lo[order[j]] > lo[row])
        ):
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = row


@kernel
def _sort_large(hi: UInt64Array, lo: UInt64Array, order: Int64Array, first: int, last: int) -> None:
    rows = order[first:last].copy()
    by_lo = rows[np.argsort(lo[rows], kind="mergesort")]
    order[first:last] = by_lo[np.argsort(hi[by_lo], kind="mergesort")]


@kernel
def group_starts(hi: UInt64Array, lo: UInt64Array) -> Int64Array:
    """For sorted rows: where each distinct fingerprint begins; the number of rows comes last."""
    n = len(hi)
    starts = np.empty(n + 1, np.int64)
    groups = 0
    for i in range(n):
        if i == 0 or hi[i] != hi[i - 1] or lo[i] != lo[i - 1]:
            starts[groups] = i
            groups += 1
    starts[groups] = n
    return starts[: groups + 1].copy()


@kernel
def count_groups(hi: UInt64Array, shift: np.uint64, key_groups: int) -> Int64Array:
    """Rows per key group."""
    counts = np.zeros(key_groups, np.int64)
    for i in range(len(hi)):
        counts[np.int64(hi[i] >> shift)] += 1
    return counts
