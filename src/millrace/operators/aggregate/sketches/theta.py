"""Theta sketches in the format of Apache DataSketches: union, intersection, difference, estimate.

A sketch is a threshold, theta, and all hashes below it that its values had, in order. So a union
is a merge of sorted numbers. Spark writes the compressed format (version 4), what is written here
is the plain one (version 3); both are read.

Invariant: the result of each operation is what the library computes, hash by hash.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Float64Array, Int64Array, UInt8Array, UInt64Array
from millrace.jit import kernel, load_u64, store_u64
from millrace.operators.aggregate.sketches.columns import (
    Blobs,
    blobs,
    column,
    malformed,
    number,
    signed,
)

WIDEST = 16
"""For unions in queries: wide enough to keep what sketches of the usual size have."""

UNION, INTERSECTION, DIFFERENCE = 0, 1, 2

_ALL = np.uint64(2**63 - 1)
"""The threshold of a sketch that has dropped nothing."""
_EMPTY, _ORDERED, _SINGLE = 4, 16, 32
_WRITTEN = 2 | 8 | _ORDERED
"""Read-only, compact and ordered."""


def merge(sketches: pa.Array, starts: Int64Array, lg_k: int) -> pa.Array:
    """The union of each group of sketches, of at most 2^lg_k hashes; NULLs count as empty."""
    return column(*_merge(_checked(sketches), starts, lg_k))


def combined(left: pa.Array, right: pa.Array, operation: int, lg_k: int = WIDEST) -> pa.Array:
    """Row by row the union, intersection or difference of two sketches; NULLs count as empty."""
    return column(*_combined(_checked(left), _checked(right), operation, lg_k))


def estimates(sketches: pa.Array) -> Float64Array:
    """The number of distinct values; NaN for NULL."""
    return _estimates(_checked(sketches))


def first_bad(sketches: pa.Array) -> int:
    """The first value that is not NULL and not a sketch of this format either; -1 if all are."""
    return _first_bad(blobs(sketches))


def _checked(sketches: pa.Array) -> Blobs:
    """The bytes of sketches, which kernels read without looking."""
    bad = first_bad(sketches)
    if bad >= 0:
        raise malformed("a theta sketch", sketches[bad].as_py())
    return blobs(sketches)


@kernel
def _put_number(data: UInt8Array, at: int, number: np.uint64, size: int) -> None:
    for i in range(size):
        data[at + i] = np.uint8((number >> np.uint64(8 * i)) & np.uint64(255))


@kernel
def _header(data: UInt8Array, at: int) -> tuple[int, np.uint64, int]:
    """How many hashes a sketch has, its threshold, and where the hashes begin."""
    longs = signed(data[at]) & 63
    if data[at + 5] & _EMPTY:
        return 0, _ALL, at + 8
    if data[at + 1] == 4:
        theta = _ALL
        first = at + 8
        if longs > 1:
            theta = number(data, first, 8)
            first += 8
        bytes_of_count = signed(data[at + 4])
        count = signed(number(data, first, bytes_of_count))
        return count, theta, first + bytes_of_count
    if longs == 1:
        return 1, _ALL, at + 8
    count = signed(number(data, at + 8, 4))
    theta = number(data, at + 16, 8) if longs > 2 else _ALL
    return count, theta, at + 8 * longs


@kernel
def _read(data: UInt8Array, at: int, out: UInt64Array, to: int) -> np.uint64:
    """Copy a sketch's hashes, in order, to a place; returns its threshold."""
    count, theta, first = _header(data, at)
    if data[at + 1] == 4:
        # Differences of neighbours, each in `bits` bits, packed without gaps, high bits first.
        bits = signed(data[at + 3])
        hash_ = np.uint64(0)
        position = first * 8
        for i in range(count):
            delta = np.uint64(0)
            left = bits
            while left > 0:
                inside = position & 7
                taken = min(8 - inside, left)
                byte = np.uint64(data[position >> 3])
                part = (byte >> np.uint64(8 - inside - taken)) & np.uint64((1 << taken) - 1)
                delta = (delta << np.uint64(taken)) | part
                position += taken
                left -= taken
            hash_ += delta
            out[to + i] = hash_
        return theta
    address = np.uint64(data.ctypes.data) + np.uint64(first)
    for i in range(count):
        out[to + i] = load_u64(address + np.uint64(8 * i))
    if not data[at + 5] & _ORDERED:
        out[to : to + count] = np.sort(out[to : to + count])
    return theta


@kernel
def _write(
    out: UInt8Array, at: int, hashes: UInt64Array, count: int, theta: np.uint64, is_empty: bool
) -> int:
    """Write a sketch; where it ends."""
    flags = _WRITTEN
    longs = 3
    if is_empty:
        longs, flags = 1, flags | _EMPTY
    elif theta == _ALL:
        longs = 1 if count == 1 else 2
        if count == 1:
            flags |= _SINGLE
    out[at : at + 8 * longs] = 0
    out[at] = longs
    out[at + 1] = 3
    out[at + 2] = 3
    out[at + 5] = flags
    if is_empty:
        return at + 8
    # The hash of the library's default seed: sketches of other seeds do not mix.
    out[at + 6] = 0xCC
    out[at + 7] = 0x93
    if longs > 1:
        _put_number(out, at + 8, np.uint64(count), 4)
    if longs > 2:
        _put_number(out, at + 16, theta, 8)
    first = at + 8 * longs
    address = np.uint64(out.ctypes.data) + np.uint64(first)
    for i in range(count):
        store_u64(address + np.uint64(8 * i), hashes[i])
    return first + 8 * count


