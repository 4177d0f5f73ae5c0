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

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import Epoch
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import OWNER_FIELDS, SYSTEM_FIELDS
from millrace.log.store import Store
from millrace.log.trail import LivePieces, OperatorLog, Piece, PieceId
from millrace.state.mapped_pages import MappedPages
from millrace.state.sorting import count_groups
from millrace.state.table import Table

NEVER = -1


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
        scheme: Scheme | None = None,
    ) -> None:
        """With `by_column`, columns of pages are verified and fetched when they are asked for.

        `scheme` is the location's, for those who compute fingerprints of rows.
        """
        self.scheme = scheme
        self.schema = pa.schema([*SYSTEM_FIELDS, *(OWNER_FIELDS if owned else ()), *schema])
        self.key_groups = key_groups
        self._pages = MappedPages(store, self.schema, key_groups, owned=owned, by_column=by_column)
        self._table = Table(self._pages, key_groups, owned=owned)
        self.shift = self._table.shift
        self._at: Int64Array = np.full(key_groups, NEVER, np.int64)
        self._taken: Int64Array = np.full(key_groups, NEVER, np.int64)
        """The version up to which a key group's pieces are in the index; behind `_at` until it is
        touched."""
        self._is_settled = False
        """Whether every key group that is held was touched, so that look-ups need not see to it."""
        self._base_piece: list[Piece | None] = [None] * key_groups
        self._base_ready: BoolArray = np.zeros(key_groups, np.bool_)
        self._base_rows: Int64Array = np.zeros(key_groups, np.int64)
        self._logged: Int64Array = np.zeros(key_groups, np.int64)
        self._changes_of: dict[int, tuple[int, tuple[UInt64Array, UInt64Array]]] = {}
        """What `changed` found, and at which version, for scans of the same epoch."""
        self.live: LivePieces = OperatorLog(key_groups).live()
        """The deltas and runs that count at the version."""
        self.version = Epoch(0)
        self.page_orders: dict[str, dict[Any, Any]] = {}
        """By column, what `state.time_index` knows of the pages in use."""

    def follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        """Bring key groups to a version."""
        try:
            self._follow(log, version, groups)
        except BaseException:
            # A missing file or a failing store leaves key groups half-way: start them over.
            self.forget(groups)
            raise

    def _follow(self, log: OperatorLog, version: Epoch, groups: Int64Array) -> None:
        self._pages.check_lengths()
        self.drop_overlay()
        followed = np.zeros(self.key_groups, np.bool_)
        followed[groups] = True
        self._leave_behind(np.flatnonzero(~followed & (self._taken != self._at)))
        self.live = log.live()
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
        self._is_settled = False
        if retired or fresh.any():
            self._pages.close_segments(self.segments())

    def _count(self, followed: BoolArray) -> bool:
        """Open what is new to key groups and count its rows; whether some of it is a run."""
        # What is live for a key group came after its base.
        seen = np.maximum(self._at, self.live.base_last)
        new = list(self.live.after(int(seen[followed].min(initial=self.version))))
        runs = [piece for piece, _ in new if piece.is_run]
        if runs:
            # The deltas that a run replaces no longer count: start counting from zero.
            self._logged[followed] = 0
            seen = self.live.base_last
            new = list(self.live.after())
        if self._pages.is_remote:
            self._pages.fetch((piece, None) for piece, _ in new)
        for piece, covers in new:
            takes = np.zeros(self.key_groups, np.bool_)
            takes[covers] = followed[covers] & (seen[covers] < piece.segment.epoch)
            if takes.any():
                index = self._pages.group_index(piece)
                self._logged[index.groups] += np.where(takes[index.groups], index.rows, 0)
        return bool(runs)

    def _leave_behind(self, groups: Int64Array) -> None:
        """Key groups that are not followed any further stay at the version they were read at."""
        self._at[groups] = self._taken[groups]
        self._is_settled = False
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
            self._table.drop_base(group)
            base = self._base_piece[group] = bases[group]
            if base is None:
                continue
            index = self._pages.group_index(base)
            at = index.find(group)
            if at is not None:
                self._base_rows[group] = index.rows[at]
                self._base_ready[group] = False

    def _drop_pieces(self, groups: Int64Array) -> None:
        """Empty key groups' indexes; pages of their bases go as well."""
        self._table.drop(groups)
        self._taken[groups] = NEVER
        self._is_settled = False
        for group in groups.tolist():
            self._changes_of.pop(group, None)

    def touch(self, groups: Int64Array) -> None:
        """Make key groups that are about to be read ready for it."""
        if self._pages.is_remote:
            self._pages.fetch(self._needed(groups))
        self._take(groups)
        for group in groups[~self._base_ready[groups]].tolist():
            base = self._base_piece[group]
            assert base is not None
            self._table.take_base(group, base)
            self._base_ready[group] = True
        if not self._is_settled:
            self._is_settled = bool(
                (self._taken == self._at).all() and self._base_ready[self._at != NEVER].all()
            )

    def _touch_of(self, hi: UInt64Array) -> None:
        """Make the key groups of some keys ready."""
        if not self._is_settled:
            self.touch(np.flatnonzero(self._counts(hi)))

    def _counts(self, hi: UInt64Array) -> Int64Array:
        """How many of some keys each key group has."""
        return count_groups(hi, np.uint64(self.shift), self.key_groups)

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
            self._table.drop_base(group)
            self._base_ready[group] = False

    def _catch_up(self, groups: Int64Array) -> None:
        """Take the pieces that key groups have followed but not taken."""
        self._make_room(groups[self._taken[groups] == NEVER])
        for piece, takers in self._untaken(groups):
            self._table.take(piece, takers)
        self._taken[groups] = self._at[groups]

    def _untaken(self, groups: Int64Array) -> Iterator[tuple[Piece, Int64Array]]:
        """Pieces that key groups have followed but not taken, and which of them take each."""
        if not len(groups):
            return
        behind = np.zeros(self.key_groups, np.bool_)
        behind[groups] = True
        taken = np.maximum(self._taken, self.live.base_last)
        for piece, covers in self.live.after(int(taken[groups].min())):
            takers = covers[behind[covers] & (taken[covers] < piece.segment.epoch)]
            if len(takers):
                yield piece, takers

    def _make_room(self, groups: Int64Array) -> None:
        """Make room at once for what key groups that start over are about to take."""
        rows, logged = self._base_rows[groups], self._logged[groups]
        # As many distinct keys as uniform updates of the base's rows have; not a bound.
        distinct = np.where(rows > 0, -np.expm1(-logged / np.maximum(rows, 1)) * rows, logged)
        full = logged > 0
        self._table.reserve(groups[full], np.ceil(distinct[full]).astype(np.int64))

    def overlay(self, rows: pa.RecordBatch) -> None:
        """Lay changed rows, sorted by fingerprint, over the version, until `drop_overlay`.

        For a task that computes an epoch in several steps, each of which must see the ones before.
        """
        self._table.lay_over(rows)
        self._changes_of.clear()

    def drop_overlay(self) -> pa.RecordBatch | None:
        """Go back to the version; what the overlay had, each row once, in order of fingerprint."""
        if self._table.overlay is not None:
            self._changes_of.clear()
        return self._table.drop_overlay()

    def find(self, hi: UInt64Array, lo: UInt64Array) -> UInt64Array:
        """The address of each fingerprint's row; 0 where the state has none."""
        self._touch_of(hi)
        return self._table.find(hi, lo)

    def entries(self, hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, Int64Array]:
        """Addresses of all rows of each owner, and where each owner's begin; owned tables only."""
        self._touch_of(hi)
        return self._table.entries(hi, lo)

    def rows(self, group: int) -> UInt64Array:
        """Addresses of all rows of a key group, sorted by fingerprint."""
        self.touch(np.asarray([group]))
        return self._table.rows(group)

    def rows_in(
        self, pieces: Collection[PieceId], covers: Int64Array, groups: Int64Array
    ) -> list[UInt64Array]:
        """Per key group, the addresses of rows that are in some live pieces; no base is touched.

        `covers` are the key groups that the pieces speak for.
        """
        self._take(covers)
        chunks = self._pages.chunks_of(pieces)
        return [self._table.rows_in(group, chunks) for group in groups.tolist()]

    def read(self, groups: Int64Array) -> pa.RecordBatch:
        """All rows of some key groups, sorted by fingerprint."""
        return self.batch([self.rows(int(group)) for group in groups])[0]

    def batch(self, parts: Sequence[UInt64Array]) -> tuple[pa.RecordBatch, Int64Array]:
        """The rows at some addresses, one part after the other, and how many each has."""
        counts = np.asarray([len(part) for part in parts], np.int64)
        addresses = np.concatenate(parts) if len(parts) else np.empty(0, np.uint64)
        arrays = self.gather(addresses, self.schema.names)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), counts

    def gather(self, addresses: UInt64Array, names: list[str]) -> list[pa.Array]:
        """Columns of the rows at these addresses; NULL where an address is 0."""
        return self._pages.gather(addresses, names)

    def load(self, groups: Int64Array, names: Collection[str]) -> None:
        """Have some columns of key groups that were touched on this machine, if not all are."""
        self._pages.load(groups, names)

    def column(self, chunk: int, name: str) -> pa.Array:
        """A whole column of a page in use, without a copy."""
        return self._pages.column(chunk, name)

    def chunks(self) -> dict[tuple[int, int], pa.RecordBatch]:
        """The pages in use, by chunk number and serial number."""
        return self._pages.columns.chunks()

    def users(self) -> Iterator[tuple[int, Collection[int]]]:
        """The pages in use by chunk number, and the key groups whose rows in it count.

        Of a table whose rows are never changed or deleted, these are all rows there are.
        """
        return self._pages.users()

    def pointers(self, name: str) -> UInt64Array:
        """Per chunk, a pointer to the values of a column of fixed width, for kernels."""
        return self._pages.columns.values(name)

    def base_slice(self, group: int) -> tuple[int, int, int]:
        """Where the base of a key group that was touched is: chunk, first row, number of rows."""
        return self._table.base_slice(group)

    def changed(self, group: int) -> tuple[UInt64Array, UInt64Array]:
        """Of a key group that was touched, what changed since its base.

        The addresses of the base's rows that no longer count, and of the rows beside the base.
        """
        taken, known = self._changes_of.get(group, (NEVER, None))
        if known is None or taken != self._taken[group]:
            known = self._table.changed(group)
            self._changes_of[group] = (int(self._taken[group]), known)
        return known

    def row_counts(self) -> tuple[Int64Array, Int64Array]:
        """Per key group that was followed, the rows of its base and those written since."""
        return self._base_rows.copy(), self._logged.copy()

    @property
    def laid_over(self) -> int:
        """How many rows were laid over the version, also those that others took the place of."""
        overlay = self._table.overlay
        return 0 if overlay is None else overlay.rows

    @property
    def most_rows(self) -> int:
        """No more rows than this; fewer if some were changed since the last merge."""
        return int(self._base_rows.sum() + self._logged.sum() + self.laid_over)

    def segments(self) -> frozenset[str]:
        """The segments that what was followed is in: other rows, other segments."""
        bases = {piece.segment.path for piece in self._base_piece if piece is not None}
        laid_over = {f"{self.laid_over} rows of an epoch"} if self.laid_over else set()
        return frozenset(bases | self.live.paths() | laid_over)

    def bytes_of(self, groups: Int64Array) -> int:
        """The share of some key groups in the pages in use."""
        return self._pages.bytes_of(groups)

    def index_bytes(self, groups: Int64Array) -> Int64Array:
        """Memory of each key group's index."""
        return self._table.index_bytes(groups)

    @property
    def read_bytes(self) -> int:
        """Bytes of the pages in use that were looked at."""
        return self._pages.read_bytes

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone: the indexes and the directories."""
        scanned = sum(a.nbytes + b.nbytes for _, (a, b) in self._changes_of.values())
        ordered: int = sum(
            page.bytes for pages in self.page_orders.values() for page in pages.values()
        )
        return self._table.heap_bytes + scanned + ordered

    @property
    def mapped_bytes(self) -> int:
        """Bytes of pages in use; shared with other processes and evictable."""
        return self._pages.columns.mapped_bytes
