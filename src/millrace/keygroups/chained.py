"""Fingerprints of scheme 1, that of locations of format 1: both halves are chained XXH64.

Spark's `xxhash64` is XXH64 with the hash so far as the seed of the next value, and this repeats it
on Arrow arrays. Known rough edge, and the reason for scheme 2: XXH64 is no cryptographic hash, and
whoever chooses keys can make two with the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int32Array, Int64Array, UInt32Array, UInt64Array
from millrace.jit import kernel, load_u8, load_u32, load_u64
from millrace.keygroups import buffers
from millrace.keygroups.keys import HI_SALT, LO_SALT

SEED = 42
"""What Spark's `xxhash64` starts with."""

PRIME_1 = np.uint64(0x9E3779B185EBCA87)
PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
PRIME_3 = np.uint64(0x165667B19E3779F9)
PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
PRIME_5 = np.uint64(0x27D4EB2F165667C5)


def fingerprints(columns: Sequence[pa.Array]) -> tuple[UInt64Array, UInt64Array]:
    """Both halves of the fingerprint of each key.

    The columns have exactly the Arrow types in which the state keeps the key columns.
    """
    return _half(columns, HI_SALT), _half(columns, LO_SALT)


def _half(columns: Sequence[pa.Array], salt: int) -> UInt64Array:
    rows = len(columns[0])
    hashes = _start(rows, np.uint32(salt), np.uint64(SEED))
    for column in columns:
        _fold(hashes, column, salt)
    return hashes


