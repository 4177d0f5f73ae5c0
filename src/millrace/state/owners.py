"""The owner index: all rows of a collection, for tables whose rows belong to a key.

A Map's entry, a Set's member or a timer is a row of its own, so changing one writes one. To read a
whole collection, its rows must be found by owner. In the base they are neighbours, because an
entry's fingerprint begins with its owner's (`entry_fingerprint`). In the delta, each owner has a
chain through its rows, newest first; the delta index says whether a row still counts.

Known rough edge: a row that was overwritten stays in its chain until its key group is merged or
its deltas become a run.

Rows of an overlay have chains of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.arrays import BoolArray, Int64Array, RecordArray, UInt64Array
from millrace.jit import WORD, kernel, store_u64, word_at
from millrace.log.segment import HI, LO, OWNER_HI, OWNER_LO
from millrace.state.addresses import DELETED_BIT, ROW_BITS, ROW_MASK
from millrace.state.base import HASH_BITS, BaseTable, at_or_after, base_address
from millrace.state.columns import ColumnStore
from millrace.state.gathering import Pointers
from millrace.state.index import NO_TABLES, DeltaIndex, newest, put

ENTRY_BITS = 24
"""The low bits of an entry's `hi` that come from the entry; the rest are its owner's."""

ENTRY_MASK = np.uint64((1 << ENTRY_BITS) - 1)


def entry_fingerprint(
    owner_hi: UInt64Array, entry_hi: UInt64Array, entry_lo: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprint of an entry, given its owner's and 128 bits that identify both."""
    return (owner_hi & ~ENTRY_MASK) | (entry_hi & ENTRY_MASK), entry_lo


Entries = tuple[UInt64Array, UInt64Array, UInt64Array, UInt64Array, UInt64Array]
"""Per chunk, pointers to columns: hi, lo, the owner's hi and lo, and `previous`, the address of the
next older row of the same owner; 0 ends the chain."""


class OwnerIndex:
    """Chains through the delta rows of each owner."""

    def __init__(self, key_groups: int, columns: ColumnStore, shift: int) -> None:
        self._heads = DeltaIndex(key_groups)
        self._columns = columns
        self._shift = np.uint64(shift)
        self._previous: dict[int, UInt64Array] = {}
        self._previous_pointers = Pointers()

    def open_chunk(self, chunk: int, rows: int) -> None:
        """Room for the chains through a chunk's rows."""
        if chunk not in self._previous:
            array = self._previous[chunk] = np.zeros(rows, np.uint64)
            self._previous_pointers.set_pointer(chunk, array.ctypes.data)

    def close_chunk(self, chunk: int) -> None:
        if self._previous.pop(chunk, None) is not None:
            self._previous_pointers.set_pointer(chunk, 0)

    def add(self, addresses: UInt64Array, groups: Int64Array, counts: Int64Array) -> None:
        """Put rows at the head of their owners' chains."""
        self._heads.reserve(groups, counts)
        _chain(addresses, self._entries(), self._shift, self._heads.tables, _NO_CHUNKS)

    def replace(self, addresses: UInt64Array, chunks: Sequence[int]) -> None:
        """Put rows in the place of all rows of some chunks, with which the chains of their owners
        begin."""
        going = np.zeros(len(self._previous_pointers.array), np.bool_)
        going[chunks] = True
        _chain(addresses, self._entries(), self._shift, self._heads.tables, going)

    def _entries(self) -> Entries:
        names = (HI, LO, OWNER_HI, OWNER_LO)
        hi, lo, owner_hi, owner_lo = (self._columns.values(name) for name in names)
        return hi, lo, owner_hi, owner_lo, self._previous_pointers.array

    def drop(self, group: int) -> None:
        self._heads.drop(group)

    @property
    def bytes(self) -> int:
        return self._heads.bytes + sum(array.nbytes for array in self._previous.values())

    def scan(
        self,
        hi: UInt64Array,
        lo: UInt64Array,
        index: DeltaIndex,
        bases: BaseTable,
        over: tuple[DeltaIndex, OwnerIndex] | None = None,
    ) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all live rows of each owner, and where each owner's begin.

        `over` is the index of an overlay's rows, and the chains through them.
        """
        owners = (hi, lo)
        tables = (index.tables, self._heads.tables, bases.bases)
        entries = self._entries()
        laid_over = NO_TABLES, NO_TABLES, self._previous_pointers.array
        if over is not None:
            over_index, chains = over
            heads, previous = chains._heads.tables, chains._previous_pointers.array
            laid_over = (over_index.tables, heads, previous)
        offsets = np.zeros(len(hi) + 1, np.int64)
        none = np.empty(0, np.uint64)
        _scan(owners, self._shift, tables, laid_over, entries, offsets, none, True)
        addresses = np.empty(int(offsets[-1]), np.uint64)
        _scan(owners, self._shift, tables, laid_over, entries, offsets, addresses, False)
        return addresses, offsets


_NO_CHUNKS = np.zeros(0, np.bool_)


@kernel
def _chain(
    addresses: UInt64Array,
    entries: Entries,
    shift: np.uint64,
    heads: RecordArray,
    going: BoolArray,
) -> None:
    """Put rows at the head of their owners' chains, in the place of those in chunks that go."""
    _, _, owner_hi, owner_lo, previous = entries
    is_replacing = len(going) > 0
    for i in range(len(addresses)):
        address = addresses[i] & ~DELETED_BIT
        chunk = np.int64(address >> np.uint64(ROW_BITS))
        row = address & ROW_MASK
        hi = word_at(owner_hi[chunk], row)
        lo = word_at(owner_lo[chunk], row)
        head = put(heads[np.int64(hi >> shift)], hi, lo, address)
        if is_replacing:
            while head != 0 and going[np.int64(head >> np.uint64(ROW_BITS))]:
                head = word_at(previous[np.int64(head >> np.uint64(ROW_BITS))], head & ROW_MASK)
        store_u64(previous[chunk] + row * WORD, head)


