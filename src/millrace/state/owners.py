"""The owner index: all rows of a collection, for tables whose rows belong to a key.

A Map's entry, a Set's member or a timer is a row of its own, so changing one writes one. To read a
whole collection, its rows must be found by owner. In the base they are neighbours, because an
entry's fingerprint begins with its owner's (`entry_fingerprint`). In the delta, each owner has a
chain through its rows, newest first; whether a row still counts, the delta index tells.

Known rough edge: a row that was overwritten stays in its chain until its key group is merged or
its deltas become a run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.state._jit import kernel, load_u32, load_u64, store_u64
from millrace.state.base import BaseTable
from millrace.state.columns import ROW_BITS, ROW_MASK, ColumnStore, Pointers
from millrace.state.index import DeltaIndex

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

OWNER_HI, OWNER_LO = "_owner_hi", "_owner_lo"
OWNER_FIELDS = (
    pa.field(OWNER_HI, pa.uint64(), nullable=False),
    pa.field(OWNER_LO, pa.uint64(), nullable=False),
)

ENTRY_BITS = 24
"""So many low bits of an entry's `hi` come from the entry; the rest are its owner's."""

ENTRY_MASK = (1 << ENTRY_BITS) - 1


def entry_fingerprint(
    owner_hi: UInt64Array, entry_hi: UInt64Array, entry_lo: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprint of an entry, given its owner's and 128 bits that identify both."""
    low = np.uint64(ENTRY_MASK)
    return (owner_hi & ~low) | (entry_hi & low), entry_lo


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
            self._previous_pointers.set_address(chunk, array.ctypes.data)

    def close_chunk(self, chunk: int) -> None:
        if self._previous.pop(chunk, None) is not None:
            self._previous_pointers.set_address(chunk, 0)

    def add(self, addresses: UInt64Array, groups: Int64Array, counts: Int64Array) -> None:
        """Put rows at the head of their owners' chains."""
        self._heads.reserve(groups, counts)
        _chain(
            addresses,
            self._columns.values(OWNER_HI),
            self._columns.values(OWNER_LO),
            self._previous_pointers.array,
            self._shift,
            self._heads.pointers,
            self._heads.masks,
            self._heads.counts,
        )

    def drop(self, group: int) -> None:
        self._heads.drop(group)

    @property
    def bytes(self) -> int:
        return self._heads.bytes + sum(array.nbytes for array in self._previous.values())

    def scan(
        self, hi: UInt64Array, lo: UInt64Array, index: DeltaIndex, base: BaseTable
    ) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all live rows of each owner, and where each owner's begin."""
        columns = self._columns
        arguments = (
            hi,
            lo,
            self._shift,
            index.pointers,
            index.masks,
            self._heads.pointers,
            self._heads.masks,
            self._previous_pointers.array,
            columns.values("_hi"),
            columns.values("_lo"),
            columns.values(OWNER_HI),
            columns.values(OWNER_LO),
            base.rows,
            base.chunks,
            base.first_rows,
            base.hi_pointers,
            base.directory_pointers,
            base.directory_shifts,
        )
        offsets = np.zeros(len(hi) + 1, np.int64)
        _scan(*arguments, offsets, np.empty(0, np.uint64), True)
        addresses = np.empty(int(offsets[-1]), np.uint64)
        _scan(*arguments, offsets, addresses, False)
        return addresses, offsets


@kernel
def _chain(
    addresses: UInt64Array,
    owner_hi: UInt64Array,
    owner_lo: UInt64Array,
    previous: UInt64Array,
    shift: np.uint64,
    pointers: UInt64Array,
    masks: UInt64Array,
    counts: Int64Array,
) -> None:
    word = np.uint64(8)
    bare = np.uint64((1 << 63) - 1)
    for i in range(len(addresses)):
        address = addresses[i] & bare
        chunk = np.int64(address >> np.uint64(ROW_BITS))
        row = address & np.uint64(ROW_MASK)
        hi = load_u64(owner_hi[chunk] + row * word)
        lo = load_u64(owner_lo[chunk] + row * word)
        group = np.int64(hi >> shift)
        mask = masks[group]
        slot = lo & mask
        while True:
            at = pointers[group] + slot * np.uint64(24)
            head = load_u64(at + word + word)
            if head == 0:
                store_u64(at, hi)
                store_u64(at + word, lo)
                counts[group] += 1
            if head == 0 or (load_u64(at + word) == lo and load_u64(at) == hi):
                store_u64(previous[chunk] + row * word, head)
                store_u64(at + word + word, address)
                break
            slot = (slot + np.uint64(1)) & mask


