"""The base: per key group, rows sorted by fingerprint in a mapped page, and how to find one.

A radix directory over the bits below the key group tells, for about every eight rows, where they
begin; fingerprints are uniform, so a look-up reads one directory entry and a cache line or two of
`hi`. The directory is built from the page when the key group is first touched, and is small: four
bytes for eight rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.state._jit import kernel, load_u32, load_u64

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


class BaseTable:
    """Where each key group's base rows are."""

    def __init__(self, key_groups: int) -> None:
        self._group_bits = key_groups.bit_length() - 1
        self.chunks: Int64Array = np.zeros(key_groups, np.int64)
        self.first_rows: Int64Array = np.zeros(key_groups, np.int64)
        self.rows: Int64Array = np.zeros(key_groups, np.int64)
        self.hi_pointers: UInt64Array = np.zeros(key_groups, np.uint64)
        self.lo_pointers: UInt64Array = np.zeros(key_groups, np.uint64)
        self.directories: list[npt.NDArray[np.uint32] | None] = [None] * key_groups
        self.directory_pointers: UInt64Array = np.zeros(key_groups, np.uint64)
        self.directory_shifts: UInt64Array = np.zeros(key_groups, np.uint64)

    def set(self, group: int, chunk: int, first_row: int, hi: UInt64Array, lo: UInt64Array) -> None:
        """`hi` and `lo` are views of the page; the caller keeps the page alive."""
        rows = len(hi)
        bits = max(rows // 8, 1).bit_length()
        directory = _directory(hi, np.uint64(self._group_bits), np.uint64(64 - bits))
        self.chunks[group] = chunk
        self.first_rows[group] = first_row
        self.rows[group] = rows
        self.hi_pointers[group] = hi.ctypes.data
        self.lo_pointers[group] = lo.ctypes.data
        self.directories[group] = directory
        self.directory_pointers[group] = directory.ctypes.data
        self.directory_shifts[group] = 64 - bits

    def drop(self, group: int) -> None:
        self.rows[group] = 0
        self.chunks[group] = 0
        self.directories[group] = None

    @property
    def bytes(self) -> int:
        return sum(d.nbytes for d in self.directories if d is not None)


@kernel
def _directory(hi: UInt64Array, group_bits: np.uint64, shift: np.uint64) -> npt.NDArray[np.uint32]:
    buckets = np.int64(1) << np.int64(np.uint64(64) - shift)
    directory = np.empty(buckets + 1, np.uint32)
    row = 0
    for bucket in range(buckets):
        while row < len(hi) and np.int64((hi[row] << group_bits) >> shift) < bucket:
            row += 1
        directory[bucket] = row
    directory[buckets] = len(hi)
    return directory


@kernel
def find(
    hi: UInt64Array,
    lo: UInt64Array,
    shift: np.uint64,
    index_pointers: UInt64Array,
    index_masks: UInt64Array,
    base_rows: Int64Array,
    base_chunks: Int64Array,
    base_first: Int64Array,
    base_hi: UInt64Array,
    base_lo: UInt64Array,
    directory_pointers: UInt64Array,
    directory_shifts: UInt64Array,
) -> UInt64Array:
    """The address of each fingerprint's row: delta first, then base; 0 where there is none."""
    n = len(hi)
    out = np.zeros(n, np.uint64)
    group_bits = np.uint64(64) - shift
    word = np.uint64(8)
    for i in range(n):
        group = np.int64(hi[i] >> shift)
        table = index_pointers[group]
        if table != 0:
            mask = index_masks[group]
            slot = lo[i] & mask
            address = np.uint64(0)
            while True:
                at = table + slot * np.uint64(24)
                address = load_u64(at + word + word)
                if address == 0:
                    break
                if load_u64(at + word) == lo[i] and load_u64(at) == hi[i]:
                    break
                slot = (slot + np.uint64(1)) & mask
            if address != 0:
                if address >> np.uint64(63) == 0:
                    out[i] = address
                continue
        if base_rows[group] != 0:
            bucket = (hi[i] << group_bits) >> directory_shifts[group]
            entry = directory_pointers[group] + bucket * np.uint64(4)
            row = np.int64(load_u32(entry))
            last = np.int64(load_u32(entry + np.uint64(4)))
            # Entries of one collection have almost the same fingerprint: buckets can be large.
            while last - row > 16:
                middle = (row + last) // 2
                there = load_u64(base_hi[group] + np.uint64(middle) * word)
                if there < hi[i] or (
                    there == hi[i] and load_u64(base_lo[group] + np.uint64(middle) * word) < lo[i]
                ):
                    row = middle + 1
                else:
                    last = middle + 1
            while row < last:
                there = load_u64(base_hi[group] + np.uint64(row) * word)
                if there > hi[i]:
                    break
                if there == hi[i] and load_u64(base_lo[group] + np.uint64(row) * word) == lo[i]:
                    out[i] = (np.uint64(base_chunks[group]) << np.uint64(40)) | np.uint64(
                        base_first[group] + row
                    )
                    break
                row += 1
    return out


@kernel
def merge_addresses(
    base_hi: UInt64Array,
    base_lo: UInt64Array,
    base_address: np.uint64,
    hi: UInt64Array,
    lo: UInt64Array,
    address: UInt64Array,
    keep_deleted: bool,
) -> UInt64Array:
    """Sorted base + sorted delta -> addresses of the merged rows; the delta wins."""
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
        if keep_deleted or address[j] >> np.uint64(63) == 0:
            out[k] = address[j]
            k += 1
        j += 1
    return out[:k]
