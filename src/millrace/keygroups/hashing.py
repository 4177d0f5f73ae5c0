"""Fingerprints outside Spark: the same 128 bits as Spark's tasks compute, from Arrow arrays.

To look a key up without Spark, as a look-up server does, takes the fingerprint that it had when it
was written. In scheme 2, a key's encoding of up to 15 bytes is mixed by a permutation, so that no
two such keys have one fingerprint; a longer one is hashed with SHA-256. The highest bit of `lo`
says which of the two was done, so neither can be mistaken for the other.

Invariant: for every key type, `Fingerprints.java` gives the same bits. The one exception is a
string with a collation, whose collation key only Spark can compute: `keys.check_computable` refuses
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from millrace.arrays import BoolArray, Int64Array, UInt8Array, UInt64Array
from millrace.jit import kernel
from millrace.keygroups import buffers, chained, sha256
from millrace.keygroups.encoding import Encoded, encoded
from millrace.keygroups.scheme import Scheme

SHORT = 15
"""The longest encoding, in bytes, that is mixed and not hashed."""
HASHED = np.uint64(1 << 63)
"""The bit of `lo` that hashed keys have."""

Words = tuple[UInt64Array, UInt64Array]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_LENGTH = np.uint64(56)
"""Where the length of a short encoding is in its second word."""


def fingerprints(columns: Sequence[pa.Array], scheme: Scheme) -> Words:
    """Both halves of the fingerprint of each key.

    The columns have exactly the Arrow types in which the state keeps the key columns.
    """
    if scheme.version == 1:
        return chained.fingerprints(columns)
    rounds = _rounds(scheme.salt)
    if len(columns) == 1 and _is_number(columns[0].type):
        values = buffers.numbers(columns[0])
        kept = values.astype(np.int64).view(np.uint64)
        return _number_words(kept, values.itemsize, buffers.valid(columns[0]), rounds)
    data, starts = encoded(columns)
    hi, lo = _short_words(data, starts, rounds)
    long = np.flatnonzero(np.diff(starts) > SHORT)
    if len(long):
        hi[long], lo[long] = sha256.hashed(*_picked(data, starts, long), scheme.salt)
        lo[long] |= HASHED
    return hi, lo


def digests(keys: Iterable[bytes], scheme: Scheme) -> Words:
    """128 bits for each of some keys that Millrace encodes itself, such as those of a broadcast
    state's entries."""
    if scheme.version == 1:
        return _split(b"".join(map(xxhash.xxh3_128_digest, keys)), ">u8")
    return sha256.hashed(*_joined(list(keys)), scheme.salt)


def entry_digests(owners: Words, keys: Iterable[bytes], scheme: Scheme) -> Words:
    """128 bits for each entry of a collection, from the fingerprint of its owner and its key."""
    if scheme.version == 1:
        seeds = owners[1].tolist()
        return _split(b"".join(map(xxhash.xxh3_128_digest, keys, seeds)), ">u8")
    names = np.stack(owners, axis=1).view(np.uint8)
    return sha256.hashed(*_joined(list(keys)), scheme.salt, names)


def _joined(parts: list[bytes]) -> Encoded:
    starts = np.cumsum([0, *map(len, parts)])
    return np.frombuffer(b"".join(parts), np.uint8), starts


@kernel
def _picked(data: UInt8Array, starts: Int64Array, rows: Int64Array) -> Encoded:
    """Some rows of an encoding."""
    picked = np.zeros(len(rows) + 1, np.int64)
    for i in range(len(rows)):
        picked[i + 1] = picked[i] + starts[rows[i] + 1] - starts[rows[i]]
    out = np.empty(picked[-1], np.uint8)
    for i in range(len(rows)):
        out[picked[i] : picked[i + 1]] = data[starts[rows[i]] : starts[rows[i] + 1]]
    return out, picked


def _split(joined: bytes, word: str) -> Words:
    words = np.frombuffer(joined, word).astype(np.uint64).reshape(-1, 2)
    return words[:, 0].copy(), words[:, 1].copy()


def _is_number(data_type: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or buffers.is_wide(data_type)
    )


def _rounds(salt: int) -> UInt64Array:
    """What the four rounds of the permutation begin with."""
    return np.asarray([_mixed_int((salt + i * _GOLDEN) & _MASK) for i in range(1, 5)], np.uint64)


def _mixed_int(v: int) -> int:
    v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & _MASK
    return v ^ (v >> 31)


@kernel
def _mixed(v: np.uint64) -> np.uint64:
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(v ^ (v >> np.uint64(31)))


@kernel
def _permuted(x: np.uint64, y: np.uint64, rounds: UInt64Array) -> tuple[np.uint64, np.uint64]:
    """A permutation of 64 and 63 bits, four rounds of a Feistel network: it can be undone round by
    round, whatever `_mixed` does."""
    x ^= _mixed(y + rounds[0])
    y ^= _mixed(x + rounds[1]) >> np.uint64(1)
    x ^= _mixed(y + rounds[2])
    y ^= _mixed(x + rounds[3]) >> np.uint64(1)
    return x, y


@kernel
def _number_words(
    values: UInt64Array, width: int, valid: BoolArray, rounds: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """What `_short_words` gives for the encoding of a number: 1 and its bytes, or 0."""
    hi = np.empty(len(values), np.uint64)
    lo = np.empty(len(values), np.uint64)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * width)
    length = np.uint64(1 + width) << _LENGTH
    for i in range(len(values)):
        if valid[i]:
            value = values[i] & mask
            x = np.uint64(1) | (value << np.uint64(8))
            hi[i], lo[i] = _permuted(x, (value >> _LENGTH) | length, rounds)
        else:
            hi[i], lo[i] = _permuted(np.uint64(0), np.uint64(1) << _LENGTH, rounds)
    return hi, lo


@kernel
def _short_words(
    data: UInt8Array, starts: Int64Array, rounds: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprints of short encodings: 15 bytes, padded with zeros, and their number."""
    rows = len(starts) - 1
    hi = np.zeros(rows, np.uint64)
    lo = np.zeros(rows, np.uint64)
    for i in range(rows):
        length = starts[i + 1] - starts[i]
        if length > SHORT:
            continue
        x = np.uint64(0)
        y = np.uint64(length) << _LENGTH
        for j in range(length):
            byte = np.uint64(data[starts[i] + j])
            if j < 8:
                x |= byte << np.uint64(8 * j)
            else:
                y |= byte << np.uint64(8 * (j - 8))
        hi[i], lo[i] = _permuted(x, y, rounds)
    return hi, lo
