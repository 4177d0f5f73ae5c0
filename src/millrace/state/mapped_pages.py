"""The pages that a replica has mapped, and which of its key groups use each.

A page of a segment becomes a chunk of columns when a key group first needs one of its rows, and is
released when no key group uses it any more. Segments stay open while something live is in them, so
that it does not matter what happens to their files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import MalformedError
from millrace.ids import Epoch
from millrace.keygroups import group_shift
from millrace.log.copies import READERS
from millrace.log.segment import GroupIndex, Segment, SegmentEntry, open_segment
from millrace.log.store import Store
from millrace.log.trail import Piece, PieceId
from millrace.state.addresses import chunks_of
from millrace.state.columns import ColumnStore
from millrace.state.page_check import check_page
from millrace.state.verified_columns import VerifiedColumns


@dataclass(eq=False)
class MappedPage:
    """A page in use, and by which key groups."""

    chunk: int
    first: Epoch
    last: Epoch
    rows: dict[int, int]
    """Key group -> its rows in the page, for the key groups that use it."""


class MappedPages:
    """The open segments of a table, and the pages of them that are in use."""

    def __init__(
        self, store: Store, schema: pa.Schema, key_groups: int, *, owned: bool, by_column: bool
    ) -> None:
        """With `by_column`, columns of pages are verified and fetched when they are asked for."""
        self._shift = group_shift(key_groups)
        self._owned = owned
        self.columns = ColumnStore(schema)
        self.is_remote = store.local_path("") is None
        self._store = store
        self._verified = VerifiedColumns(schema, owned) if by_column else None
        self._segments: dict[str, Segment] = {}
        self._pages: dict[tuple[PieceId, int], MappedPage] = {}
        self._held: dict[int, list[int]] = {}
        """Chunks of rows that are in memory only, and the key groups that each has rows of."""

    def check_lengths(self) -> None:
        """Raise if the file of an open segment was cut short."""
        for segment in self._segments.values():
            segment.check_length()

    def group_index(self, piece: Piece) -> GroupIndex:
        """Where the key groups of a piece are; its segment is open from now on."""
        return self._segment(piece.segment).group_index(piece.number)

    def _segment(self, entry: SegmentEntry) -> Segment:
        segment = self._segments.get(entry.path)
        if segment is None:
            segment = self._segments[entry.path] = open_segment(self._store, entry)
        elif segment.entry is not entry:
            # A later manifest has repeated it.
            if not segment.entry.is_alike(entry):
                raise segment.malformed("two manifests say different things of it")
            segment.entry = entry
        return segment

    def close_segments(self, live: Collection[str]) -> None:
        """Close segments that are not live, and that no page in use is of."""
        used = {path for (path, _), _ in self._pages}.union(live)
        for path in [p for p in self._segments if p not in used]:
            del self._segments[path]

    def use(self, piece: Piece, index: GroupIndex, chosen: Int64Array) -> MappedPage:
        """A page of a piece's section as a chunk, used by some more of its key groups."""
        number = int(index.pages[chosen[0]])
        key = (piece.id, number)
        page = self._pages.get(key)
        if page is None:
            section = piece.section
            segment = self._segment(piece.segment)
            at = section.first_page + number
            batch = segment.page(at) if self._verified is None else self._verified.page(segment, at)
            try:
                check_page(batch, section, index, number, self._shift, self._owned)
                chunk = self.columns.add(batch)
            except (MalformedError, pa.ArrowException, ValueError) as error:
                raise segment.malformed(error) from error
            page = MappedPage(chunk, section.first, section.last, {})
            self._pages[key] = page
            if self._verified is not None:
                self._verified.opened(page.chunk, segment, at)
        groups, rows = index.groups[chosen].tolist(), index.rows[chosen].tolist()
        page.rows.update(zip(groups, rows, strict=True))
        return page

    def hold(self, batch: pa.RecordBatch, groups: Int64Array) -> int:
        """Use rows of some key groups that are in memory only, as if they were a page, until
        `release`; their chunk."""
        chunk = self.columns.add(batch)
        self._held[chunk] = groups.tolist()
        return chunk

    def release(self, chunk: int) -> None:
        """Let go of rows that are in memory only."""
        del self._held[chunk]
        self.columns.release(chunk)

    def let_go(self, groups: set[int], first: int = -1, last: int | None = None) -> list[int]:
        """Key groups release their pages, or only those within epochs (first, last].

        Returns the chunks that are no longer used.
        """
        done = []
        for key, page in self._pages.items():
            if last is not None and not (first <= page.first and page.last <= last):
                continue
            for group in groups & page.rows.keys():
                del page.rows[group]
            if not page.rows:
                done.append(key)
        chunks = [self._pages.pop(key).chunk for key in done]
        for chunk in chunks:
            self.columns.release(chunk)
        return chunks

    def users(self) -> Iterator[tuple[int, Collection[int]]]:
        """The chunks in use, and the key groups that each has rows of."""
        yield from ((page.chunk, page.rows.keys()) for page in self._pages.values())
        yield from self._held.items()

    def chunks_of(self, pieces: Collection[PieceId]) -> Int64Array:
        """The chunks that pages of some pieces are."""
        found = (page.chunk for (piece, _), page in self._pages.items() if piece in pieces)
        return np.asarray(sorted(found), np.int64)

    def fetch(self, needed: Iterable[tuple[Piece, Int64Array | None]]) -> None:
        """Have pieces' pages for some key groups on this machine: few requests, many at a time."""

        def fetch(one: tuple[Piece, Int64Array | None]) -> None:
            piece, groups = one
            segment = self._segment(piece.segment)
            if groups is not None:
                index = segment.group_index(piece.number)
                pages = np.unique(index.pages[np.isin(index.groups, groups)])
                numbers = (pages + piece.section.first_page).tolist()
                if self._verified is None:
                    segment.prefetch(numbers)
                else:
                    segment.fetch_columns(numbers, self._verified.always)

        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(fetch, needed):
                pass

    def load(self, groups: Int64Array, names: Collection[str]) -> None:
        """Have some columns of the pages that key groups use on this machine."""
        if self._verified is not None and self.is_remote:
            wanted = set(groups.tolist())
            chunks = [p.chunk for p in self._pages.values() if not wanted.isdisjoint(p.rows)]
            self._verified.fetch(chunks, names)

    def gather(self, addresses: UInt64Array, names: list[str]) -> list[pa.Array]:
        """Columns of the rows at these addresses; NULL where an address is 0."""
        if self._verified is not None:
            for chunk in np.flatnonzero(np.bincount(chunks_of(addresses))).tolist():
                self._verified.check(chunk, names)
        return self.columns.gather(addresses, names)

    def column(self, chunk: int, name: str) -> pa.Array:
        """A whole column of a page in use, without a copy."""
        if self._verified is not None:
            self._verified.check(chunk, [name])
        return self.columns.column(chunk, name)

    def bytes_of(self, groups: Int64Array) -> int:
        """The share of some key groups in the pages in use."""
        wanted = set(groups.tolist())
        total = 0.0
        for page in self._pages.values():
            rows = sum(count for group, count in page.rows.items() if group in wanted)
            if rows:
                batch = self.columns.chunk(page.chunk)
                total += batch.nbytes * rows / batch.num_rows
        return round(total)

    @property
    def read_bytes(self) -> int:
        """Bytes of the pages in use that were looked at."""
        return sum(segment.read_bytes for segment in self._segments.values())