@kernel
def _scan(
    owners: tuple[UInt64Array, UInt64Array],
    shift: np.uint64,
    tables: tuple[RecordArray, RecordArray, RecordArray],
    laid_over: tuple[RecordArray, RecordArray, UInt64Array],
    entries: Entries,
    offsets: Int64Array,
    out: UInt64Array,
    counting: bool,
) -> None:
    """Two passes: one counts into `offsets`, one fills `out`."""
    owners_hi, owners_lo = owners
    index, heads, bases = tables
    over_index, over_heads, over_previous = laid_over
    is_laid_over = len(over_index) > 0
    entries_hi, entries_lo, owner_hi, owner_lo, previous = entries
    group_bits = HASH_BITS - shift
    for i in range(len(owners_hi)):
        n = offsets[i]
        hi = owners_hi[i]
        lo = owners_lo[i]
        group = np.int64(hi >> shift)
        table = index[group]
        base = bases[group]
        if base["rows"] != 0:
            chunk = np.int64(base["chunk"])
            row = at_or_after(base, group_bits, hi & ~ENTRY_MASK, np.uint64(0))
            while row < base["rows"]:
                entry_hi = word_at(base["hi"], row)
                if entry_hi > hi | ENTRY_MASK:
                    break
                at = base["first_row"] + row
                if (
                    word_at(owner_lo[chunk], at) == lo
                    and word_at(owner_hi[chunk], at) == hi
                    and newest(table, entry_hi, word_at(base["lo"], row)) == 0
                    and not (
                        is_laid_over
                        and newest(over_index[group], entry_hi, word_at(base["lo"], row)) != 0
                    )
                ):
                    if not counting:
                        out[n] = base_address(base, row)
                    n += 1
                row += np.uint64(1)
        address = newest(heads[group], hi, lo)
        while address != 0:
            chunk = np.int64(address >> np.uint64(ROW_BITS))
            row = address & ROW_MASK
            entry_hi = word_at(entries_hi[chunk], row)
            entry_lo = word_at(entries_lo[chunk], row)
            if newest(table, entry_hi, entry_lo) == address and not (
                is_laid_over and newest(over_index[group], entry_hi, entry_lo) != 0
            ):
                if not counting:
                    out[n] = address
                n += 1
            address = word_at(previous[chunk], row)
        if is_laid_over:
            address = newest(over_heads[group], hi, lo)
            while address != 0:
                chunk = np.int64(address >> np.uint64(ROW_BITS))
                row = address & ROW_MASK
                entry_hi = word_at(entries_hi[chunk], row)
                if newest(over_index[group], entry_hi, word_at(entries_lo[chunk], row)) == address:
                    if not counting:
                        out[n] = address
                    n += 1
                address = word_at(over_previous[chunk], row)
        if counting:
            offsets[i + 1] = n
