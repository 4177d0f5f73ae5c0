"""Rows in order of key and time, and the last one at or before each of others."""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.jit import kernel
from millrace.state.sorting import group_starts, sort_order

Times = tuple[UInt64Array, UInt64Array, Int64Array]
"""Fingerprints of keys, hi and lo, and times: rows in order of all three."""

_SMALL = 32
"""So few rows of a key are sorted by insertion."""


def in_order_of_time(
    hi: UInt64Array, lo: UInt64Array, times: Int64Array, numbers: UInt64Array
) -> Int64Array:
    """The order of rows by key, time and number."""
    order = sort_order(hi, lo)
    _sort_runs(order, group_starts(hi[order], lo[order]), times, numbers)
    return order


@kernel
def _sort_runs(
    order: Int64Array, starts: Int64Array, times: Int64Array, numbers: UInt64Array
) -> None:
    for g in range(len(starts) - 1):
        first = starts[g]
        last = starts[g + 1]
        if last - first > _SMALL:
            rows = order[first:last].copy()
            by_number = rows[np.argsort(numbers[rows], kind="mergesort")]
            order[first:last] = by_number[np.argsort(times[by_number], kind="mergesort")]
            continue
        for i in range(first + 1, last):
            row = order[i]
            j = i - 1
            while j >= first and (
                times[order[j]] > times[row]
                or (times[order[j]] == times[row] and numbers[order[j]] > numbers[row])
            ):
                order[j + 1] = order[j]
                j -= 1
            order[j + 1] = row


@kernel
def last_before(rows: Times, others: Times) -> Int64Array:
    """For each row, the last of the others with its key that is not later; -1 if there is none."""
    hi, lo, times = rows
    other_hi, other_lo, other_times = others
    out = np.empty(len(hi), np.int64)
    m = len(other_hi)
    j = 0
    for i in range(len(hi)):
        # Up to the first that is after the row, in order of key and time.
        while j < m and (
            other_hi[j] < hi[i]
            or (
                other_hi[j] == hi[i]
                and (other_lo[j] < lo[i] or (other_lo[j] == lo[i] and other_times[j] <= times[i]))
            )
        ):
            j += 1
        is_same = j > 0 and other_hi[j - 1] == hi[i] and other_lo[j - 1] == lo[i]
        out[i] = j - 1 if is_same else -1
    return out


def last_of_runs(hi: UInt64Array, lo: UInt64Array) -> Int64Array:
    """The last row of each key, of rows in order of key."""
    return group_starts(hi, lo)[1:] - 1
