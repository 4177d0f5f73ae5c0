"""The session operator: aggregates per key and session.

Spark's JVM has reduced each input partition to pieces: one row per key and stretch of a gap's
length, or per event time where order matters. Rows of a piece are less than a gap apart, so they
are of one session. In an epoch a shard (1) sets late pieces aside, (2) merges the others with their
keys' open sessions, (3) emits what is to be emitted, and (4) writes sessions that go on. A session
that another one absorbs is deleted; one that is over is not written: see `state.eviction`.

Invariant: no two sessions of a key in state touch. A session is emitted as final in the one epoch
whose watermark passes its end. What comes later begins a new one, or is late: as in Spark, a row is
late if the session of that row alone was over in the epoch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.log.segment import OWNER_HI, OWNER_LO
from millrace.operators.aggregate.reducers import Groups
from millrace.operators.aggregate.reducing import check_names
from millrace.operators.arrays import whole_numbers
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Column, Moment, TableChange
from millrace.operators.session.layout import (
    END,
    SESSION,
    START,
    eviction,
    session_column,
    table_layout,
)
from millrace.operators.session.merging import MergedSessions, merged_sessions
from millrace.operators.session.spec import SessionDefinition
from millrace.operators.timed_rows import changed_rows
from millrace.operators.window.early import due_after, due_before, stored_due
from millrace.operators.window.emission import NONE, UPDATE
from millrace.operators.window.timed import TimedOperator
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.time_index import TimeIndex

_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True)
class _SessionRows:
    """Sessions as they are written and shown."""

    owner_hi: UInt64Array
    owner_lo: UInt64Array
    starts: Int64Array
    ends: Int64Array
    keys: list[pa.Array]
    states: list[pa.Array]

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, positions: Int64Array) -> _SessionRows:
        chosen = pa.array(positions)
        return _SessionRows(
            self.owner_hi[positions],
            self.owner_lo[positions],
            self.starts[positions],
            self.ends[positions],
            [column.take(chosen) for column in self.keys],
            [column.take(chosen) for column in self.states],
        )


@dataclass(frozen=True)
class _Merged:
    """What came, merged with what was there."""

    rows: _SessionRows
    is_new: BoolArray
    """Whether state has no row with the session's start."""
    touched: UInt64Array
    """Addresses of the stored sessions that are part of a merged one."""
    part_of: Int64Array
    """Which one, by its number."""
    absorbed: BoolArray
    """Whether a touched one began later than the session that it is part of."""


