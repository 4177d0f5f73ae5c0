"""The base: per key group, rows sorted by fingerprint in a mapped page, and how to find one.

A radix directory over the bits below the key group says, for about every eight rows, where they
begin. Fingerprints are uniform, so a look-up reads one directory entry and a cache line or two of
`hi`. The directory is built from the page when the key group is first touched, and is small: four
bytes for eight rows.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import RecordArray, UInt32Array, UInt64Array
from millrace.jit import inlined, kernel, load_u32, word_at
from millrace.state.addresses import DELETED_BIT, ROW_BITS
from millrace.state.index import newest

ROWS_PER_ENTRY = 8
"""A directory has an entry for at most this many rows on average, and for at least half of them."""
WALK_ROWS = 16
"""So few rows are compared one after the other; more are halved first."""

HASH_BITS = np.uint64(64)
"""Of `hi`, from which a key group and a directory's entry are taken."""
_ENTRY_BYTES = np.uint64(4)


BASE = np.dtype(
    [
        ("rows", np.uint64),  # how many there are
        ("chunk", np.uint64),
        ("first_row", np.uint64),  # in the chunk
        ("hi", np.uint64),  # a pointer to the first row's `hi`
        ("lo", np.uint64),
        ("directory", np.uint64),  # a pointer to its first entry
        ("shift", np.uint64),  # of the bits below the key group, to get the directory's entry
    ],
    align=True,
)
"""Where a key group's base is, as kernels see it."""


class BaseTable:
    """The bases of all key groups."""

    def __init__(self, key_groups: int) -> None:
        self._group_bits = np.uint64(key_groups.bit_length() - 1)
        self._directories: list[UInt32Array | None] = [None] * key_groups
        self.bases: RecordArray = np.zeros(key_groups, BASE)

    def set(self, group: int, chunk: int, first_row: int, hi: UInt64Array, lo: UInt64Array) -> None:
        """`hi` and `lo` are views of the page; the caller keeps the page alive."""
        rows = len(hi)
        shift = HASH_BITS - np.uint64(max(rows // ROWS_PER_ENTRY, 1).bit_length())
        directory = _directory(hi, self._group_bits, shift)
        pointers = hi.ctypes.data, lo.ctypes.data, directory.ctypes.data
        self.bases[group] = (rows, chunk, first_row, *pointers, shift)
        self._directories[group] = directory

    def drop(self, group: int) -> None:
        self.bases[group] = 0
        self._directories[group] = None

    def slice(self, group: int) -> tuple[int, int, int]:
        """Where the base of a key group is: chunk, first row, number of rows."""
        base = self.bases[group]
        return int(base["chunk"]), int(base["first_row"]), int(base["rows"])

    @property
    def bytes(self) -> int:
        return sum(d.nbytes for d in self._directories if d is not None)


@kernel
def _directory(hi: UInt64Array, group_bits: np.uint64, shift: np.uint64) -> UInt32Array:
    buckets = np.int64(1) << np.int64(HASH_BITS - shift)
    directory = np.empty(buckets + 1, np.uint32)
    row = 0
    for bucket in range(buckets):
        while row < len(hi) and np.int64((hi[row] << group_bits) >> shift) < bucket:
            row += 1
        directory[bucket] = row
    directory[buckets] = len(hi)
    return directory


@inlined
def at_or_after(base: np.void, group_bits: np.uint64, hi: np.uint64, lo: np.uint64) -> np.uint64:
    """The first row of a base whose fingerprint is not below this one; it may be the end."""
    entry = base["directory"] + ((hi << group_bits) >> base["shift"]) * _ENTRY_BYTES
    row = np.uint64(load_u32(entry))
    end = np.uint64(load_u32(entry + _ENTRY_BYTES))
    # Entries of one collection have almost the same fingerprint: buckets can be large.
    while end - row > np.uint64(WALK_ROWS):
        middle = (row + end) >> np.uint64(1)
        there = word_at(base["hi"], middle)
        if there < hi or (there == hi and word_at(base["lo"], middle) < lo):
            row = middle + np.uint64(1)
        else:
            end = middle
    while row < end:
        there = word_at(base["hi"], row)
        if there > hi or (there == hi and word_at(base["lo"], row) >= lo):
            break
        row += np.uint64(1)
    return row


@inlined
def base_address(base: np.void, row: np.uint64) -> np.uint64:
    """The address of a row of a base."""
    return np.uint64((base["chunk"] << np.uint64(ROW_BITS)) | (base["first_row"] + row))


@inlined
def _find_in_base(base: np.void, group_bits: np.uint64, hi: np.uint64, lo: np.uint64) -> np.uint64:
    """The address of a fingerprint's row; 0 if the base has none."""
    if base["rows"] == 0:
        return np.uint64(0)
    row = at_or_after(base, group_bits, hi, lo)
    if row == base["rows"] or word_at(base["hi"], row) != hi or word_at(base["lo"], row) != lo:
        return np.uint64(0)
    return base_address(base, row)


@kernel
def find(
    hi: UInt64Array,
    lo: UInt64Array,
    shift: np.uint64,
    over: RecordArray,
    tables: RecordArray,
    bases: RecordArray,
) -> UInt64Array:
    """The address of each fingerprint's row; 0 where there is none.

    `over` has the rows of an overlay, which come first, and no tables if there is none; then come
    the deltas' rows, then those of the base.
    """
    out = np.zeros(len(hi), np.uint64)
    group_bits = HASH_BITS - shift
    is_laid_over = len(over) > 0
    for i in range(len(hi)):
        group = np.int64(hi[i] >> shift)
        address = np.uint64(0)
        if is_laid_over:
            address = newest(over[group], hi[i], lo[i])
        if address == 0:
            address = newest(tables[group], hi[i], lo[i])
        if address == 0:
            out[i] = _find_in_base(bases[group], group_bits, hi[i], lo[i])
        elif address & DELETED_BIT == 0:
            out[i] = address
    return out


@kernel
def find_in_bases(
    hi: UInt64Array, lo: UInt64Array, shift: np.uint64, bases: RecordArray
) -> UInt64Array:
    """The address of each fingerprint's row in its base, whatever came later."""
    out = np.empty(len(hi), np.uint64)
    group_bits = HASH_BITS - shift
    for i in range(len(hi)):
        out[i] = _find_in_base(bases[np.int64(hi[i] >> shift)], group_bits, hi[i], lo[i])
    return out


@kernel
def merge_addresses(
    base_hi: UInt64Array,
    base_lo: UInt64Array,
    base_address: np.uint64,
    hi: UInt64Array,
    lo: UInt64Array,
    address: UInt64Array,
) -> UInt64Array:
    """Sorted base + sorted delta -> addresses of the rows that remain; the delta wins."""
    n = len(base_hi)
    m = len(hi)
    out = np.empty(n + m, np.uint64)
    i = 0
    j = 0
    k = 0
    while i < n or j < m:
        if j == m or (
            i < n and (base_hi[i] < hi[j] or (base_hi[i] == hi[j] and base_lo[i] < lo[j]))
        ):
            out[k] = base_address + np.uint64(i)
            k += 1
            i += 1
            continue
        if i < n and base_hi[i] == hi[j] and base_lo[i] == lo[j]:
            i += 1
        if address[j] & DELETED_BIT == 0:
            out[k] = address[j]
            k += 1
        j += 1
    return out[:k]
