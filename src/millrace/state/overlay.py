"""What an epoch that is being computed has changed so far, on top of a version.

Rows come in small pieces, many in an epoch. The overlay finds a row by an index of its own, so that
the index of the version does not change: to drop the overlay is to forget it.

Invariant: a row is looked for in one place, however many pieces came. Pieces are chunks of columns,
sorted by fingerprint. When `FANOUT` of about the same size follow each other they become one, with
the newest row of each fingerprint: those who go through pieces (indexes of time, joins) find few of
them, and a row is moved a few times at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, RecordArray, UInt64Array
from millrace.log.segment import DELETED, HI, LO
from millrace.state.addresses import DELETED_BIT, address_of
from millrace.state.columns import words
from millrace.state.index import DeltaIndex
from millrace.state.mapped_pages import MappedPages
from millrace.state.owners import OwnerIndex
from millrace.state.sorting import count_groups, group_starts, sort_order

FANOUT = 16
"""This many pieces become one. Their sizes differ by at most this factor."""

LARGE = 1 << 16
"""Pieces of as many rows are left as they are: to put them together would take longer than frames
of rows may wait."""


@dataclass(frozen=True)
class _Piece:
    chunk: int
    rows: pa.RecordBatch

    @property
    def level(self) -> int:
        """A measure of its size: pieces of one level become one of the next."""
        level, rows = 0, self.rows.num_rows
        while rows >= FANOUT:
            level, rows = level + 1, rows // FANOUT
        return level


class Overlay:
    """Changed rows of one table."""

    def __init__(self, pages: MappedPages, key_groups: int, shift: int, *, owned: bool) -> None:
        self._pages = pages
        self._key_groups = key_groups
        self._shift = shift
        self._pieces: list[_Piece] = []
        self.index = DeltaIndex(key_groups)
        self.owners = OwnerIndex(key_groups, pages.columns, shift) if owned else None
        self.rows = 0
        """How many rows were added, those that others took the place of included."""
        self.moved = 0
        """How many rows were written again to put pieces together."""

    @property
    def tables(self) -> RecordArray:
        return self.index.tables

    @property
    def pieces(self) -> int:
        return len(self._pieces)

    def add(self, rows: pa.RecordBatch) -> None:
        """Put changed rows, sorted by fingerprint, on top of everything else."""
        groups, counts = self._groups_of(rows)
        self.index.reserve(groups, counts)
        piece, addresses = self._hold(rows, groups)
        if self.owners is not None:
            self.owners.add(addresses, groups, counts)
        self._pieces.append(piece)
        self.rows += rows.num_rows
        self._put_together()

    def _groups_of(self, rows: pa.RecordBatch) -> tuple[Int64Array, Int64Array]:
        """The key groups of some rows, and how many rows each has."""
        counts = count_groups(words(rows, HI), np.uint64(self._shift), self._key_groups)
        groups = np.flatnonzero(counts)
        return groups, counts[groups]

    def _hold(self, rows: pa.RecordBatch, groups: Int64Array) -> tuple[_Piece, UInt64Array]:
        """Keep a piece, with the index at its rows; where they are. The index has room for them."""
        chunk = self._pages.hold(rows, groups)
        addresses = address_of(chunk, 0) | np.arange(rows.num_rows, dtype=np.uint64)
        deleted = _deleted(rows)
        if deleted is not None:
            addresses[deleted] |= DELETED_BIT
        self.index.upsert(words(rows, HI), words(rows, LO), addresses, self._shift)
        if self.owners is not None:
            self.owners.open_chunk(chunk, rows.num_rows)
        return _Piece(chunk, rows), addresses

    def _put_together(self) -> None:
        """Make one piece of the newest ones, as often as there are enough of about one size."""
        while True:
            level = self._pieces[-1].level
            first = len(self._pieces)
            while first and self._pieces[first - 1].level <= level:
                if self._pieces[first - 1].rows.num_rows >= LARGE:
                    break
                first -= 1
            if len(self._pieces) - first < FANOUT:
                return
            self._unite(first)

    def _unite(self, first: int) -> None:
        """Make one piece of all from some piece on."""
        going = self._pieces[first:]
        rows = newest_rows([piece.rows for piece in going])
        groups, _ = self._groups_of(rows)
        piece, addresses = self._hold(rows, groups)
        gone = [each.chunk for each in going]
        if self.owners is not None:
            self.owners.replace(addresses, gone)
        self._release(gone)
        self._pieces[first:] = [piece]
        self.moved += rows.num_rows

    def _release(self, chunks: Sequence[int]) -> None:
        for chunk in chunks:
            self._pages.release(chunk)
            if self.owners is not None:
                self.owners.close_chunk(chunk)

    def drop(self) -> pa.RecordBatch:
        """The newest row of each fingerprint, in order; the overlay cannot be used any more."""
        rows = newest_rows([piece.rows for piece in self._pieces])
        self._release([piece.chunk for piece in self._pieces])
        self._pieces = []
        return rows

    @property
    def bytes(self) -> int:
        """Memory of the indexes and the rows."""
        chains = self.owners.bytes if self.owners is not None else 0
        rows: int = sum(piece.rows.nbytes for piece in self._pieces)
        return self.index.bytes + chains + rows


def newest_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The last row of each fingerprint in some batches, oldest first; in order of fingerprint."""
    rows = pa.concat_batches(batches)
    hi, lo = words(rows, HI), words(rows, LO)
    order = sort_order(hi, lo)
    # The sort is stable, so the last of equal fingerprints is the newest.
    return rows.take(pa.array(order[group_starts(hi[order], lo[order])[1:] - 1]))


def _deleted(rows: pa.RecordBatch) -> BoolArray | None:
    """Which rows are deletions; None if there is none."""
    column = rows.column(DELETED)
    if not column.true_count:
        return None
    flags: BoolArray = column.to_numpy(zero_copy_only=False)
    return flags