def _fold(hashes: UInt64Array, column: pa.Array, salt: int) -> None:
    """Add a column to the hashes: whether it is NULL, then its value."""
    valid = buffers.valid(column)
    data_type = column.type
    if pa.types.is_struct(data_type):
        _fold_flags(hashes, valid)
        # Flattened, the fields of a struct that is NULL are NULL.
        for child in column.flatten():
            _fold(hashes, child, salt)
    elif pa.types.is_list(data_type):
        offsets = np.asarray(column.offsets, np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        elements = column.values.slice(first, last - first)
        _fold_lists(hashes, offsets - first, _half([elements], salt), valid)
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        _fold_bytes(hashes, *_bytes(column), valid)
    elif buffers.is_wide(data_type):
        # Named, so that it lives as long as the kernel reads its bytes.
        digits = pa.array([_big_endian(v) for v in column.to_pylist()], pa.binary())
        _fold_bytes(hashes, *_bytes(digits), valid)
    else:
        values = buffers.numbers(column)
        if values.itemsize == 8:
            _fold_64(hashes, values.view(np.uint64), valid)
        else:
            _fold_32(hashes, values.astype(np.int32).view(np.uint32), valid)


def _bytes(column: pa.Array) -> tuple[Int32Array, int]:
    """Offsets of strings, and the address of their bytes."""
    data = column.buffers()[2]
    return buffers.offsets(column), 0 if data is None else data.address


def _big_endian(value: Any) -> bytes | None:
    """A decimal's digits as the shortest two's complement, as Java writes them."""
    if value is None:
        return None
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


@kernel
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return np.uint64((value << np.uint64(bits)) | (value >> np.uint64(64 - bits)))


@kernel
def _mixed(value: np.uint64) -> np.uint64:
    value ^= value >> np.uint64(33)
    value *= PRIME_2
    value ^= value >> np.uint64(29)
    value *= PRIME_3
    return np.uint64(value ^ (value >> np.uint64(32)))


@kernel
def _hash_32(value: np.uint32, seed: np.uint64) -> np.uint64:
    found = (seed + PRIME_5 + np.uint64(4)) ^ (np.uint64(value) * PRIME_1)
    return _mixed(_rotated(found, 23) * PRIME_2 + PRIME_3)


@kernel
def _hash_64(value: np.uint64, seed: np.uint64) -> np.uint64:
    found = (seed + PRIME_5 + np.uint64(8)) ^ (_rotated(value * PRIME_2, 31) * PRIME_1)
    return _mixed(_rotated(found, 27) * PRIME_1 + PRIME_4)


@kernel
def _hash_bytes(address: np.uint64, length: np.int64, seed: np.uint64) -> np.uint64:
    at = address
    left = np.int64(length)
    if left >= 32:
        a = seed + PRIME_1 + PRIME_2
        b = seed + PRIME_2
        c = seed
        d = seed - PRIME_1
        while left >= 32:
            a = _rotated(a + load_u64(at) * PRIME_2, 31) * PRIME_1
            b = _rotated(b + load_u64(at + np.uint64(8)) * PRIME_2, 31) * PRIME_1
            c = _rotated(c + load_u64(at + np.uint64(16)) * PRIME_2, 31) * PRIME_1
            d = _rotated(d + load_u64(at + np.uint64(24)) * PRIME_2, 31) * PRIME_1
            at += np.uint64(32)
            left -= 32
        found = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        found = (found ^ (_rotated(a * PRIME_2, 31) * PRIME_1)) * PRIME_1 + PRIME_4
        found = (found ^ (_rotated(b * PRIME_2, 31) * PRIME_1)) * PRIME_1 + PRIME_4
        found = (found ^ (_rotated(c * PRIME_2, 31) * PRIME_1)) * PRIME_1 + PRIME_4
        found = (found ^ (_rotated(d * PRIME_2, 31) * PRIME_1)) * PRIME_1 + PRIME_4
    else:
        found = seed + PRIME_5
    found += np.uint64(length)
    while left >= 8:
        found ^= _rotated(load_u64(at) * PRIME_2, 31) * PRIME_1
        found = _rotated(found, 27) * PRIME_1 + PRIME_4
        at += np.uint64(8)
        left -= 8
    if left >= 4:
        found ^= np.uint64(load_u32(at)) * PRIME_1
        found = _rotated(found, 23) * PRIME_2 + PRIME_3
        at += np.uint64(4)
        left -= 4
    while left > 0:
        found ^= np.uint64(load_u8(at)) * PRIME_5
        found = _rotated(found, 11) * PRIME_1
        at += np.uint64(1)
        left -= 1
    return _mixed(found)


@kernel
def _start(rows: int, salt: np.uint32, seed: np.uint64) -> UInt64Array:
    return np.full(rows, _hash_32(salt, seed), np.uint64)


@kernel
def _fold_flags(hashes: UInt64Array, valid: BoolArray) -> None:
    for i in range(len(hashes)):
        hashes[i] = _hash_32(np.uint32(0 if valid[i] else 1), hashes[i])


@kernel
def _fold_32(hashes: UInt64Array, values: UInt32Array, valid: BoolArray) -> None:
    for i in range(len(hashes)):
        if valid[i]:
            hashes[i] = _hash_32(values[i], _hash_32(np.uint32(0), hashes[i]))
        else:
            hashes[i] = _hash_32(np.uint32(1), hashes[i])


@kernel
def _fold_64(hashes: UInt64Array, values: UInt64Array, valid: BoolArray) -> None:
    for i in range(len(hashes)):
        if valid[i]:
            hashes[i] = _hash_64(values[i], _hash_32(np.uint32(0), hashes[i]))
        else:
            hashes[i] = _hash_32(np.uint32(1), hashes[i])


@kernel
def _fold_bytes(hashes: UInt64Array, offsets: Int32Array, address: int, valid: BoolArray) -> None:
    for i in range(len(hashes)):
        if valid[i]:
            start = np.uint64(address) + np.uint64(offsets[i])
            length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
            hashes[i] = _hash_bytes(start, length, _hash_32(np.uint32(0), hashes[i]))
        else:
            hashes[i] = _hash_32(np.uint32(1), hashes[i])


@kernel
def _fold_lists(
    hashes: UInt64Array, offsets: Int64Array, elements: UInt64Array, valid: BoolArray
) -> None:
    """The flag, the number of elements, and each element's own hash."""
    for i in range(len(hashes)):
        if valid[i]:
            found = _hash_32(np.uint32(0), hashes[i])
            found = _hash_32(np.uint32(offsets[i + 1] - offsets[i]), found)
            for j in range(offsets[i], offsets[i + 1]):
                found = _hash_64(elements[j], found)
            hashes[i] = found
        else:
            hashes[i] = _hash_32(np.uint32(1), hashes[i])
