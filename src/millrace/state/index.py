"""The delta index: fingerprint -> address of the newest row, for rows that are not in the base.

Each key group has an open-addressing table of its own. So a key group can be dropped when its base
takes over the rows, and growing rehashes one key group at a time. A slot is three words: hi, lo,
address; an address of 0 marks an empty slot. Nothing is ever removed from a table: a deletion is a
row with the deleted bit in its address.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, RecordArray, UInt64Array
from millrace.jit import WORD, inlined, kernel, load_u64, store_u64

MIN_SLOTS = 16
SLOT_WORDS = 3
LOAD = (5, 8)
"""At most five of eight slots are in use."""

_HI, _LO, _ADDRESS = range(SLOT_WORDS)
_SLOT_BYTES = np.uint64(SLOT_WORDS) * WORD
_TO_LO = np.uint64(_LO) * WORD
_TO_ADDRESS = np.uint64(_ADDRESS) * WORD
_NEXT = np.uint64(1)
_EMPTY = np.uint64(0)


TABLE = np.dtype(
    [
        ("pointer", np.uint64),  # to the first slot; 0 if there is no table
        ("mask", np.uint64),  # the number of slots, a power of two, less one
        ("count", np.int64),  # slots in use
    ],
    align=True,
)
"""A key group's table, as kernels see it."""

NO_TABLES: RecordArray = np.zeros(0, TABLE)
"""What stands for the tables of an index that is not there."""


class DeltaIndex:
    """The tables of all key groups."""

    def __init__(self, key_groups: int) -> None:
        self._slots: list[UInt64Array | None] = [None] * key_groups
        self.tables: RecordArray = np.zeros(key_groups, TABLE)

    def reserve(self, groups: Int64Array, more: Int64Array) -> None:
        """Make room for `more[i]` rows in key group `groups[i]`."""
        tables = self.tables[groups]
        slots = np.where(tables["pointer"] == 0, 0, tables["mask"].astype(np.int64) + 1)
        rows = tables["count"] + more
        used, of = LOAD
        short = rows * of > slots * used
        for group, needed in zip(groups[short].tolist(), rows[short].tolist(), strict=True):
            self._grow(group, needed)

    def _grow(self, group: int, rows: int) -> None:
        slots = MIN_SLOTS
        used, of = LOAD
        while rows * of > slots * used:
            slots *= 2
        table = np.zeros(SLOT_WORDS * slots, np.uint64)
        old = self._slots[group]
        if old is not None:
            _rehash(old, np.uint64(table.ctypes.data), np.uint64(slots - 1))
        self._slots[group] = table
        self.tables[group]["pointer"] = table.ctypes.data
        self.tables[group]["mask"] = slots - 1

    def upsert(self, hi: UInt64Array, lo: UInt64Array, addresses: UInt64Array, shift: int) -> None:
        """Point each fingerprint at its new address. The room must have been reserved."""
        _upsert(self.tables, hi, lo, addresses, np.uint64(shift))

    def upsert_rows(
        self, hi: UInt64Array, lo: UInt64Array, first_address: np.uint64, shift: int
    ) -> None:
        """The same for rows whose addresses follow each other."""
        _upsert_rows(self.tables, hi, lo, first_address, np.uint64(shift))

    def drop(self, group: int) -> None:
        self._slots[group] = None
        self.tables[group] = 0

    def entries(self, group: int) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
        """hi, lo and address of all rows of a key group, in no order."""
        slots = self._slots[group]
        if slots is None:
            empty = np.empty(0, np.uint64)
            return empty, empty, empty
        return _entries(slots, int(self.tables[group]["count"]))

    @property
    def bytes(self) -> int:
        return sum(slots.nbytes for slots in self._slots if slots is not None)

    def group_bytes(self, group: int) -> int:
        slots = self._slots[group]
        return slots.nbytes if slots is not None else 0


@inlined
def _probe(table: np.uint64, mask: np.uint64, hi: np.uint64, lo: np.uint64) -> np.uint64:
    """A pointer to the slot of a fingerprint: the one that holds it, or the one it belongs in."""
    slot = lo & mask
    while True:
        at = table + slot * _SLOT_BYTES
        if load_u64(at + _TO_ADDRESS) == _EMPTY or (
            load_u64(at + _TO_LO) == lo and load_u64(at) == hi
        ):
            return np.uint64(at)
        slot = (slot + _NEXT) & mask


@inlined
def newest(table: np.void, hi: np.uint64, lo: np.uint64) -> np.uint64:
    """The address of a fingerprint's row, with its deleted bit; 0 if the table has none."""
    if table["pointer"] == 0:
        return np.uint64(0)
    return np.uint64(load_u64(_probe(table["pointer"], table["mask"], hi, lo) + _TO_ADDRESS))


@inlined
def put(table: np.void, hi: np.uint64, lo: np.uint64, address: np.uint64) -> np.uint64:
    """Point a fingerprint at an address; returns the one it had, or 0."""
    at = _probe(table["pointer"], table["mask"], hi, lo)
    before = load_u64(at + _TO_ADDRESS)
    if before == _EMPTY:
        store_u64(at, hi)
        store_u64(at + _TO_LO, lo)
        table["count"] += 1
    store_u64(at + _TO_ADDRESS, address)
    return np.uint64(before)


@kernel
def _upsert(
    tables: RecordArray, hi: UInt64Array, lo: UInt64Array, addresses: UInt64Array, shift: np.uint64
) -> None:
    for i in range(len(hi)):
        put(tables[np.int64(hi[i] >> shift)], hi[i], lo[i], addresses[i])


@kernel
def _upsert_rows(
    tables: RecordArray, hi: UInt64Array, lo: UInt64Array, first: np.uint64, shift: np.uint64
) -> None:
    for i in range(len(hi)):
        put(tables[np.int64(hi[i] >> shift)], hi[i], lo[i], first + np.uint64(i))


@kernel
def _rehash(old: UInt64Array, table: np.uint64, mask: np.uint64) -> None:
    for first in range(0, len(old), SLOT_WORDS):
        address = old[first + _ADDRESS]
        if address != _EMPTY:
            hi = old[first + _HI]
            lo = old[first + _LO]
            at = _probe(table, mask, hi, lo)
            store_u64(at, hi)
            store_u64(at + _TO_LO, lo)
            store_u64(at + _TO_ADDRESS, address)


@kernel
def _entries(slots: UInt64Array, count: int) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
    hi = np.empty(count, np.uint64)
    lo = np.empty(count, np.uint64)
    address = np.empty(count, np.uint64)
    n = 0
    for first in range(0, len(slots), SLOT_WORDS):
        if slots[first + _ADDRESS] != _EMPTY:
            hi[n] = slots[first + _HI]
            lo[n] = slots[first + _LO]
            address[n] = slots[first + _ADDRESS]
            n += 1
    return hi, lo, address
