"""The delta index: fingerprint -> address of the newest row, for rows not in the base.

One open-addressing table per key group, so that a key group can be dropped when its base takes the
rows over, and so that growing never rehashes more than one key group. A slot is three words: hi,
lo, address; address 0 is an empty slot. Nothing is ever removed from a table: deletions are rows
with the deleted bit in their address.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.state._jit import kernel, load_u64, store_u64

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

MIN_SLOTS = 16
_SLOT_BYTES = 24


class DeltaIndex:
    """The tables of all key groups."""

    def __init__(self, key_groups: int) -> None:
        self.tables: list[UInt64Array | None] = [None] * key_groups
        self.pointers: UInt64Array = np.zeros(key_groups, np.uint64)
        self.masks: UInt64Array = np.zeros(key_groups, np.uint64)
        self.counts: Int64Array = np.zeros(key_groups, np.int64)

    def reserve(self, groups: Int64Array, more: Int64Array) -> None:
        """Make room for `more[i]` rows in key group `groups[i]`, at a load of at most 5/8."""
        slots = np.where(self.pointers[groups] == 0, 0, self.masks[groups].astype(np.int64) + 1)
        short = (self.counts[groups] + more) * 8 > slots * 5
        for group, rows in zip(groups[short].tolist(), more[short].tolist(), strict=True):
            self._grow(group, int(self.counts[group]) + rows)

    def _grow(self, group: int, rows: int) -> None:
        slots = MIN_SLOTS
        while rows * 8 > slots * 5:
            slots *= 2
        table = np.zeros(3 * slots, np.uint64)
        old = self.tables[group]
        if old is not None:
            _rehash(old, table)
        self.tables[group] = table
        self.pointers[group] = table.ctypes.data
        self.masks[group] = slots - 1

    def upsert(
        self,
        hi: UInt64Array,
        lo: UInt64Array,
        addresses: UInt64Array,
        shift: int,
    ) -> None:
        """Point each fingerprint at its new address. Room must have been reserved."""
        _upsert(hi, lo, addresses, np.uint64(shift), self.pointers, self.masks, self.counts)

    def upsert_rows(
        self, hi: UInt64Array, lo: UInt64Array, first_address: np.uint64, shift: int
    ) -> None:
        """The same for rows whose addresses follow each other."""
        _upsert_rows(
            hi, lo, first_address, np.uint64(shift), self.pointers, self.masks, self.counts
        )

    def drop(self, group: int) -> None:
        self.tables[group] = None
        self.pointers[group] = 0
        self.masks[group] = 0
        self.counts[group] = 0

    def entries(self, group: int) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
        """hi, lo and address of all rows of a key group, in no order."""
        table = self.tables[group]
        if table is None:
            empty = np.empty(0, np.uint64)
            return empty, empty, empty
        return _entries(table, int(self.counts[group]))

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self.tables if table is not None)

    def group_bytes(self, group: int) -> int:
        table = self.tables[group]
        return table.nbytes if table is not None else 0


@kernel
def _rehash(old: UInt64Array, new: UInt64Array) -> None:
    mask = np.uint64(len(new) // 3 - 1)
    for slot in range(len(old) // 3):
        if old[3 * slot + 2] != 0:
            at = np.int64(old[3 * slot + 1] & mask)
            while new[3 * at + 2] != 0:
                at = (at + 1) & np.int64(mask)
            new[3 * at] = old[3 * slot]
            new[3 * at + 1] = old[3 * slot + 1]
            new[3 * at + 2] = old[3 * slot + 2]


@kernel
def _upsert(
    hi: UInt64Array,
    lo: UInt64Array,
    addresses: UInt64Array,
    shift: np.uint64,
    pointers: UInt64Array,
    masks: UInt64Array,
    counts: Int64Array,
) -> None:
    for i in range(len(hi)):
        _put(hi[i], lo[i], addresses[i], np.int64(hi[i] >> shift), pointers, masks, counts)


@kernel
def _upsert_rows(
    hi: UInt64Array,
    lo: UInt64Array,
    first_address: np.uint64,
    shift: np.uint64,
    pointers: UInt64Array,
    masks: UInt64Array,
    counts: Int64Array,
) -> None:
    for i in range(len(hi)):
        address = first_address + np.uint64(i)
        _put(hi[i], lo[i], address, np.int64(hi[i] >> shift), pointers, masks, counts)


@kernel
def _put(
    hi: np.uint64,
    lo: np.uint64,
    address: np.uint64,
    group: np.int64,
    pointers: UInt64Array,
    masks: UInt64Array,
    counts: Int64Array,
) -> None:
    word = np.uint64(8)
    table = pointers[group]
    mask = masks[group]
    slot = lo & mask
    while True:
        at = table + slot * np.uint64(_SLOT_BYTES)
        found = load_u64(at + word + word)
        if found == 0:
            store_u64(at, hi)
            store_u64(at + word, lo)
            store_u64(at + word + word, address)
            counts[group] += 1
            break
        if load_u64(at + word) == lo and load_u64(at) == hi:
            store_u64(at + word + word, address)
            break
        slot = (slot + np.uint64(1)) & mask


@kernel
def _entries(table: UInt64Array, count: int) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
    hi = np.empty(count, np.uint64)
    lo = np.empty(count, np.uint64)
    address = np.empty(count, np.uint64)
    n = 0
    for slot in range(len(table) // 3):
        if table[3 * slot + 2] != 0:
            hi[n] = table[3 * slot]
            lo[n] = table[3 * slot + 1]
            address[n] = table[3 * slot + 2]
            n += 1
    return hi, lo, address
