"""The rows of key groups, found by fingerprint: bases, deltas on top, and chains by owner.

What a key group has taken so far is in the index of deltas, its base under it. Which pieces it is
to take, and in which order, the replica decides; here they are only taken and found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.keygroups import group_shift
from millrace.log.segment import DELETED, HI, LO, Places
from millrace.log.trail import Piece
from millrace.state.base import BaseTable, find, merge_addresses
from millrace.state.columns import DELETED_BIT, ROW_BITS, words
from millrace.state.index import DeltaIndex
from millrace.state.owners import OwnerIndex
from millrace.state.pages import Pages
from millrace.state.sorting import sort_order

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


class Table:
    """The indexes over the pages of one table."""

    def __init__(self, pages: Pages, key_groups: int, *, owned: bool) -> None:
        self.key_groups = key_groups
        self.shift = group_shift(key_groups)
        self._pages = pages
        self._index = DeltaIndex(key_groups)
        self._base = BaseTable(key_groups)
        self._owners = OwnerIndex(key_groups, pages.columns, self.shift) if owned else None

    def reserve(self, groups: Int64Array, rows: Int64Array) -> None:
        """Make room at once for rows that key groups are about to take."""
        self._index.reserve(groups, rows)

    def take_base(self, group: int, piece: Piece) -> None:
        """Map, verify and index the base of a key group."""
        places = self._pages.places(piece)
        at = places.find(group)
        assert at is not None
        page = self._pages.use(piece, places, np.asarray([at]))
        batch = self._pages.columns.chunk(page.chunk)
        start = int(places.starts[at])
        end = start + int(places.rows[at])
        hi, lo = words(batch, HI)[start:end], words(batch, LO)[start:end]
        self._base.set(group, page.chunk, start, hi, lo)

    def take(self, piece: Piece, takers: Int64Array) -> None:
        """Index a delta's or run's rows for some key groups."""
        if piece.is_run:
            # The index is about to point into the run, for every row that pointed into its deltas.
            # The pages must stay mapped until then, but nothing reads them in between.
            self._let_go(set(takers.tolist()), piece.section.first, piece.section.last)
        places = self._pages.places(piece)
        taking = np.zeros(self.key_groups, np.bool_)
        taking[takers] = True
        chosen = np.flatnonzero(taking[places.groups])
        for part in np.split(chosen, np.flatnonzero(np.diff(places.pages[chosen])) + 1):
            if len(part):
                self._take_page(piece, places, part)
        if self._owners is not None and piece.is_run:
            self._rebuild_chains(self._owners, takers)

    def _rebuild_chains(self, owners: OwnerIndex, groups: Int64Array) -> None:
        """After a run: chains through the rows that count now, without the deltas it replaced."""
        for group in groups.tolist():
            owners.drop(group)
            _, _, addresses = self._index.entries(group)
            count = np.asarray([len(addresses)], np.int64)
            owners.add(addresses, np.asarray([group], np.int64), count)

    def _take_page(self, piece: Piece, places: Places, chosen: Int64Array) -> None:
        """Index the rows of some key groups, all in one page."""
        groups, counts, starts = places.groups[chosen], places.rows[chosen], places.starts[chosen]
        page = self._pages.use(piece, places, chosen)
        batch = self._pages.columns.chunk(page.chunk)
        hi, lo = words(batch, HI), words(batch, LO)
        first = np.uint64(page.chunk << ROW_BITS)
        self._index.reserve(groups, counts)
        deleted = batch.column(DELETED)
        neighbours = int(chosen[-1] - chosen[0]) + 1 == len(chosen)
        if neighbours and not deleted.true_count and self._owners is None:
            rows = slice(int(starts[0]), int(starts[-1] + counts[-1]))
            first += starts[0].astype(np.uint64)
            self._index.upsert_rows(hi[rows], lo[rows], first, self.shift)
            return
        picked = np.concatenate(
            [np.arange(s, s + n, dtype=np.uint64) for s, n in zip(starts, counts, strict=True)]
        )
        addresses = first | picked
        if deleted.true_count:
            flags = deleted.to_numpy(zero_copy_only=False)[picked]
            addresses = np.where(flags, addresses | DELETED_BIT, addresses)
        self._index.upsert(hi[picked], lo[picked], addresses, self.shift)
        if self._owners is not None:
            self._owners.open_chunk(page.chunk, batch.num_rows)
            if not piece.is_run:
                self._owners.add(addresses, groups, counts)

    def drop(self, groups: Int64Array) -> None:
        """Empty key groups' indexes; the pages of their bases go as well."""
        self._let_go(set(groups.tolist()))
        for group in groups.tolist():
            self._index.drop(group)
            if self._owners is not None:
                self._owners.drop(group)

    def drop_base(self, group: int) -> None:
        self._base.drop(group)

    def _let_go(self, groups: set[int], first: int = -1, last: int | None = None) -> None:
        for chunk in self._pages.let_go(groups, first, last):
            if self._owners is not None:
                self._owners.close_chunk(chunk)

    def find(self, hi: UInt64Array, lo: UInt64Array) -> UInt64Array:
        """The address of each fingerprint's row; 0 where there is none."""
        return self._find(hi, lo, self._index.pointers)

    def _find(self, hi: UInt64Array, lo: UInt64Array, tables: UInt64Array) -> UInt64Array:
        base = self._base
        return find(
            hi,
            lo,
            np.uint64(self.shift),
            tables,
            self._index.masks,
            base.rows,
            base.chunks,
            base.first_rows,
            base.hi_pointers,
            base.lo_pointers,
            base.directory_pointers,
            base.directory_shifts,
        )

    def entries(self, hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all rows of each owner, and where each owner's begin; owned tables only."""
        assert self._owners is not None
        return self._owners.scan(hi, lo, self._index, self._base)

    def rows(self, group: int) -> UInt64Array:
        """Addresses of all rows of a key group, sorted by fingerprint."""
        hi, lo, address = self._index.entries(group)
        order = sort_order(hi, lo)
        chunk, first, count = self.base_slice(group)
        if count:
            batch = self._pages.columns.chunk(chunk)
            base_hi = words(batch, HI)[first : first + count]
            base_lo = words(batch, LO)[first : first + count]
        else:
            base_hi = base_lo = np.empty(0, np.uint64)
        start = np.uint64(chunk << ROW_BITS | first)
        return merge_addresses(base_hi, base_lo, start, hi[order], lo[order], address[order], False)

    def rows_in(self, group: int, chunks: UInt64Array) -> UInt64Array:
        """Addresses of a key group's newest rows that are in some chunks, sorted by fingerprint.

        Those of deleted rows as well.
        """
        hi, lo, address = self._index.entries(group)
        chunk = (address & ~DELETED_BIT) >> np.uint64(ROW_BITS)
        mask = np.isin(chunk, chunks)
        hi, lo, address = hi[mask], lo[mask], address[mask]
        return address[sort_order(hi, lo)]

    def base_slice(self, group: int) -> tuple[int, int, int]:
        """Where the base of a key group is: chunk, first row, number of rows."""
        base = self._base
        return int(base.chunks[group]), int(base.first_rows[group]), int(base.rows[group])

    def changed(self, group: int) -> tuple[UInt64Array, UInt64Array]:
        """Addresses of the base's rows that no longer count, and of the rows beside the base."""
        hi, lo, address = self._index.entries(group)
        if not len(hi):
            return address, address
        below = self._find(hi, lo, np.zeros_like(self._index.pointers))
        return below[below != 0], address[address & DELETED_BIT == 0]

    def index_bytes(self, groups: Int64Array) -> Int64Array:
        """Memory of each key group's index."""
        return np.asarray([self._index.group_bytes(g) for g in groups.tolist()], np.int64)

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone: the indexes and the directories."""
        chains = self._owners.bytes if self._owners is not None else 0
        return self._index.bytes + self._base.bytes + chains
