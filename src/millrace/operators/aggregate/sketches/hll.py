"""HyperLogLog sketches in the format of Apache DataSketches, merged by a kernel.

A sketch is sparse as long as it is small: a list of *coupons*, 26 bits of a value's hash and 6 for
its number of leading zeros. Beyond that it is dense: a byte per register (`HLL_8`). The library
merges one pair of sketches per call; here one call merges the sketches of all keys, and the library
computes the estimates of dense ones.

Invariant: what `merge` writes, the library reads, and it has the coupons or registers of a union by
the library. A single sketch is kept as it came, since merging costs a dense one its more accurate
estimator.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt8Array
from millrace.jit import kernel, load_u32
from millrace.operators.aggregate.limits import LG_K_HLL
from millrace.operators.aggregate.sketches.columns import (
    Blobs,
    blobs,
    by_library,
    column,
    malformed,
)

SMALLEST, LARGEST = LG_K_HLL

_SURE = 4096
"""A sparse sketch of up to this many coupons has as many values, up to rounding; above, two values
with the same coupon become likely enough for the library's estimate to differ."""

_DENSE_BYTES = 40
_LIST, _SET, _DENSE = 0, 1, 2
_EMPTY, _COMPACT, _MERGED = 4, 8, 16
_HLL_8 = 8
"""The kind of registers, in the byte that has the mode."""


def merge(sketches: pa.Array, starts: Int64Array, lg_k: int) -> pa.Array:
    """The union of each group of sketches; NULLs count as empty."""
    return column(*_merge(_checked(sketches, lg_k), starts, lg_k))


def estimates(sketches: pa.Array) -> Int64Array:
    """The number of distinct values, rounded; 0 for NULL."""
    found = _sparse_counts(_checked(sketches))
    unsure = np.flatnonzero(found < 0)
    if len(unsure):
        from datasketches import hll_sketch

        for i in unsure.tolist():
            found[i] = round(by_library(hll_sketch.deserialize, sketches[i].as_py()).get_estimate())
    return found


def _checked(sketches: pa.Array, lg_k: int = 0) -> Blobs:
    """The bytes of sketches, which kernels read without looking; of one lg_k, if it is given."""
    given = blobs(sketches)
    bad = _first_bad(given, lg_k)
    if bad >= 0:
        raise malformed("a HyperLogLog sketch", sketches[bad].as_py())
    return given


@kernel
def _first_bad(sketches: Blobs, lg_k: int) -> int:
    offsets, data, valid = sketches
    for i in range(len(valid)):
        if not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        if end - at < 8 or data[at + 1] != 1 or data[at + 2] != 7:
            return i
        size = data[at + 3]
        if size < SMALLEST or size > LARGEST or (lg_k != 0 and size != lg_k):
            return i
        mode = _mode(data, at)
        if mode > _DENSE or (mode == _SET and end - at < 12):
            return i
        dense = _DENSE_BYTES + (1 << np.int64(size))
        if mode == _DENSE and ((data[at + 7] & 12) != _HLL_8 or end - at < dense):
            return i
    return -1


@kernel
def _word(data: UInt8Array, at: int) -> np.uint32:
    return np.uint32(load_u32(np.uint64(data.ctypes.data) + np.uint64(at)))


@kernel
def _put_word(data: UInt8Array, at: int, word: np.uint32) -> None:
    for i in range(4):
        data[at + i] = np.uint8((word >> np.uint32(8 * i)) & np.uint32(255))


@kernel
def _mode(data: UInt8Array, at: int) -> int:
    return int(data[at + 7]) & 3


@kernel
def _coupons(data: UInt8Array, at: int, end: int) -> tuple[int, int]:
    """Where a sparse sketch's coupons begin, and how many slots there are; empty slots are 0."""
    if _mode(data, at) == _LIST:
        return at + 8, (end - at - 8) // 4
    return at + 12, (end - at - 12) // 4


@kernel
def _sparse_counts(sketches: Blobs) -> Int64Array:
    """How many coupons each sparse sketch has; -1 where that says too little."""
    offsets, data, valid = sketches
    out = np.zeros(len(valid), np.int64)
    for i in range(len(valid)):
        if not valid[i]:
            continue
        at = offsets[i]
        if _mode(data, at) == _DENSE:
            out[i] = -1
            continue
        first, slots = _coupons(data, at, offsets[i + 1])
        count = 0
        for s in range(slots):
            if _word(data, first + 4 * s) != 0:
                count += 1
        out[i] = count if count <= _SURE else -1
    return out


@kernel
def _raise_register(registers: UInt8Array, coupon: np.uint32, mask: np.uint32) -> None:
    slot = coupon & mask
    value = np.uint8(coupon >> np.uint32(26))
    if value > registers[slot]:
        registers[slot] = value


