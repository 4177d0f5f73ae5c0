"""The rows of key groups, found by fingerprint: bases, deltas on top, and chains by owner.

What a key group has taken so far is in the index of deltas, its base under it. Which pieces it is
to take, and in which order, the replica decides; here they are only taken and found. While an epoch
is computed in several steps, what it has changed lies over all of that.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.keygroups import group_shift
from millrace.log.segment import DELETED, HI, LO, GroupIndex
from millrace.log.trail import Piece
from millrace.state.addresses import DELETED_BIT, address_of, chunks_of
from millrace.state.base import BaseTable, find, find_in_bases, merge_addresses
from millrace.state.columns import words
from millrace.state.index import NO_TABLES, DeltaIndex
from millrace.state.mapped_pages import MappedPages
from millrace.state.overlay import Overlay
from millrace.state.owners import OwnerIndex
from millrace.state.sorting import group_starts, sort_order


class Table:
    """The indexes over the pages of one table."""

    def __init__(self, pages: MappedPages, key_groups: int, *, owned: bool) -> None:
        self.key_groups = key_groups
        self.shift = group_shift(key_groups)
        self._pages = pages
        self._index = DeltaIndex(key_groups)
        self._bases = BaseTable(key_groups)
        self._owners = OwnerIndex(key_groups, pages.columns, self.shift) if owned else None
        self.overlay: Overlay | None = None

    def reserve(self, groups: Int64Array, rows: Int64Array) -> None:
        """Make room at once for rows that key groups are about to take."""
        self._index.reserve(groups, rows)

    def take_base(self, group: int, piece: Piece) -> None:
        """Map, verify and index the base of a key group."""
        index = self._pages.group_index(piece)
        at = index.find(group)
        assert at is not None
        page = self._pages.use(piece, index, np.asarray([at]))
        batch = self._pages.columns.chunk(page.chunk)
        start = int(index.starts[at])
        end = start + int(index.rows[at])
        hi, lo = words(batch, HI)[start:end], words(batch, LO)[start:end]
        self._bases.set(group, page.chunk, start, hi, lo)

    def take(self, piece: Piece, takers: Int64Array) -> None:
        """Index a delta's or run's rows for some key groups."""
        if piece.is_run:
            # The index is about to point into the run, for every row that pointed into its deltas.
            # The pages must stay mapped until then, but nothing reads them in between.
            self._let_go(set(takers.tolist()), piece.section.first, piece.section.last)
        index = self._pages.group_index(piece)
        taking = np.zeros(self.key_groups, np.bool_)
        taking[takers] = True
        chosen = np.flatnonzero(taking[index.groups])
        for part in np.split(chosen, np.flatnonzero(np.diff(index.pages[chosen])) + 1):
            if len(part):
                self._take_page(piece, index, part)
        if self._owners is not None and piece.is_run:
            self._rebuild_chains(self._owners, takers)

    def _rebuild_chains(self, owners: OwnerIndex, groups: Int64Array) -> None:
        """After a run: chains through the rows that count now, without the deltas it replaced."""
        for group in groups.tolist():
            owners.drop(group)
            _, _, addresses = self._index.entries(group)
            count = np.asarray([len(addresses)], np.int64)
            owners.add(addresses, np.asarray([group], np.int64), count)

    def _take_page(self, piece: Piece, index: GroupIndex, chosen: Int64Array) -> None:
        """Index the rows of some key groups, all in one page."""
        groups, counts, starts = index.groups[chosen], index.rows[chosen], index.starts[chosen]
        page = self._pages.use(piece, index, chosen)
        batch = self._pages.columns.chunk(page.chunk)
        hi, lo = words(batch, HI), words(batch, LO)
        first = address_of(page.chunk, 0)
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

    def lay_over(self, rows: pa.RecordBatch) -> None:
        """Lay changed rows, sorted by fingerprint, over everything else."""
        if self.overlay is None:
            owned = self._owners is not None
            self.overlay = Overlay(self._pages, self.key_groups, self.shift, owned=owned)
        self.overlay.add(rows)

    def drop_overlay(self) -> pa.RecordBatch | None:
        """Forget what lies over the rest; the newest row of each fingerprint that did."""
        overlay, self.overlay = self.overlay, None
        return None if overlay is None else overlay.drop()

    def drop(self, groups: Int64Array) -> None:
        """Empty key groups' indexes; the pages of their bases go as well."""
        self._let_go(set(groups.tolist()))
        for group in groups.tolist():
            self._index.drop(group)
            if self._owners is not None:
                self._owners.drop(group)

    def drop_base(self, group: int) -> None:
        self._bases.drop(group)

    def _let_go(self, groups: set[int], first: int = -1, last: int | None = None) -> None:
        for chunk in self._pages.let_go(groups, first, last):
            if self._owners is not None:
                self._owners.close_chunk(chunk)

    def find(self, hi: UInt64Array, lo: UInt64Array) -> UInt64Array:
        """The address of each fingerprint's row; 0 where there is none."""
        over = NO_TABLES if self.overlay is None else self.overlay.tables
        return find(hi, lo, np.uint64(self.shift), over, self._index.tables, self._bases.bases)

    def entries(self, hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all rows of each owner, and where each owner's begin; owned tables only."""
        assert self._owners is not None
        over = self.overlay
        chains = None if over is None or over.owners is None else (over.index, over.owners)
        return self._owners.scan(hi, lo, self._index, self._bases, chains)

    def rows(self, group: int) -> UInt64Array:
        """Addresses of all rows of a key group, sorted by fingerprint."""
        hi, lo, address = self._beside(group)
        order = sort_order(hi, lo)
        chunk, first, count = self.base_slice(group)
        if count:
            batch = self._pages.columns.chunk(chunk)
            base_hi = words(batch, HI)[first : first + count]
            base_lo = words(batch, LO)[first : first + count]
        else:
            base_hi = base_lo = np.empty(0, np.uint64)
        start = address_of(chunk, first)
        return merge_addresses(base_hi, base_lo, start, hi[order], lo[order], address[order])

    def _beside(self, group: int) -> tuple[UInt64Array, UInt64Array, UInt64Array]:
        """hi, lo and address of a key group's rows that are not in its base, in no order."""
        if self.overlay is None:
            return self._index.entries(group)
        over, index = self.overlay.index, self._index
        # What lies over a row comes after it, and so in its place.
        both = zip(index.entries(group), over.entries(group), strict=True)
        hi, lo, address = (np.concatenate(pair) for pair in both)
        order = sort_order(hi, lo)
        newest = order[group_starts(hi[order], lo[order])[1:] - 1]
        return hi[newest], lo[newest], address[newest]

    def rows_in(self, group: int, chunks: Int64Array) -> UInt64Array:
        """Addresses of a key group's newest rows that are in some chunks, sorted by fingerprint.

        Those of deleted rows as well.
        """
        hi, lo, address = self._index.entries(group)
        mask = np.isin(chunks_of(address), chunks)
        hi, lo, address = hi[mask], lo[mask], address[mask]
        return address[sort_order(hi, lo)]

    def base_slice(self, group: int) -> tuple[int, int, int]:
        """Where the base of a key group is: chunk, first row, number of rows."""
        return self._bases.slice(group)

    def changed(self, group: int) -> tuple[UInt64Array, UInt64Array]:
        """Addresses of the base's rows that no longer count, and of the rows beside the base."""
        hi, lo, address = self._beside(group)
        if not len(hi):
            return address, address
        below = find_in_bases(hi, lo, np.uint64(self.shift), self._bases.bases)
        return below[below != 0], address[address & DELETED_BIT == 0]

    def index_bytes(self, groups: Int64Array) -> Int64Array:
        """Memory of each key group's index."""
        return np.asarray([self._index.group_bytes(g) for g in groups.tolist()], np.int64)

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone: the indexes and the directories."""
        chains = self._owners.bytes if self._owners is not None else 0
        laid_over = self.overlay.bytes if self.overlay is not None else 0
        return self._index.bytes + self._bases.bytes + chains + laid_over