@kernel
def _newest(
    hi: np.uint64, lo: np.uint64, group: np.int64, pointers: UInt64Array, masks: UInt64Array
) -> np.uint64:
    """The delta index's address of a fingerprint, with its deleted bit; 0 if it is not there."""
    word = np.uint64(8)
    table = pointers[group]
    if table == 0:
        return np.uint64(0)
    mask = masks[group]
    slot = lo & mask
    while True:
        at = table + slot * np.uint64(24)
        address = load_u64(at + word + word)
        if address == 0 or (load_u64(at + word) == lo and load_u64(at) == hi):
            return np.uint64(address)
        slot = (slot + np.uint64(1)) & mask


@kernel
def _scan(
    owners_hi: UInt64Array,
    owners_lo: UInt64Array,
    shift: np.uint64,
    index_pointers: UInt64Array,
    index_masks: UInt64Array,
    head_pointers: UInt64Array,
    head_masks: UInt64Array,
    previous: UInt64Array,
    hi_pointers: UInt64Array,
    lo_pointers: UInt64Array,
    owner_hi: UInt64Array,
    owner_lo: UInt64Array,
    base_rows: Int64Array,
    base_chunks: Int64Array,
    base_first: Int64Array,
    base_hi: UInt64Array,
    directory_pointers: UInt64Array,
    directory_shifts: UInt64Array,
    offsets: Int64Array,
    out: UInt64Array,
    counting: bool,
) -> None:
    """Two passes: one counts into `offsets`, one fills `out`."""
    word = np.uint64(8)
    group_bits = np.uint64(64) - shift
    low = np.uint64(ENTRY_MASK)
    for i in range(len(owners_hi)):
        n = offsets[i]
        hi = owners_hi[i]
        lo = owners_lo[i]
        group = np.int64(hi >> shift)
        if base_rows[group] != 0:
            first = hi & ~low
            last = hi | low
            chunk = base_chunks[group]
            bucket = (first << group_bits) >> directory_shifts[group]
            entry = directory_pointers[group] + bucket * np.uint64(4)
            row = np.int64(load_u32(entry))
            end = np.int64(load_u32(entry + np.uint64(4)))
            while end - row > 16:
                middle = (row + end) // 2
                if load_u64(base_hi[group] + np.uint64(middle) * word) < first:
                    row = middle + 1
                else:
                    end = middle
            while row < base_rows[group]:
                there = load_u64(base_hi[group] + np.uint64(row) * word)
                if there > last:
                    break
                if there >= first:
                    at = np.uint64(base_first[group] + row)
                    if (
                        load_u64(owner_lo[chunk] + at * word) == lo
                        and load_u64(owner_hi[chunk] + at * word) == hi
                    ):
                        entry_lo = load_u64(lo_pointers[chunk] + at * word)
                        if _newest(there, entry_lo, group, index_pointers, index_masks) == 0:
                            if not counting:
                                out[n] = (np.uint64(chunk) << np.uint64(ROW_BITS)) | at
                            n += 1
                row += 1
        address = _newest(hi, lo, group, head_pointers, head_masks)
        while address != 0:
            chunk = np.int64(address >> np.uint64(ROW_BITS))
            at = address & np.uint64(ROW_MASK)
            entry_hi = load_u64(hi_pointers[chunk] + at * word)
            entry_lo = load_u64(lo_pointers[chunk] + at * word)
            if _newest(entry_hi, entry_lo, group, index_pointers, index_masks) == address:
                if not counting:
                    out[n] = address
                n += 1
            address = load_u64(previous[chunk] + at * word)
        if counting:
            offsets[i + 1] = n