@kernel
def _write_sparse(out: UInt8Array, at: int, coupons: Int64Array, count: int, lg_k: int) -> int:
    """A compact list or set of coupons; where it ends."""
    is_list = count < 8
    lg_size = 3
    if not is_list:
        lg_size = 5
        while 4 * count > 3 * (1 << lg_size):
            lg_size += 1
    out[at] = 2 if is_list else 3
    out[at + 1] = 1
    out[at + 2] = 7
    out[at + 3] = lg_k
    out[at + 4] = lg_size
    out[at + 5] = _COMPACT | (_EMPTY if count == 0 else 0)
    out[at + 6] = count if is_list else 0
    out[at + 7] = _HLL_8 | (_LIST if is_list else _SET)
    first = at + 8
    if not is_list:
        _put_word(out, first, np.uint32(count))
        first += 4
    for i in range(count):
        _put_word(out, first + 4 * i, np.uint32(coupons[i]))
    return first + 4 * count


@kernel
def _write_dense(out: UInt8Array, at: int, registers: UInt8Array, lg_k: int) -> int:
    """A dense sketch that came about by merging; where it ends."""
    having = np.zeros(256, np.int64)
    for value in registers:
        having[value] += 1
    # What the estimator needs: the sums of 2^-value, apart for small and large values.
    sums = np.zeros(2, np.float64)
    for value in range(64):
        sums[value // 32] += having[value] * 2.0**-value
    out[at : at + _DENSE_BYTES] = 0
    out[at] = 10
    out[at + 1] = 1
    out[at + 2] = 7
    out[at + 3] = lg_k
    out[at + 5] = _COMPACT | _MERGED
    out[at + 7] = _HLL_8 | _DENSE
    out[at + 16 : at + 32] = sums.view(np.uint8)
    _put_word(out, at + 32, np.uint32(having[0]))
    first = at + _DENSE_BYTES
    out[first : first + len(registers)] = registers
    return first + len(registers)


@kernel
def _merge(sketches: Blobs, starts: Int64Array, lg_k: int) -> tuple[Int64Array, UInt8Array]:
    offsets, data, valid = sketches
    groups = len(starts) - 1
    size = 1 << lg_k
    mask = np.uint32(size - 1)
    most_sparse = (3 << (lg_k - 3)) // 4 if lg_k >= 8 else 7
    # How much room the results can take, and how many coupons a group can have.
    room = 0
    most = 0
    for g in range(groups):
        coupons = 0
        is_dense = False
        for i in range(starts[g], starts[g + 1]):
            if valid[i]:
                if _mode(data, offsets[i]) == _DENSE:
                    is_dense = True
                else:
                    coupons += _coupons(data, offsets[i], offsets[i + 1])[1]
        most = max(most, coupons)
        room += _DENSE_BYTES + size if is_dense or coupons > most_sparse else 12 + 4 * coupons
    out = np.empty(room, np.uint8)
    cuts = np.zeros(groups + 1, np.int64)
    scratch = np.empty(most, np.int64)
    registers = np.empty(size, np.uint8)
    at = 0
    for g in range(groups):
        count = 0
        dense = 0
        last_dense = -1
        for i in range(starts[g], starts[g + 1]):
            if not valid[i]:
                continue
            if _mode(data, offsets[i]) == _DENSE:
                dense += 1
                last_dense = i
                continue
            first, slots = _coupons(data, offsets[i], offsets[i + 1])
            for s in range(slots):
                coupon = _word(data, first + 4 * s)
                if coupon != 0:
                    scratch[count] = coupon
                    count += 1
        if count > 1:
            ordered = np.sort(scratch[:count])
            scratch[0] = ordered[0]
            distinct = 1
            for s in range(1, count):
                if ordered[s] != ordered[s - 1]:
                    scratch[distinct] = ordered[s]
                    distinct += 1
            count = distinct
        if dense == 0 and count <= most_sparse:
            at = _write_sparse(out, at, scratch, count, lg_k)
        elif dense == 1 and count == 0:
            length = offsets[last_dense + 1] - offsets[last_dense]
            out[at : at + length] = data[offsets[last_dense] : offsets[last_dense + 1]]
            at += length
        else:
            registers[:] = 0
            for i in range(starts[g], starts[g + 1]):
                if valid[i] and _mode(data, offsets[i]) == _DENSE:
                    first = offsets[i] + _DENSE_BYTES
                    for r in range(size):
                        if data[first + r] > registers[r]:
                            registers[r] = data[first + r]
            for s in range(count):
                _raise_register(registers, np.uint32(scratch[s]), mask)
            at = _write_dense(out, at, registers, lg_k)
        cuts[g + 1] = at
    return cuts, out[:at].copy()