@kernel
def _united(
    a: UInt64Array, b: UInt64Array, theta: np.uint64, k: int, out: UInt64Array
) -> tuple[int, np.uint64]:
    """The hashes below a threshold of two sorted arrays, at most `k`; and the new threshold."""
    i = j = count = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] <= b[j]):
            found = a[i]
            i += 1
        else:
            found = b[j]
            j += 1
        if found >= theta:
            break
        if count and out[count - 1] == found:
            continue
        if count == k:
            return count, found
        out[count] = found
        count += 1
    return count, theta


@kernel
def _merge(sketches: Blobs, starts: Int64Array, lg_k: int) -> tuple[Int64Array, UInt8Array]:
    offsets, data, valid = sketches
    groups = len(starts) - 1
    k = 1 << lg_k
    room = most = 0
    for g in range(groups):
        count = 0
        for i in range(starts[g], starts[g + 1]):
            if valid[i]:
                count += _header(data, offsets[i])[0]
        room += 24 + 8 * min(count, k)
        most = max(most, count)
    out = np.empty(room, np.uint8)
    cuts = np.zeros(groups + 1, np.int64)
    given = np.empty(most, np.uint64)
    merged = np.empty(min(most, k), np.uint64)
    at = 0
    for g in range(groups):
        theta = _ALL
        is_empty = True
        count = first = 0
        for i in range(starts[g], starts[g + 1]):
            if valid[i]:
                at_sketch = offsets[i]
                theta = min(theta, _read(data, at_sketch, given, count))
                count += _header(data, at_sketch)[0]
                is_empty = is_empty and (data[at_sketch + 5] & _EMPTY) != 0
                if first == 0:
                    first = count
        # The first is mostly the key's state, and large; what comes is small.
        rest = np.sort(given[first:count])
        kept, theta = _united(given[:first], rest, theta, k, merged)
        at = _write(out, at, merged, kept, theta, is_empty)
        cuts[g + 1] = at
    return cuts, out[:at].copy()


@kernel
def _size(sketches: Blobs, i: int) -> int:
    offsets, data, valid = sketches
    return _header(data, offsets[i])[0] if valid[i] else 0


@kernel
def _hashes(sketches: Blobs, i: int) -> tuple[UInt64Array, np.uint64, bool]:
    """A sketch's hashes, its threshold, and whether it is empty."""
    offsets, data, valid = sketches
    out = np.empty(_size(sketches, i), np.uint64)
    if not valid[i]:
        return out, _ALL, True
    theta = _read(data, offsets[i], out, 0)
    return out, theta, (data[offsets[i] + 5] & _EMPTY) != 0


@kernel
def _combined(
    left: Blobs, right: Blobs, operation: int, lg_k: int
) -> tuple[Int64Array, UInt8Array]:
    rows = len(left[2])
    k = 1 << lg_k
    room = 0
    for i in range(rows):
        room += 24 + 8 * (_size(left, i) + _size(right, i))
    out = np.empty(room, np.uint8)
    cuts = np.zeros(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        a, a_theta, a_empty = _hashes(left, row)
        b, b_theta, b_empty = _hashes(right, row)
        theta = min(a_theta, b_theta)
        found = np.empty(len(a) + len(b), np.uint64)
        count = 0
        if operation == UNION:
            is_empty = a_empty and b_empty
            count, theta = _united(a, b, theta, k, found)
        else:
            wanted = operation == INTERSECTION
            is_empty = (a_empty or b_empty) if wanted else a_empty
            j = 0
            for hash_ in a:
                if hash_ >= theta:
                    break
                while j < len(b) and b[j] < hash_:
                    j += 1
                if (j < len(b) and b[j] == hash_) == wanted:
                    found[count] = hash_
                    count += 1
            if is_empty:
                count, theta = 0, _ALL
            elif count == 0 and theta == _ALL:
                is_empty = True
        at = _write(out, at, found, count, theta, is_empty)
        cuts[row + 1] = at
    return cuts, out[:at].copy()


@kernel
def _estimates(sketches: Blobs) -> Float64Array:
    offsets, data, valid = sketches
    out = np.full(len(valid), np.nan, np.float64)
    for i in range(len(valid)):
        if valid[i]:
            count, theta, _ = _header(data, offsets[i])
            out[i] = count if theta == _ALL else count * (2.0**63 / np.float64(theta))
    return out


@kernel
def _first_bad(sketches: Blobs) -> int:
    offsets, data, valid = sketches
    for i in range(len(valid)):
        if not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        if end - at < 8 or data[at + 2] != 3 or (data[at + 1] != 3 and data[at + 1] != 4):
            return i
        if data[at + 5] & _EMPTY:
            continue
        compressed = data[at + 1] == 4
        longs = signed(data[at]) & 63
        if longs < 1 or longs > 3 or data[at + 6] != 0xCC or data[at + 7] != 0x93:
            return i
        # The part that says how many hashes there are must be there to be read.
        fixed = 8 * longs + (signed(data[at + 4]) if compressed else 0)
        if end - at < fixed or (compressed and (longs > 2 or data[at + 4] > 8)):
            return i
        count, _, first = _header(data, at)
        bits = signed(data[at + 3]) if compressed else 64
        room = 8 * (np.int64(end) - first)
        if bits < 1 or bits > 64 or count < 0 or count > room // bits:
            return i
    return -1
