"""A replica: the state of some key groups at a version, brought forward by following the log.

Invariant: a replica changes only by following. A task that computes new rows writes them as a
segment and does not touch the replica; when the epoch is committed, the next task finds the segment
in the log and follows it, as every other replica does. So an epoch that fails, runs twice, or loses
against another driver leaves no trace here.

Following is declarative: given what is live in the log at a version, each key group whose base has
changed starts over from that base, and every key group takes the pieces it has not seen. Opening,
catching up, taking a key group over and recovering are this one step.

Following opens and maps the files, no more, so that nothing that happens to them later matters.
Their rows are looked at when a key group is first *touched*: then its base is verified and gets a
directory, and the deltas it has not taken yet are verified and indexed. Pages stay mapped; only the
index of the deltas' fingerprints is in memory, and only of key groups that are in use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.ids import Epoch
from millrace.keygroups import group_shift
from millrace.log.pages import READERS
from millrace.log.segment import (
    DELETED,
    HI,
    LO,
    SYSTEM_FIELDS,
    Places,
    SectionData,
    Segment,
    SegmentEntry,
    open_segment,
)
from millrace.log.store import Store
from millrace.log.trail import LivePieces, OperatorLog, Piece, PieceId
from millrace.state.base import BaseTable, find, merge_addresses
from millrace.state.columns import DELETED_BIT, ROW_BITS, ColumnStore
from millrace.state.index import DeltaIndex
from millrace.state.lazy import LazyPages
from millrace.state.merging import GroupLoad, has_many_pieces, plan_merges, plan_run
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
        self,
        store: Store,
        schema: pa.Schema,
        key_groups: int,
        *,
        owned: bool = False,
        by_column: bool = False,
    ) -> None:
        """With `by_column`, columns of pages are verified and fetched when they are asked for."""
        self.schema = pa.schema([*SYSTEM_FIELDS, *(OWNER_FIELDS if owned else ()), *schema])
        self.key_groups = key_groups
        self._store = store
        self._is_remote = store.local_path("") is None
        self.shift = group_shift(key_groups)
        self._columns = ColumnStore(self.schema)
        self._index = DeltaIndex(key_groups)
        self._base = BaseTable(key_groups)
        self._owners = OwnerIndex(key_groups, self._columns, self.shift) if owned else None
        self._at: Int64Array = np.full(key_groups, NEVER, np.int64)
        self._taken: Int64Array = np.full(key_groups, NEVER, np.int64)
        """The version up to which a key group's pieces are in the index; behind `_at` until it is
        touched."""
        self._base_piece: list[Piece | None] = [None] * key_groups
        self._base_ready: npt.NDArray[np.bool_] = np.zeros(key_groups, np.bool_)
        self._base_rows: Int64Array = np.zeros(key_groups, np.int64)
        self._logged: Int64Array = np.zeros(key_groups, np.int64)
        self._segments: dict[str, Segment] = {}
        self._pages: dict[tuple[PieceId, int], _Page] = {}
        self._live: LivePieces = OperatorLog(key_groups).live()
        self._lazy = LazyPages(self.schema, owned) if by_column else None
        self._changes_of: dict[int, tuple[int, tuple[UInt64Array, UInt64Array]]] = {}
        """What `changed` found, and at which version, for scans of the same epoch."""
        self.version = Epoch(0)

    def follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        """Bring key groups to a version."""
        try:
            self._follow(log, version, groups)
        except BaseException:
            # A missing file or a failing store leaves key groups half-way: start them over.
            self.forget(groups)
            raise

    def _follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        for segment in self._segments.values():
            segment.check_length()
        followed = np.zeros(self.key_groups, np.bool_)
        followed[groups] = True
        self._leave_behind(np.flatnonzero(~followed & (self._taken != self._at)))
        self._live = log.live()
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
        self._at[fresh] = NEVER
        retired = self._count(followed)
        self._at[groups] = version
        if retired or fresh.any():
            self._forget_segments()

    def _count(self, followed: BoolArray) -> bool:
        """Open what is new to key groups and count its rows; whether some of it is a run."""
        # What is live for a key group came after its base.
        seen = np.maximum(self._at, self._live.base_last)
        new = list(self._live.after(int(seen[followed].min(initial=self.version))))
        runs = [piece for piece, _ in new if piece.is_run]
        if runs:
            # What a run stands for no longer counts: count all there is anew.
            self._logged[followed] = 0
            seen = self._live.base_last
            new = list(self._live.after())
        if self._is_remote:
            self._fetch([(piece, None) for piece, _ in new])
        for piece, covers in new:
            takes = np.zeros(self.key_groups, np.bool_)
            takes[covers] = followed[covers] & (seen[covers] < piece.segment.epoch)
            if takes.any():
                places = self._segment(piece.segment).places(piece.number)
                self._logged[places.groups] += np.where(takes[places.groups], places.rows, 0)
        return bool(runs)

    def _leave_behind(self, groups: Int64Array) -> None:
        """Key groups that are not followed any further stay at the version they were read at."""
        self._at[groups] = self._taken[groups]
        self.forget(groups[self._at[groups] == NEVER])

    def forget(self, groups: Int64Array) -> None:
        """Drop key groups; they can be followed again later."""
        self._reset(groups, [None] * self.key_groups)
        self._at[groups] = NEVER

    def held(self) -> Int64Array:
        return np.flatnonzero(self._at != NEVER)

    def holds(self, groups: Int64Array) -> bool:
        """Whether all of some key groups are held."""
        return bool((self._at[groups] != NEVER).all())

    def warm(self) -> Int64Array:
        """Key groups that have been read, so that only what came since then is to be taken."""
        return np.flatnonzero(self._taken != NEVER)

    def lag(self, group: int) -> int:
        """How many epochs a held key group is behind the newest version followed."""
        return int(self.version - self._at[group])

    def _reset(self, groups: Int64Array, bases: list[Piece | None]) -> None:
        """Start key groups over from nothing but their base."""
        self._drop_pieces(groups)
        self._logged[groups] = 0
        self._base_rows[groups] = 0
        self._base_ready[groups] = True
        for group in groups.tolist():
            self._base.drop(group)
            base = self._base_piece[group] = bases[group]
            if base is None:
                continue
            places = self._segment(base.segment).places(base.number)
            at = places.find(group)
            if at is not None:
                self._base_rows[group] = places.rows[at]
                self._base_ready[group] = False

    def _drop_pieces(self, groups: Int64Array) -> None:
        """Empty key groups' indexes; pages of their bases go as well."""
        self._unuse(set(groups.tolist()))
        self._taken[groups] = NEVER
        for group in groups.tolist():
            self._changes_of.pop(group, None)
            self._index.drop(group)
            if self._owners is not None:
                self._owners.drop(group)

    def _unuse(self, groups: set[int], first: int = -1, last: int | None = None) -> None:
        """Key groups let go of their pages, or only of those within epochs (first, last]."""
        done = []
        for key, page in self._pages.items():
            if last is not None and not (first <= page.first and page.last <= last):
                continue
            for group in groups & page.rows.keys():
                del page.rows[group]
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
        used |= self._live.paths()
        for path in [p for p in self._segments if p not in used]:
            del self._segments[path]

    def _page(self, piece: Piece, places: Places, chosen: Int64Array) -> _Page:
        """A page of a piece's section as a chunk, used by some more of its key groups."""
        number = int(places.pages[chosen[0]])
        key = (piece.id, number)
        page = self._pages.get(key)
        if page is None:
            section = piece.section
            segment = self._segment(piece.segment)
            at = section.first_page + number
            batch = segment.page(at) if self._lazy is None else self._lazy.page(segment, at)
            page = _Page(self._columns.add(batch), section.first, section.last, {})
            self._pages[key] = page
            if self._lazy is not None:
                self._lazy.opened(page.chunk, segment, at)
        groups, rows = places.groups[chosen].tolist(), places.rows[chosen].tolist()
        page.rows.update(zip(groups, rows, strict=True))
        return page

    def touch(self, groups: Int64Array) -> None:
        """Make key groups that are about to be read ready for it."""
        if self._is_remote:
            self._fetch(self._needed(groups))
        self._take(groups)
        self._touch_bases(groups[~self._base_ready[groups]])

    def _needed(self, groups: Int64Array) -> list[tuple[Piece, Int64Array | None]]:
        """Pieces that a touch is going to read, and for which key groups."""
        needed: list[tuple[Piece, Int64Array | None]] = []
        needed += self._untaken(groups[self._taken[groups] != self._at[groups]])
        bases: dict[PieceId, tuple[Piece, list[int]]] = {}
        for group in groups[~self._base_ready[groups]].tolist():
            base = self._base_piece[group]
            if base is not None:
                bases.setdefault(base.id, (base, []))[1].append(group)
        return needed + [(piece, np.asarray(mine, np.int64)) for piece, mine in bases.values()]

    def _fetch(self, needed: list[tuple[Piece, Int64Array | None]]) -> None:
        """Have pieces' pages for some key groups on this machine: few requests, many at a time."""

        def fetch(one: tuple[Piece, Int64Array | None]) -> None:
            piece, groups = one
            segment = self._segment(piece.segment)
            if groups is not None:
                places = segment.places(piece.number)
                pages = np.unique(places.pages[np.isin(places.groups, groups)])
                numbers = (pages + piece.section.first_page).tolist()
                if self._lazy is None:
                    segment.prefetch(numbers)
                else:
                    segment.fetch_columns(numbers, self._lazy.always)

        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(fetch, needed):
                pass

    def _take(self, groups: Int64Array) -> None:
        """Have the deltas that key groups follow in the index."""
        behind = groups[self._taken[groups] != self._at[groups]]
        if not len(behind):
            return
        try:
            self._catch_up(behind)
        except BaseException:
            # A damaged page: what was taken of it must not be mistaken for the state.
            self._restart(behind)
            raise

    def _restart(self, groups: Int64Array) -> None:
        """As after following, before any touch."""
        self._drop_pieces(groups)
        for group in groups[self._base_rows[groups] > 0].tolist():
            self._base.drop(group)
            self._base_ready[group] = False

    def _catch_up(self, groups: Int64Array) -> None:
        """Take the pieces that key groups have followed but not taken."""
        self._make_room(groups[self._taken[groups] == NEVER])
        for piece, takers in self._untaken(groups):
            self._apply(piece, takers)
        self._taken[groups] = self._at[groups]

    def _untaken(self, groups: Int64Array) -> Iterator[tuple[Piece, Int64Array]]:
        """Pieces that key groups have followed but not taken, and which of them take each."""
        if not len(groups):
            return
        behind = np.zeros(self.key_groups, np.bool_)
        behind[groups] = True
        taken = np.maximum(self._taken, self._live.base_last)
        for piece, covers in self._live.after(int(taken[groups].min())):
            takers = covers[behind[covers] & (taken[covers] < piece.segment.epoch)]
            if len(takers):
                yield piece, takers

    def _make_room(self, groups: Int64Array) -> None:
        """Make room at once for what key groups that start over are about to take."""
        rows, logged = self._base_rows[groups], self._logged[groups]
        # As many distinct keys as uniform updates of the base's rows have; not a bound.
        distinct = np.where(rows > 0, -np.expm1(-logged / np.maximum(rows, 1)) * rows, logged)
        full = logged > 0
        self._index.reserve(groups[full], np.ceil(distinct[full]).astype(np.int64))

    def _apply(self, piece: Piece, takers: Int64Array) -> None:
        """Index a delta's or run's rows for some key groups."""
        if piece.is_run:
            self._unuse_superseded(piece, takers)
        places = self._segment(piece.segment).places(piece.number)
        taking = np.zeros(self.key_groups, np.bool_)
        taking[takers] = True
        chosen = np.flatnonzero(taking[places.groups])
        for part in np.split(chosen, np.flatnonzero(np.diff(places.pages[chosen])) + 1):
            if len(part):
                self._apply_page(piece, places, part)
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

    def _apply_page(self, piece: Piece, places: Places, chosen: Int64Array) -> None:
        """Index the rows of some key groups, all in one page."""
        groups, counts, starts = places.groups[chosen], places.rows[chosen], places.starts[chosen]
        page = self._page(piece, places, chosen)
        batch = self._columns.chunk(page.chunk)
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

    def _touch_bases(self, groups: Int64Array) -> None:
        """Map, verify and index the bases of key groups."""
        for group in groups.tolist():
            piece = self._base_piece[group]
            assert piece is not None
            places = self._segment(piece.segment).places(piece.number)
            at = places.find(group)
            assert at is not None
            page = self._page(piece, places, np.asarray([at]))
            batch = self._columns.chunk(page.chunk)
            start = int(places.starts[at])
            end = start + int(places.rows[at])
            hi, lo = words(batch, HI)[start:end], words(batch, LO)[start:end]
            self._base.set(group, page.chunk, start, hi, lo)
            self._base_ready[group] = True

    def find(self, hi: UInt64Array, lo: UInt64Array) -> UInt64Array:
        """The address of each fingerprint's row; 0 where the state has none."""
        touched = count_groups(hi, np.uint64(self.shift), self.key_groups)
        self.touch(np.flatnonzero(touched))
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

    def bytes_of(self, groups: Int64Array) -> int:
        """The share of some key groups in the pages in use."""
        wanted = set(groups.tolist())
        total = 0.0
        for page in self._pages.values():
            rows = sum(count for group, count in page.rows.items() if group in wanted)
            if rows:
                batch = self._columns.chunk(page.chunk)
                total += batch.nbytes * rows / batch.num_rows
        return round(total)

    def chunks(self) -> dict[tuple[int, int], pa.RecordBatch]:
        """The pages in use, by chunk number and serial number."""
        return self._columns.chunks()

    def entries(self, hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all rows of each owner, and where each owner's begin; owned tables only."""
        assert self._owners is not None
        touched = count_groups(hi, np.uint64(self.shift), self.key_groups)
        self.touch(np.flatnonzero(touched))
        return self._owners.scan(hi, lo, self._index, self._base)

    def load(self, groups: Int64Array, names: Collection[str]) -> None:
        """Have some columns of key groups that were touched on this machine, if not all are."""
        if self._lazy is not None and self._is_remote:
            wanted = set(groups.tolist())
            chunks = [p.chunk for p in self._pages.values() if not wanted.isdisjoint(p.rows)]
            self._lazy.fetch(chunks, names)

    def gather(self, addresses: UInt64Array, names: list[str]) -> list[pa.Array]:
        """Columns of the rows at these addresses; NULL where an address is 0."""
        if self._lazy is not None:
            chunks = ((addresses & ~DELETED_BIT) >> np.uint64(ROW_BITS)).astype(np.int64)
            for chunk in np.flatnonzero(np.bincount(chunks)).tolist():
                self._lazy.check(chunk, names)
        return self._columns.gather(addresses, names)

    def base_slice(self, group: int) -> tuple[int, int, int]:
        """Where the base of a key group that was touched is: chunk, first row, number of rows."""
        base = self._base
        return int(base.chunks[group]), int(base.first_rows[group]), int(base.rows[group])

    def changed(self, group: int) -> tuple[UInt64Array, UInt64Array]:
        """Of a key group that was touched, what changed since its base.

        The addresses of the base's rows that no longer count, and of the rows beside the base.
        """
        taken, known = self._changes_of.get(group, (NEVER, None))
        if known is not None and taken == self._taken[group]:
            return known
        hi, lo, address = self._index.entries(group)
        if not len(hi):
            return address, address
        below = self._find(hi, lo, np.zeros_like(self._index.pointers))
        known = (below[below != 0], address[address & DELETED_BIT == 0])
        self._changes_of[group] = (int(self._taken[group]), known)
        return known

    def column(self, chunk: int, name: str) -> pa.Array:
        """A whole column of a page in use, without a copy."""
        if self._lazy is not None:
            self._lazy.check(chunk, [name])
        return self._columns.column(chunk, name)

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
        arrays = self.gather(addresses, self.schema.names)
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
        load = GroupLoad(groups, self._base_rows[groups], self._logged[groups], bytes_)
        return plan_merges(load, changed_rows, index_budget)

    def merged(self, groups: Int64Array) -> SectionData:
        """A new base for some key groups, as of this version."""
        batch, counts = self._batch(self.rows(int(group)) for group in groups)
        full = counts > 0
        return SectionData(Epoch(0), self.version, groups, groups[full], counts[full], batch)

    def run(self, groups: Int64Array) -> SectionData | None:
        """The newest small deltas of some key groups as one, if there are enough of them."""
        if not has_many_pieces(len(self._live.pieces)):
            return None
        own = np.zeros(self.key_groups, np.bool_)
        own[groups] = True
        mine = [
            (piece, covers[own[covers]])
            for piece, covers in self._live.newest_first()
            if own[covers].any()
        ]
        number = plan_run([piece.section.rows for piece, _ in mine])
        if not number:
            return None
        first = min(piece.section.first for piece, _ in mine[:number])
        # The run speaks for all that began after `first`, so it must hold all of that. More than
        # the newest pieces is meant only where other shards' runs reach further back.
        taken = [(piece, covers) for piece, covers in mine if piece.section.first >= first]
        covers = np.unique(np.concatenate([covers for _, covers in taken]))
        self._take(covers)
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
        full = counts > 0
        return SectionData(first, self.version, covers, groups[full], counts[full], batch)

    def row_counts(self) -> tuple[Int64Array, Int64Array]:
        """Per key group that was followed, the rows of its base and those written since."""
        return self._base_rows.copy(), self._logged.copy()

    @property
    def most_rows(self) -> int:
        """No more rows than this; fewer if some were changed since the last merge."""
        return int(self._base_rows.sum() + self._logged.sum())

    def segments(self) -> frozenset[str]:
        """The segments that what was followed is in: other rows, other segments."""
        bases = {piece.segment.path for piece in self._base_piece if piece is not None}
        return frozenset(bases | self._live.paths())

    @property
    def read_bytes(self) -> int:
        """Bytes of the pages in use that were looked at."""
        return sum(segment.read_bytes for segment in self._segments.values())

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone: the indexes and the directories."""
        chains = self._owners.bytes if self._owners is not None else 0
        scanned = sum(a.nbytes + b.nbytes for _, (a, b) in self._changes_of.values())
        return self._index.bytes + self._base.bytes + chains + scanned

    @property
    def mapped_bytes(self) -> int:
        """Bytes of pages in use; shared with other processes and evictable."""
        return self._columns.mapped_bytes


def words(batch: pa.RecordBatch, name: str) -> UInt64Array:
    """A column of words, as a view of the page."""
    column = batch.column(name)
    words: UInt64Array = np.frombuffer(column.buffers()[1], np.uint64)
    return words[column.offset : column.offset + len(column)]