class SessionOperator(TimedOperator):
    """Keys, the gap, aggregates, and when results are emitted."""

    definition: SessionDefinition

    def __init__(
        self,
        name: OperatorName,
        definition: SessionDefinition,
        fields: Sequence[Column] = (),
        *,
        ansi: bool = True,
    ) -> None:
        """`fields` are the columns of the stream, for the late rows."""
        self.gap_us = definition.gap_us
        super().__init__(name, definition, SESSION, fields, ansi=ansi)
        layout = table_layout(self.key_fields, self.reducers.fields, self.spec()["emit"])
        self.tables = {MAIN: layout}
        check_names(name, layout.schema.names)

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> SessionOperator:
        return SessionOperator(name, SessionDefinition.from_json(data), ansi=ansi)

    def sweep(self, table: str, moment: Moment) -> Eviction:
        return eviction(moment)

    def ends(self, rows: Input) -> tuple[Int64Array, BoolArray]:
        # A piece of a session is late as a whole.
        assert rows.last_us is not None
        last, known = whole_numbers(rows.last_us)
        return last + self.gap_us, known

    def advance(
        self,
        replica: Replica,
        rows: Input,
        positions: Int64Array | None,
        groups: Int64Array,
        moment: Moment,
    ) -> tuple[TableChange, pa.RecordBatch]:
        chosen = np.arange(rows.num_rows) if positions is None else positions
        merged = self._merged(replica, rows, chosen, moment.late_us or 0)
        emitting = _Emitting(self, replica, groups, moment, merged)
        output = emitting.output()
        return self._change(replica, merged, emitting), output

    def _merged(
        self, replica: Replica, rows: Input, positions: Int64Array, late_us: int
    ) -> _Merged:
        if not len(positions):
            none = np.empty(0, np.int64)
            return _Merged(
                self.stored(replica, _NONE), none == 0, _NONE, none, np.empty(0, np.bool_)
            )
        assert rows.first_us is not None
        assert rows.last_us is not None
        hi, lo = rows.hi[positions], rows.lo[positions]
        order = sort_order(hi, lo)
        source = positions[order]
        bounds = group_starts(hi[order], lo[order])
        heads = bounds[:-1]
        hi, lo = hi[order][heads], lo[order][heads]
        part = self.parts_of(rows, source)
        first, _ = whole_numbers(rows.first_us)
        last, _ = whole_numbers(rows.last_us)
        addresses, starts, ends, offsets = self._open(replica, hi, lo, late_us)
        pieces = first[source], last[source] + self.gap_us, bounds
        found = merged_sessions(pieces, part, (starts, ends, offsets))
        states = self._states(replica, rows, source, part, addresses, found)
        keys = self.keys_at(rows, source[heads[found.key]])
        merged = _SessionRows(hi[found.key], lo[found.key], found.starts, found.ends, keys, states)
        is_stored = found.members >= len(source)
        is_head = np.zeros(len(found.members), np.bool_)
        is_head[found.bounds[:-1]] = True
        number = np.repeat(np.arange(len(found)), np.diff(found.bounds))
        return _Merged(
            merged,
            ~is_stored[found.bounds[:-1]],
            addresses[found.members[is_stored] - len(source)],
            number[is_stored],
            ~is_head[is_stored],
        )

    def _open(
        self, replica: Replica, hi: UInt64Array, lo: UInt64Array, late_us: int
    ) -> tuple[UInt64Array, Int64Array, Int64Array, Int64Array]:
        """The sessions of some keys that were not over before the epoch: addresses, starts and
        ends, and where those of each key begin."""
        addresses, offsets = replica.entries(hi, lo)
        starts, ends = (whole_numbers(c)[0] for c in replica.gather(addresses, [START, END]))
        kept = ends > late_us
        before: Int64Array = np.concatenate(([0], np.cumsum(kept)))
        return addresses[kept], starts[kept], ends[kept], before[offsets]

    def _states(
        self,
        replica: Replica,
        rows: Input,
        source: Int64Array,
        part: Int64Array,
        addresses: UInt64Array,
        found: MergedSessions,
    ) -> list[pa.Array]:
        """The aggregates of merged sessions, put together in order of time."""
        alone = Groups(np.arange(len(source) + 1), part)
        nothing = np.zeros(len(source), np.uint64)
        came = self.reducers.merge(replica, nothing, rows.partials, source, alone)
        if not len(addresses) and len(found) == len(source):
            chosen = pa.array(found.members)
            return [column.take(chosen) for column in came]
        stored = replica.gather(addresses, [field.name for field in self.reducers.fields])
        chosen = pa.array(found.members)
        both = zip(came, stored, strict=True)
        states = [pa.concat_arrays(pair).take(chosen) for pair in both]
        return self.reducers.combine(states, found.bounds)

    def stored(self, replica: Replica, addresses: UInt64Array) -> _SessionRows:
        """Rows of the replica."""
        columns = replica.gather(addresses, [OWNER_HI, OWNER_LO, START, END])
        hi, lo, starts, ends = (column.to_numpy() for column in columns)
        keys = replica.gather(addresses, [key.name for key in self.keys])
        states = replica.gather(addresses, [field.name for field in self.reducers.fields])
        return _SessionRows(hi, lo, starts, ends, keys, states)

    def _change(self, replica: Replica, merged: _Merged, emitting: _Emitting) -> TableChange:
        """The sessions that go on, those that they absorbed, and how many are over."""
        staying = merged.rows.ends > emitting.limit
        goes_on = staying[merged.part_of]
        deleted = merged.touched[merged.absorbed & goes_on]
        rows = merged.rows.take(np.flatnonzero(staying))
        due = None if emitting.due is None else emitting.due.filter(pa.array(staying))
        changed = self._written(replica, rows, due, deleted)
        return TableChange(
            changed,
            int((staying & merged.is_new).sum()),
            len(deleted),
            int((~goes_on).sum()) + emitting.evicted(),
        )

    def _written(
        self, replica: Replica, rows: _SessionRows, due: pa.Array | None, deleted: UInt64Array
    ) -> pa.RecordBatch:
        """Rows of sessions, and deletions, in order of their fingerprints."""
        columns = [*rows.keys, pa.array(rows.starts), pa.array(rows.ends), *rows.states]
        if due is not None:
            columns.append(due)
        owners = rows.owner_hi, rows.owner_lo
        return changed_rows(replica, START, owners, rows.starts, columns, deleted)


