"""A replica: the state of some key groups at a version, brought forward by following the log.

Invariant: a replica changes only by following. A task that computes new rows writes them as a
segment and does not touch the replica; when the epoch is committed, the next task finds the segment
in the log and follows it, as every other replica does. So an epoch that fails, runs twice, or loses
against another driver leaves no trace here.

Following is declarative: given what is live in the log at a version, each key group whose base has
changed starts over from that base, and every key group takes the pieces it has not seen. Opening,
catching up, taking a key group over and recovering are this one step.

Base pages are mapped, and verified and indexed when first touched. Delta pages are mapped as well;
only the index of their fingerprints is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.ids import Epoch
from millrace.keygroups import group_shift
from millrace.log.segment import (
    DELETED,
    HI,
    LO,
    SYSTEM_FIELDS,
    PageSpan,
    SectionData,
    Segment,
    SegmentEntry,
    open_segment,
)
from millrace.log.store import Store
from millrace.log.trail import OperatorLog, Piece, PieceId
from millrace.state.base import BaseTable, find, merge_addresses
from millrace.state.columns import DELETED_BIT, ROW_BITS, ColumnStore
from millrace.state.index import DeltaIndex
from millrace.state.merging import GroupLoad, plan_merges, plan_run
from millrace.state.owners import OWNER_HI, OWNER_LO, OwnerIndex
from millrace.state.sorting import count_groups, sort_order

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NEVER = -1

OWNER_FIELDS = (
    pa.field(OWNER_HI, pa.uint64(), nullable=False),
    pa.field(OWNER_LO, pa.uint64(), nullable=False),
)


@dataclass(eq=False)
class _Page:
    """A page in use, and by which key groups."""

    chunk: int
    first: Epoch
    last: Epoch
    rows: dict[int, int]
    """Key group -> its rows in the page, for the key groups that use it."""


class Replica:
    """Rows keyed by fingerprint. `schema` is the user's columns; the system's are added."""

    def __init__(
        self, store: Store, schema: pa.Schema, key_groups: int, *, owned: bool = False
    ) -> None:
        self.schema = pa.schema([*SYSTEM_FIELDS, *(OWNER_FIELDS if owned else ()), *schema])
        self.key_groups = key_groups
        self._store = store
        self.shift = group_shift(key_groups)
        self._columns = ColumnStore(self.schema)
        self._index = DeltaIndex(key_groups)
        self._base = BaseTable(key_groups)
        self._owners = OwnerIndex(key_groups, self._columns, self.shift) if owned else None
        self._at: Int64Array = np.full(key_groups, NEVER, np.int64)
        self._base_piece: list[Piece | None] = [None] * key_groups
        self._base_ready: npt.NDArray[np.bool_] = np.zeros(key_groups, np.bool_)
        self._base_rows: Int64Array = np.zeros(key_groups, np.int64)
        self._logged: Int64Array = np.zeros(key_groups, np.int64)
        self._segments: dict[str, Segment] = {}
        self._pages: dict[tuple[PieceId, int], _Page] = {}
        self.log: OperatorLog = OperatorLog(key_groups)
        self.version = Epoch(0)

    def follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        """Bring key groups to a version."""
        try:
            self._follow(log, version, groups)
        except BaseException:
            # A damaged page or a failing store leaves key groups half-way: start them over.
            self.forget(groups)
            raise

    def _follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        self.log = log
        self.version = version
        fresh = np.zeros(self.key_groups, np.bool_)
        for group in groups.tolist():
            target = log.base[group]
            current = self._base_piece[group]
            same = target is current or (
                target is not None and current is not None and target.id == current.id
            )
            fresh[group] = not same or self._at[group] == NEVER
        self._reset(np.flatnonzero(fresh), log.base)
        wanted = np.zeros(self.key_groups, np.bool_)
        wanted[groups] = True
        oldest = NEVER if fresh.any() else int(self._at[groups].min(initial=version))
        pieces = log.pieces(after=Epoch(oldest))
        self._expect(pieces, fresh)
        for piece, covers in pieces:
            takers = covers[
                wanted[covers] & (fresh[covers] | (self._at[covers] < piece.segment.epoch))
            ]
            if len(takers):
                self._apply(piece, takers)
        self._at[groups] = version
        self._forget_segments()

    def _expect(self, pieces: list[tuple[Piece, Int64Array]], fresh: BoolArray) -> None:
        """Make room at once for what key groups that start over are about to replay."""
        if not fresh.any() or len(pieces) < 2:
            return
        coming = np.zeros(self.key_groups, np.int64)
        for piece, covers in pieces:
            groups, rows = self._segment(piece.segment).rows_per_group(piece.number)
            # An older base may still have had the rest of the piece ahead of it.
            coming[groups] += np.where(np.isin(groups, covers, assume_unique=True), rows, 0)
        groups = np.flatnonzero(fresh & (coming > 0))
        # Rows that were changed more than once take one slot; this is a guess, not a bound.
        self._index.reserve(groups, coming[groups] * 5 // 8)

    def forget(self, groups: Int64Array) -> None:
        """Drop key groups; they can be followed again later."""
        self._reset(groups, [None] * self.key_groups)
        self._at[groups] = NEVER

    def held(self) -> Int64Array:
        return np.flatnonzero(self._at != NEVER)

    def lag(self, group: int) -> int:
        """How many epochs a held key group is behind the newest version followed."""
        return int(self.version - self._at[group])

    def _reset(self, groups: Int64Array, bases: list[Piece | None]) -> None:
        """Start key groups over from nothing but their base."""
        self._unuse(set(groups.tolist()))
        self._logged[groups] = 0
        self._base_rows[groups] = 0
        self._base_ready[groups] = True
        for group in groups.tolist():
            self._index.drop(group)
            self._base.drop(group)
            if self._owners is not None:
                self._owners.drop(group)
            base = self._base_piece[group] = bases[group]
            place = base and self._segment(base.segment).place(base.number, group)
            if place:
                self._base_rows[group] = place[1].rows
                self._base_ready[group] = False

    def _unuse(self, groups: set[int], first: int = -1, last: int | None = None) -> None:
        """Key groups let go of their pages, or only of those within epochs (first, last]."""
        done = []
        for key, page in self._pages.items():
            if last is not None and not (first <= page.first and page.last <= last):
                continue
            for group in groups & page.rows.keys():
                rows = page.rows.pop(group)
                self._logged[group] -= 0 if page.first == 0 else rows
            if not page.rows:
                done.append(key)
        for key in done:
            chunk = self._pages.pop(key).chunk
            self._columns.release(chunk)
            if self._owners is not None:
                self._owners.close_chunk(chunk)

    def _segment(self, entry: SegmentEntry) -> Segment:
        segment = self._segments.get(entry.path)
        if segment is None:
            segment = self._segments[entry.path] = open_segment(self._store, entry)
        return segment

    def _forget_segments(self) -> None:
        used = {path for (path, _), _ in self._pages}
        used |= {p.segment.path for p in self._base_piece if p is not None}
        for path in [p for p in self._segments if p not in used]:
            del self._segments[path]

    def _page(self, piece: Piece, number: int, spans: list[PageSpan]) -> _Page:
        """Page `number` of a piece's section as a chunk, used by some more key groups."""
        key = (piece.id, number)
        page = self._pages.get(key)
        if page is None:
            section = piece.section
            batch = self._segment(piece.segment).page(section.first_page + number)
            page = _Page(self._columns.add(batch), section.first, section.last, {})
            self._pages[key] = page
        page.rows.update((span.group, span.rows) for span in spans)
        return page

    def _apply(self, piece: Piece, takers: Int64Array) -> None:
        """Index a delta's or run's rows for some key groups."""
        if piece.is_run:
            self._unuse_superseded(piece, takers)
        taking = set(takers.tolist())
        for number, spans in enumerate(self._segment(piece.segment).spans(piece.number)):
            chosen = [span for span in spans if span.group in taking]
            if chosen:
                self._apply_page(piece, number, chosen, whole=len(chosen) == len(spans))
        if self._owners is not None and piece.is_run:
            self._rebuild_chains(takers)

    def _rebuild_chains(self, groups: Int64Array) -> None:
        """After a run: chains through the rows that count now, without the deltas it replaced."""
        assert self._owners is not None
        for group in groups.tolist():
            self._owners.drop(group)
            _, _, addresses = self._index.entries(group)
            count = np.asarray([len(addresses)], np.int64)
            self._owners.add(addresses, np.asarray([group], np.int64), count)

    def _unuse_superseded(self, run: Piece, takers: Int64Array) -> None:
        # The index is about to point into the run, for every row that pointed into its deltas.
        # The pages must stay mapped until then, but nothing reads them in between.
        self._unuse(set(takers.tolist()), run.section.first, run.section.last)

    def _apply_page(self, piece: Piece, number: int, chosen: list[PageSpan], whole: bool) -> None:
        page = self._page(piece, number, chosen)
        batch = self._columns.chunk(page.chunk)
        hi, lo = words(batch, HI), words(batch, LO)
        groups = np.asarray([span.group for span in chosen], np.int64)
        counts = np.asarray([span.rows for span in chosen], np.int64)
        rows = np.arange(len(hi), dtype=np.uint64)
        if not whole:
            rows = np.concatenate(
                [np.arange(s.row, s.row + s.rows, dtype=np.uint64) for s in chosen]
            )
            hi, lo = hi[rows], lo[rows]
        addresses = (np.uint64(page.chunk) << np.uint64(ROW_BITS)) | rows
        deleted = batch.column(DELETED)
        if deleted.true_count:
            flags = deleted.to_numpy(zero_copy_only=False)[rows]
            addresses = np.where(flags, addresses | DELETED_BIT, addresses)
        self._index.reserve(groups, counts)
        self._index.upsert(hi, lo, addresses, self.shift)
        if self._owners is not None:
            self._owners.open_chunk(page.chunk, batch.num_rows)
            if not piece.is_run:
                self._owners.add(addresses, groups, counts)
        self._logged[groups] += counts

    def touch(self, groups: Int64Array) -> None:
        """Map, verify and index the base of key groups that are about to be read."""
        for group in groups[~self._base_ready[groups]].tolist():
            piece = self._base_piece[group]
            assert piece is not None
            place = self._segment(piece.segment).place(piece.number, group)
            assert place is not None
            number, span = place
            page = self._page(piece, number, [span])
            batch = self._columns.chunk(page.chunk)
            end = span.row + span.rows
            hi = words(batch, HI)[span.row : end]
            lo = words(batch, LO)[span.row : end]
            self._base.set(group, page.chunk, span.row, hi, lo)
            self._base_ready[group] = True

    def find(self, hi: UInt64Array, lo: UInt64Array) -> UInt64Array:
        """The address of each fingerprint's row; 0 where the state has none."""
        touched = count_groups(hi, np.uint64(self.shift), self.key_groups)
        self.touch(np.flatnonzero(touched))
        base = self._base
        return find(
            hi,
            lo,
            np.uint64(self.shift),
            self._index.pointers,
            self._index.masks,
            base.rows,
            base.chunks,
            base.first_rows,
            base.hi_pointers,
            base.lo_pointers,
            base.directory_pointers,
            base.directory_shifts,
        )

    def chunks(self) -> dict[tuple[int, int], pa.RecordBatch]:
        """The pages in use, by chunk number and serial number."""
        return self._columns.chunks()

    def entries(self, hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all rows of each owner, and where each owner's begin; owned tables only."""
        assert self._owners is not None
        touched = count_groups(hi, np.uint64(self.shift), self.key_groups)
        self.touch(np.flatnonzero(touched))
        return self._owners.scan(hi, lo, self._index, self._base)

    def gather(self, addresses: UInt64Array, names: list[str]) -> list[pa.Array]:
        """Columns of the rows at these addresses; NULL where an address is 0."""
        return self._columns.gather(addresses, names)

    def rows(self, group: int) -> UInt64Array:
        """Addresses of all rows of a key group, sorted by fingerprint."""
        self.touch(np.asarray([group]))
        hi, lo, address = self._index.entries(group)
        order = sort_order(hi, lo)
        chunk, first, count = (
            int(self._base.chunks[group]),
            int(self._base.first_rows[group]),
            int(self._base.rows[group]),
        )
        if count:
            batch = self._columns.chunk(chunk)
            base_hi = words(batch, HI)[first : first + count]
            base_lo = words(batch, LO)[first : first + count]
        else:
            base_hi = base_lo = np.empty(0, np.uint64)
        start = np.uint64(chunk << ROW_BITS | first)
        return merge_addresses(base_hi, base_lo, start, hi[order], lo[order], address[order], False)

    def read(self, groups: Int64Array) -> pa.RecordBatch:
        """All rows of some key groups, sorted by fingerprint."""
        return self._batch(self.rows(int(group)) for group in groups)[0]

    def _batch(self, parts: object) -> tuple[pa.RecordBatch, Int64Array]:
        listed: list[UInt64Array] = list(parts)  # type: ignore[call-overload]
        counts = np.asarray([len(part) for part in listed], np.int64)
        addresses = np.concatenate(listed) if listed else np.empty(0, np.uint64)
        arrays = self._columns.gather(addresses, self.schema.names)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), counts

    def delta(self, changed: pa.RecordBatch) -> list[SectionData]:
        """Changed rows, sorted by fingerprint, as sections of the next version's segment.

        Rows of key groups that were empty are all there is, so they are written as a base at once.
        """
        hi = words(changed, HI)
        counts = count_groups(hi, np.uint64(self.shift), self.key_groups)
        blank = (self._base_rows == 0) & (self._logged == 0) & (counts > 0)
        if not blank.any():
            return [self._changes(changed, counts, self.version)]
        in_blank = blank[(hi >> np.uint64(self.shift)).astype(np.int64)]
        deleted = changed.column(DELETED).to_numpy(zero_copy_only=False)
        sections = []
        for mask, first in ((in_blank & ~deleted, Epoch(0)), (~in_blank, self.version)):
            part = changed.filter(pa.array(mask))
            if part.num_rows:
                part_counts = count_groups(words(part, HI), np.uint64(self.shift), self.key_groups)
                sections.append(self._changes(part, part_counts, first))
        # Deleting what was never there writes nothing; a segment has a section all the same.
        return sections or [self._changes(changed.slice(0, 0), np.zeros_like(counts), self.version)]

    def _changes(self, rows: pa.RecordBatch, counts: Int64Array, first: Epoch) -> SectionData:
        groups = np.flatnonzero(counts)
        return SectionData(first, Epoch(self.version + 1), groups, groups, counts[groups], rows)

    def plan_merges(self, groups: Int64Array, changed_rows: int, index_budget: int) -> Int64Array:
        """Which of a shard's key groups to merge while it writes `changed_rows` rows."""
        bytes_ = np.asarray([self._index.group_bytes(g) for g in groups.tolist()], np.int64)
        load = GroupLoad(
            groups=groups,
            base_rows=self._base_rows[groups],
            logged_rows=self._logged[groups],
            index_rows=self._index.counts[groups],
            index_bytes=bytes_,
        )
        return plan_merges(load, changed_rows, index_budget)

    def merged(self, groups: Int64Array) -> SectionData:
        """A new base for some key groups, as of this version."""
        batch, counts = self._batch(self.rows(int(group)) for group in groups)
        full = counts > 0
        return SectionData(Epoch(0), self.version, groups, groups[full], counts[full], batch)

    def run(self, groups: Int64Array) -> SectionData | None:
        """The newest small deltas of some key groups as one, if there are enough of them."""
        mine = [
            (piece, np.intersect1d(covers, groups, assume_unique=True))
            for piece, covers in self.log.pieces()
        ]
        mine = [(piece, covers) for piece, covers in reversed(mine) if len(covers)]
        number = plan_run([piece.section.rows for piece, _ in mine])
        if not number:
            return None
        first = min(piece.section.first for piece, _ in mine[:number])
        # The run speaks for all that began after `first`, so it must hold all of that. More than
        # the newest pieces is meant only where other shards' runs reach further back.
        taken = [(piece, covers) for piece, covers in mine if piece.section.first >= first]
        pieces = {piece.id for piece, _ in taken}
        chunks = np.asarray(
            sorted(page.chunk for key, page in self._pages.items() if key[0] in pieces), np.uint64
        )
        parts = []
        for group in groups.tolist():
            hi, lo, address = self._index.entries(group)
            chunk = (address & ~DELETED_BIT) >> np.uint64(ROW_BITS)
            mask = np.isin(chunk, chunks)
            hi, lo, address = hi[mask], lo[mask], address[mask]
            parts.append(address[sort_order(hi, lo)])
        batch, counts = self._batch(parts)
        covers = np.unique(np.concatenate([covers for _, covers in taken]))
        full = counts > 0
        return SectionData(first, self.version, covers, groups[full], counts[full], batch)

    @property
    def most_rows(self) -> int:
        """No more rows than this; fewer if some were changed since the last merge."""
        return int(self._base_rows.sum() + self._index.counts.sum())

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone: the indexes and the directories."""
        chains = self._owners.bytes if self._owners is not None else 0
        return self._index.bytes + self._base.bytes + chains

    @property
    def mapped_bytes(self) -> int:
        """Bytes of pages in use; shared with other processes and evictable."""
        return self._columns.mapped_bytes


def words(batch: pa.RecordBatch, name: str) -> UInt64Array:
    """A column of words, as a view of the page."""
    column = batch.column(name)
    words: UInt64Array = np.frombuffer(column.buffers()[1], np.uint64)
    return words[column.offset : column.offset + len(column)]
