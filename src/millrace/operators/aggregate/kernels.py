"""The inner loops of the reducers.

Incoming rows are sorted by key. Key `g` has the rows `starts[g]` to `starts[g + 1]`, and its
current state is at position `g` of the current arrays. Kernels that choose among values return, per
key, the position of the winner in current + incoming laid end to end, or `NONE`. Of equal values it
is the first, or the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.arrays import BoolArray, Float64Array, Int32Array, Int64Array, UInt8Array, UInt64Array
from millrace.jit import inlined, kernel

NONE = -1
"""The winner among no values."""

SIGN = np.uint64(63)
"""The bit that is set in negative numbers."""


Nullable = tuple[npt.NDArray[Any], BoolArray]
"""Values, and which of them are not NULL. A decimal is two words: low, high."""

Bytes = tuple[Int32Array, UInt8Array]
"""Strings or binaries, as Arrow lays them out: offsets and data."""

Moments = tuple[Int64Array, Float64Array, Float64Array]
"""What a variance is computed from: counts, means, and sums of squared deviations from the mean."""


@kernel
def add_int64(
    current: Nullable,
    rows: Nullable,
    starts: Int64Array,
) -> tuple[Int64Array, BoolArray, int]:
    """Sums that wrap around; the third result is the first key that did, or -1."""
    now, now_valid = current
    new, new_valid = rows
    n = len(starts) - 1
    out = np.zeros(n, np.int64)
    valid = np.zeros(n, np.bool_)
    overflow = -1
    for g in range(n):
        total = np.int64(0)
        if now_valid[g]:
            total = now[g]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if new_valid[i]:
                result = total + new[i]
                if ((total ^ result) & (new[i] ^ result)) < 0 and overflow < 0:
                    overflow = g
                total = result
                valid[g] = True
        out[g] = total
    return out, valid, overflow


@kernel
def add_float64(
    current: Nullable,
    rows: Nullable,
    starts: Int64Array,
) -> tuple[Float64Array, BoolArray]:
    now, now_valid = current
    new, new_valid = rows
    n = len(starts) - 1
    out = np.zeros(n, np.float64)
    valid = np.zeros(n, np.bool_)
    for g in range(n):
        total = 0.0
        if now_valid[g]:
            total = now[g]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if new_valid[i]:
                total += new[i]
                valid[g] = True
        out[g] = total
    return out, valid


@kernel
def add_decimal(
    current: Nullable,
    rows: Nullable,
    starts: Int64Array,
    limit: tuple[np.uint64, np.uint64],
) -> tuple[UInt64Array, BoolArray, BoolArray]:
    """128-bit sums; the third result marks keys whose sum left (-limit, limit) on the way.

    A value is two words, low and high; so is the limit.
    """
    now, now_valid = current
    new, new_valid = rows
    n = len(starts) - 1
    out = np.zeros(2 * n, np.uint64)
    valid = np.zeros(n, np.bool_)
    overflow = np.zeros(n, np.bool_)
    one = np.uint64(1)
    limit_low, limit_high = limit
    for g in range(n):
        low = np.uint64(0)
        high = np.uint64(0)
        if now_valid[g]:
            low = now[2 * g]
            high = now[2 * g + 1]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if not new_valid[i]:
                continue
            valid[g] = True
            new_low = low + new[2 * i]
            carry = one if new_low < low else np.uint64(0)
            low = new_low
            high = high + new[2 * i + 1] + carry
            # Both sides are below 10^38 < 2^127 / 1.7, so the sum still fits in 128 bits.
            magnitude_low = low
            magnitude_high = high
            if high >> SIGN != 0:
                magnitude_low = ~low + one
                magnitude_high = ~high + (one if magnitude_low == 0 else np.uint64(0))
            if magnitude_high > limit_high or (
                magnitude_high == limit_high and magnitude_low >= limit_low
            ):
                overflow[g] = True
                low = np.uint64(0)
                high = np.uint64(0)
        out[2 * g] = low
        out[2 * g + 1] = high
    return out, valid, overflow


@kernel
def best_int64(
    current: Nullable,
    rows: Nullable,
    starts: Int64Array,
    largest: bool,
    last: bool = False,
) -> Int64Array:
    now, now_valid = current
    new, new_valid = rows
    n = len(starts) - 1
    winner = np.full(n, NONE, np.int64)
    for g in range(n):
        best = np.int64(0)
        if now_valid[g]:
            best = now[g]
            winner[g] = g
        for i in range(starts[g], starts[g + 1]):
            if new_valid[i]:
                better = new[i] > best if largest else new[i] < best
                better = better or (last and new[i] == best)
                if winner[g] < 0 or better:
                    best = new[i]
                    winner[g] = n + i
    return winner


@kernel
def best_decimal(
    current: Nullable,
    rows: Nullable,
    starts: Int64Array,
    largest: bool,
    last: bool = False,
) -> Int64Array:
    now, now_valid = current
    new, new_valid = rows
    n = len(starts) - 1
    winner = np.full(n, NONE, np.int64)
    for g in range(n):
        low = np.uint64(0)
        high = np.int64(0)
        if now_valid[g]:
            low = now[2 * g]
            high = np.int64(now[2 * g + 1])
            winner[g] = g
        for i in range(starts[g], starts[g + 1]):
            if new_valid[i]:
                new_low = new[2 * i]
                new_high = np.int64(new[2 * i + 1])
                greater = new_high > high or (new_high == high and new_low > low)
                smaller = new_high < high or (new_high == high and new_low < low)
                better = greater if largest else smaller
                better = better or (last and not greater and not smaller)
                if winner[g] < 0 or better:
                    low = new_low
                    high = new_high
                    winner[g] = n + i
    return winner


@inlined
def _compare(offsets: Int32Array, data: UInt8Array, a: int, b: int) -> int:
    """Negative, 0 or positive, as value `a` is before, equal to or after `b`."""
    start_a = offsets[a]
    start_b = offsets[b]
    length_a = offsets[a + 1] - start_a
    length_b = offsets[b + 1] - start_b
    for k in range(min(length_a, length_b)):
        x = data[start_a + k]
        y = data[start_b + k]
        if x != y:
            return -1 if x < y else 1
    if length_a == length_b:
        return 0
    return -1 if length_a < length_b else 1


@kernel
def best_bytes(
    both: Bytes, valid: BoolArray, starts: Int64Array, largest: bool, last: bool = False
) -> Int64Array:
    """`both` and `valid` are of current + incoming laid end to end."""
    offsets, data = both
    n = len(starts) - 1
    winner = np.full(n, NONE, np.int64)
    for g in range(n):
        best = g if valid[g] else NONE
        for i in range(starts[g], starts[g + 1]):
            if valid[n + i]:
                if best < 0:
                    best = n + i
                else:
                    order = _compare(offsets, data, n + i, best)
                    if ((order > 0) if largest else (order < 0)) or (last and order == 0):
                        best = n + i
        winner[g] = best
    return winner


@kernel
def first_or_last(
    current_set: BoolArray,
    rows_set: BoolArray,
    part: Int64Array,
    starts: Int64Array,
    last: bool = False,
) -> Int64Array:
    """Among an epoch's rows of a key, the input partition decides: lowest first, highest last."""
    n = len(starts) - 1
    winner = np.full(n, NONE, np.int64)
    for g in range(n):
        if current_set[g]:
            winner[g] = g
            if not last:
                continue
        chosen = NONE
        for i in range(starts[g], starts[g + 1]):
            if rows_set[i] and (
                chosen < 0 or (part[i] >= part[chosen] if last else part[i] < part[chosen])
            ):
                chosen = i
        if chosen >= 0:
            winner[g] = n + chosen
    return winner


@kernel
def merge_moments(current: Moments, rows: Moments, starts: Int64Array) -> Moments:
    """Chan's update of (count, mean, sum of squared deviations), as Spark merges its own."""
    now_counts, now_means, now_m2s = current
    new_counts, new_means, new_m2s = rows
    groups = len(starts) - 1
    count_out = np.empty(groups, np.int64)
    mean_out = np.empty(groups, np.float64)
    m2_out = np.empty(groups, np.float64)
    for g in range(groups):
        count = now_counts[g]
        mean = now_means[g]
        m2 = now_m2s[g]
        for i in range(starts[g], starts[g + 1]):
            more = new_counts[i]
            if more == 0:
                continue
            if count == 0:
                count, mean, m2 = more, new_means[i], new_m2s[i]
                continue
            total = count + more
            delta = new_means[i] - mean
            step = delta / total
            m2 = m2 + new_m2s[i] + delta * step * count * more
            mean = mean + step * more
            count = total
        count_out[g] = count
        mean_out[g] = mean
        m2_out[g] = m2
    return count_out, mean_out, m2_out
