"""SHA-256 of many short messages at once.

`hashlib` takes a microsecond for each, most of it around the hash. This kernel takes less than half
of that, and releases the interpreter lock once for all. `tests/unit/keygroups` compares the two.
"""

from __future__ import annotations

import math

import numpy as np

from millrace.arrays import Int64Array, UInt8Array, UInt32Array, UInt64Array
from millrace.jit import inlined, kernel

SALT = 8
"""Bytes of the salt in front of each message."""

_PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, math.isqrt(n) + 1))]


def _root_bits(number: int, root: int) -> int:
    """The first 32 bits behind the point of a number's square or cube root."""
    scaled = number << 32 * root
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**root <= scaled else (low, middle - 1)
    return low & 0xFFFFFFFF


_START = np.asarray([_root_bits(p, 2) for p in _PRIMES[:8]], np.uint32)
_ROUND = np.asarray([_root_bits(p, 3) for p in _PRIMES[:64]], np.uint32)


def hashed(
    data: UInt8Array, starts: Int64Array, salt: int, prefixes: UInt8Array | None = None
) -> tuple[UInt64Array, UInt64Array]:
    """The first two words, little-endian, of the hash of the salt and each message.

    Messages may have prefixes, a row each.
    """
    if prefixes is None:
        prefixes = np.empty((len(starts) - 1, 0), np.uint8)
    longest = SALT + prefixes.shape[1] + int(np.diff(starts).max(initial=0))
    room = np.zeros((longest + 9 + 63) // 64 * 64, np.uint8)
    room[:SALT] = np.frombuffer(salt.to_bytes(SALT, "little"), np.uint8)
    return _hashed(data, starts, prefixes, room, _START, _ROUND)


@inlined
def _rotated(value: np.uint32, bits: int) -> np.uint32:
    return np.uint32((value >> np.uint32(bits)) | (value << np.uint32(32 - bits)))


@kernel
def _hashed(
    data: UInt8Array,
    starts: Int64Array,
    prefixes: UInt8Array,
    room: UInt8Array,
    start: UInt32Array,
    constants: UInt32Array,
) -> tuple[UInt64Array, UInt64Array]:
    rows = len(starts) - 1
    hi = np.empty(rows, np.uint64)
    lo = np.empty(rows, np.uint64)
    state = np.empty(8, np.uint32)
    words = np.empty(64, np.uint32)
    for row in range(rows):
        length = SALT
        for i in range(prefixes.shape[1]):
            room[length] = prefixes[row, i]
            length += 1
        for i in range(starts[row], starts[row + 1]):
            room[length] = data[i]
            length += 1
        end = (length + 9 + 63) // 64 * 64
        room[length] = 0x80
        room[length + 1 : end - 8] = 0
        for i in range(8):
            room[end - 1 - i] = ((length * 8) >> (8 * i)) & 255
        state[:] = start
        for first in range(0, end, 64):
            _compress(state, room, first, words, constants)
        hi[row] = _word(state[0], state[1])
        lo[row] = _word(state[2], state[3])
    return hi, lo


@inlined
def _word(first: np.uint32, second: np.uint32) -> np.uint64:
    """Eight bytes of a hash, which is big-endian, as a little-endian number."""
    both = (np.uint64(first) << np.uint64(32)) | np.uint64(second)
    low = np.uint64(0x00FF00FF00FF00FF)
    both = ((both & low) << np.uint64(8)) | ((both >> np.uint64(8)) & low)
    low = np.uint64(0x0000FFFF0000FFFF)
    both = ((both & low) << np.uint64(16)) | ((both >> np.uint64(16)) & low)
    return np.uint64((both << np.uint64(32)) | (both >> np.uint64(32)))


@kernel
def _compress(
    state: UInt32Array, room: UInt8Array, first: int, words: UInt32Array, constants: UInt32Array
) -> None:
    for i in range(16):
        at = first + 4 * i
        words[i] = (
            (np.uint32(room[at]) << np.uint32(24))
            | (np.uint32(room[at + 1]) << np.uint32(16))
            | (np.uint32(room[at + 2]) << np.uint32(8))
            | np.uint32(room[at + 3])
        )
    for i in range(16, 64):
        x, y = words[i - 15], words[i - 2]
        small = _rotated(x, 7) ^ _rotated(x, 18) ^ np.uint32(x >> np.uint32(3))
        large = _rotated(y, 17) ^ _rotated(y, 19) ^ np.uint32(y >> np.uint32(10))
        words[i] = np.uint32(words[i - 16] + small + words[i - 7] + large)
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        large = _rotated(e, 6) ^ _rotated(e, 11) ^ _rotated(e, 25)
        chosen = np.uint32(g ^ (e & (f ^ g)))
        one = np.uint32(h + large + chosen + constants[i] + words[i])
        small = _rotated(a, 2) ^ _rotated(a, 13) ^ _rotated(a, 22)
        most = np.uint32((a & b) | (c & (a | b)))
        h, g, f = g, f, e
        e = np.uint32(d + one)
        d, c, b = c, b, a
        a = np.uint32(one + small + most)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h
