"""The inner loops of the reducers.

Rows are sorted by key. Key `g` has the rows `starts[g]` to `starts[g + 1]`, and a current state at
position `g` of the current arrays. Kernels that choose among values return, per key, the position
of the winner in current + incoming laid end to end, or -1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.state._jit import kernel

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Float64Array = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]


@kernel
def add_int64(
    current: Int64Array,
    current_valid: BoolArray,
    rows: Int64Array,
    rows_valid: BoolArray,
    starts: Int64Array,
) -> tuple[Int64Array, BoolArray, int]:
    """Sums that wrap around; the third result is the first key that did, or -1."""
    n = len(starts) - 1
    out = np.zeros(n, np.int64)
    valid = np.zeros(n, np.bool_)
    overflow = -1
    for g in range(n):
        total = np.int64(0)
        if current_valid[g]:
            total = current[g]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if rows_valid[i]:
                result = total + rows[i]
                if ((total ^ result) & (rows[i] ^ result)) < 0 and overflow < 0:
                    overflow = g
                total = result
                valid[g] = True
        out[g] = total
    return out, valid, overflow


@kernel
def add_float64(
    current: Float64Array,
    current_valid: BoolArray,
    rows: Float64Array,
    rows_valid: BoolArray,
    starts: Int64Array,
) -> tuple[Float64Array, BoolArray]:
    n = len(starts) - 1
    out = np.zeros(n, np.float64)
    valid = np.zeros(n, np.bool_)
    for g in range(n):
        total = 0.0
        if current_valid[g]:
            total = current[g]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if rows_valid[i]:
                total += rows[i]
                valid[g] = True
        out[g] = total
    return out, valid


@kernel
def add_decimal(
    current: UInt64Array,
    current_valid: BoolArray,
    rows: UInt64Array,
    rows_valid: BoolArray,
    starts: Int64Array,
    limit_low: np.uint64,
    limit_high: np.uint64,
) -> tuple[UInt64Array, BoolArray, BoolArray]:
    """128-bit sums; the third result marks keys whose sum left (-limit, limit) on the way."""
    n = len(starts) - 1
    out = np.zeros(2 * n, np.uint64)
    valid = np.zeros(n, np.bool_)
    overflow = np.zeros(n, np.bool_)
    one = np.uint64(1)
    top = np.uint64(63)
    for g in range(n):
        low = np.uint64(0)
        high = np.uint64(0)
        if current_valid[g]:
            low = current[2 * g]
            high = current[2 * g + 1]
            valid[g] = True
        for i in range(starts[g], starts[g + 1]):
            if not rows_valid[i]:
                continue
            valid[g] = True
            new_low = low + rows[2 * i]
            carry = one if new_low < low else np.uint64(0)
            low = new_low
            high = high + rows[2 * i + 1] + carry
            # Both sides are below 10^38 < 2^127 / 1.7, so the sum still fits in 128 bits.
            magnitude_low = low
            magnitude_high = high
            if high >> top != 0:
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
    current: Int64Array,
    current_valid: BoolArray,
    rows: Int64Array,
    rows_valid: BoolArray,
    starts: Int64Array,
    largest: bool,
) -> Int64Array:
    n = len(starts) - 1
    winner = np.full(n, -1, np.int64)
    for g in range(n):
        best = np.int64(0)
        if current_valid[g]:
            best = current[g]
            winner[g] = g
        for i in range(starts[g], starts[g + 1]):
            if rows_valid[i]:
                better = rows[i] > best if largest else rows[i] < best
                if winner[g] < 0 or better:
                    best = rows[i]
                    winner[g] = n + i
    return winner


@kernel
def best_decimal(
    current: UInt64Array,
    current_valid: BoolArray,
    rows: UInt64Array,
    rows_valid: BoolArray,
    starts: Int64Array,
    largest: bool,
) -> Int64Array:
    n = len(starts) - 1
    winner = np.full(n, -1, np.int64)
    for g in range(n):
        low = np.uint64(0)
        high = np.int64(0)
        if current_valid[g]:
            low = current[2 * g]
            high = np.int64(current[2 * g + 1])
            winner[g] = g
        for i in range(starts[g], starts[g + 1]):
            if rows_valid[i]:
                new_low = rows[2 * i]
                new_high = np.int64(rows[2 * i + 1])
                greater = new_high > high or (new_high == high and new_low > low)
                smaller = new_high < high or (new_high == high and new_low < low)
                if winner[g] < 0 or (greater if largest else smaller):
                    low = new_low
                    high = new_high
                    winner[g] = n + i
    return winner


@kernel
def _compare(offsets: npt.NDArray[np.int32], data: ByteArray, a: int, b: int) -> int:
    length_a = offsets[a + 1] - offsets[a]
    length_b = offsets[b + 1] - offsets[b]
    for k in range(min(length_a, length_b)):
        x = data[offsets[a] + k]
        y = data[offsets[b] + k]
        if x != y:
            return -1 if x < y else 1
    if length_a == length_b:
        return 0
    return -1 if length_a < length_b else 1


@kernel
def best_bytes(
    offsets: npt.NDArray[np.int32],
    data: ByteArray,
    valid: BoolArray,
    starts: Int64Array,
    largest: bool,
) -> Int64Array:
    """`offsets`, `data` and `valid` are of current + incoming laid end to end."""
    n = len(starts) - 1
    winner = np.full(n, -1, np.int64)
    for g in range(n):
        best = g if valid[g] else -1
        for i in range(starts[g], starts[g + 1]):
            if valid[n + i]:
                if best < 0:
                    best = n + i
                else:
                    order = _compare(offsets, data, n + i, best)
                    if (order > 0) if largest else (order < 0):
                        best = n + i
        winner[g] = best
    return winner


@kernel
def first_or_last(
    current_set: BoolArray,
    rows_set: BoolArray,
    part: Int64Array,
    starts: Int64Array,
    last: bool,
) -> Int64Array:
    """Among an epoch's rows of a key, the input partition decides: lowest first, highest last."""
    n = len(starts) - 1
    winner = np.full(n, -1, np.int64)
    for g in range(n):
        if current_set[g]:
            winner[g] = g
            if not last:
                continue
        chosen = -1
        for i in range(starts[g], starts[g + 1]):
            if rows_set[i] and (
                chosen < 0 or (part[i] >= part[chosen] if last else part[i] < part[chosen])
            ):
                chosen = i
        if chosen >= 0:
            winner[g] = n + chosen
    return winner


@kernel
def merge_moments(
    n_current: Int64Array,
    mean_current: Float64Array,
    m2_current: Float64Array,
    n_rows: Int64Array,
    mean_rows: Float64Array,
    m2_rows: Float64Array,
    starts: Int64Array,
) -> tuple[Int64Array, Float64Array, Float64Array]:
    """Chan's update of (count, mean, sum of squared deviations), as Spark merges its own."""
    groups = len(starts) - 1
    n_out = np.empty(groups, np.int64)
    mean_out = np.empty(groups, np.float64)
    m2_out = np.empty(groups, np.float64)
    for g in range(groups):
        n = n_current[g]
        mean = mean_current[g]
        m2 = m2_current[g]
        for i in range(starts[g], starts[g + 1]):
            more = n_rows[i]
            if more == 0:
                continue
            if n == 0:
                n, mean, m2 = more, mean_rows[i], m2_rows[i]
                continue
            total = n + more
            delta = mean_rows[i] - mean
            step = delta / total
            m2 = m2 + m2_rows[i] + delta * step * n * more
            mean = mean + step * more
            n = total
        n_out[g] = n
        mean_out[g] = mean
        m2_out[g] = m2
    return n_out, mean_out, m2_out