class _Emitting:
    """What one shard emits in one epoch, and which sessions are over after it."""

    def __init__(
        self,
        operator: SessionOperator,
        replica: Replica,
        groups: Int64Array,
        moment: Moment,
        merged: _Merged,
    ) -> None:
        self._operator = operator
        self._replica = replica
        self._groups = groups
        self._moment = moment
        self._merged = merged
        self._watermark = moment.watermark_us or 0
        self._late = min(moment.late_us or 0, self._watermark)
        # Until all rows of the epoch are there, sessions are over as they were before it.
        self.limit = self._late if moment.more else self._watermark
        self.due: pa.Array | None = None
        """For each merged session, when it is due early; None if nothing is."""
        index = TimeIndex(replica, END)
        self._ended = self._without_touched(index.between(groups, self._late + 1, self.limit))
        """Addresses of sessions that are over and that nothing came for."""

    def output(self) -> pa.RecordBatch:
        mode = self._operator.emission.mode
        if mode == UPDATE:
            return self._batch(self._merged.rows, is_final=False)
        if mode == NONE:
            return self._batch(self._merged.rows.take(np.empty(0, np.int64)), is_final=False)
        final = self._final()
        if not self._operator.emission.has_early:
            return final
        return pa.concat_batches([final, *self._early()])

    def evicted(self) -> int:
        """Sessions that the epoch did not change and that are over."""
        return len(self._ended)

    def _without_touched(self, addresses: UInt64Array) -> UInt64Array:
        touched = self._merged.touched
        return addresses[~np.isin(addresses, touched)] if len(touched) else addresses

    def _final(self) -> pa.RecordBatch:
        """The sessions that the watermark has passed in this epoch."""
        rows = self._merged.rows
        over = rows.take(np.flatnonzero(rows.ends <= self.limit))
        stored = self._operator.stored(self._replica, self._ended)
        return pa.concat_batches([self._batch(r, is_final=True) for r in (over, stored)])

    def _early(self) -> list[pa.RecordBatch]:
        """The sessions whose early results are due, and are not over."""
        emission, moment, merged = self._operator.emission, self._moment, self._merged
        before, was_due = due_before(self._replica, merged.touched, moment)
        due = np.zeros(len(merged.rows), np.int64)
        np.maximum.at(due, merged.part_of[was_due], before[was_due])
        is_due = due > 0
        self.due = due_after(emission, moment, due, is_due)
        if moment.more:
            return []
        found = self._without_touched(stored_due(emission, self._replica, self._groups, moment))
        stored = self._operator.stored(self._replica, found)
        shown = (merged.rows.take(np.flatnonzero(is_due)), stored)
        return [
            self._batch(rows.take(np.flatnonzero(rows.ends > self._watermark)), is_final=False)
            for rows in shown
        ]

    def _batch(self, rows: _SessionRows, *, is_final: bool) -> pa.RecordBatch:
        bounds = [session_column(rows.starts, rows.ends)]
        return self._operator.shown(rows.keys, bounds, rows.states, is_final=is_final)
