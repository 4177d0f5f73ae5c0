"""The window operator: aggregates per key and pane, emitted by window.

Spark's JVM has reduced each input partition to one row per key and pane. In an epoch a shard (1)
sets late rows aside, (2) merges the others into the rows of their panes, (3) finds the windows that
are to be emitted, by the index of time and by what changed, (4) puts their panes together, and (5)
counts the panes that are over. Those are not written: see `state.eviction`.

Invariant: a window is emitted as final in the one epoch whose watermark passes its end, with
everything that came up to and in that epoch. What comes for it later is late, because late is what
was over in the epoch before. So with windows that overlap, a row may be late for some of its
windows and in time for others: its pane takes it, and only windows that are not over show it.

Windows of several lengths share the panes, and the longest decide when a pane is over. Each length
is emitted on its own, as if it were alone.

Known rough edge: with windows that overlap, an update looks for every pane of every window that
changed, whether the key has it or not; and a final result reads all panes of its window again, so
a long window with a short slide costs size/slide reads of every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.reducers import Groups
from millrace.operators.aggregate.reducing import check_names
from millrace.operators.arrays import whole_numbers
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Column, Moment, TableChange, TableLayout
from millrace.operators.window.assembling import (
    PaneRows,
    WindowRows,
    assembled,
    panes_around,
    positions,
    windows_around,
)
from millrace.operators.window.early import due_after, due_before, stored_due
from millrace.operators.window.emission import NONE, UPDATE
from millrace.operators.window.fingerprints import at_times
from millrace.operators.window.layout import (
    PANE,
    WINDOW,
    WINDOW_LENGTH,
    eviction,
    length_column,
    state_fields,
    window_column,
)
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.operators.window.timed import TimedOperator
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.time_index import TimeIndex

_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True)
class _Merged:
    """The rows that came, merged with what was there; one row per key and pane."""

    rows: PaneRows
    addresses: UInt64Array
    """Where each row was; 0 for a new one."""


class WindowOperator(TimedOperator):
    """Keys, windows, aggregates, and when results are emitted."""

    definition: WindowDefinition

    def __init__(
        self,
        name: OperatorName,
        definition: WindowDefinition,
        fields: Sequence[Column] = (),
        *,
        ansi: bool = True,
    ) -> None:
        """`fields` are the columns of the stream, for the late rows."""
        self.windows = definition.windows
        self.each = definition.each
        self.is_tiled = bool(definition.lengths)
        super().__init__(name, definition, WINDOW, fields, ansi=ansi)
        self.tables: dict[str, TableLayout] = {MAIN: TableLayout(self._schema(), evicts=True)}
        check_names(name, self.tables[MAIN].schema.names)

    def _schema(self) -> pa.Schema:
        before, after = state_fields(self.spec()["emit"])
        return pa.schema([*self.key_fields, *before, *self.reducers.fields, *after])

    @property
    def output_schema(self) -> T.StructType:
        schema = super().output_schema
        if not self.is_tiled:
            return schema
        fields = list(schema.fields)
        fields.insert(len(self.keys) + 1, T.StructField(WINDOW_LENGTH, T.StringType()))
        return T.StructType(fields)

    @staticmethod
    def from_spec(name: OperatorName, data: dict[str, Any], *, ansi: bool = True) -> WindowOperator:
        return WindowOperator(name, WindowDefinition.from_json(data), ansi=ansi)

    def sweep(self, table: str, moment: Moment) -> Eviction:
        return eviction(self.windows, moment)

    def ends(self, rows: Input) -> tuple[Int64Array, BoolArray]:
        assert rows.pane is not None
        panes, known = whole_numbers(rows.pane)
        return self.windows.last_end(panes), known

    def advance(
        self,
        replica: Replica,
        rows: Input,
        positions: Int64Array | None,
        groups: Int64Array,
        moment: Moment,
    ) -> tuple[TableChange, pa.RecordBatch]:
        merged = self._merged(replica, rows, positions)
        emitting = _Emitting(self, replica, groups, moment, merged)
        output = emitting.output()
        return self._change(replica, merged, emitting), output

    def _merged(self, replica: Replica, rows: Input, positions: Int64Array | None) -> _Merged:
        if not rows.num_rows or (positions is not None and not len(positions)):
            return _Merged(self.stored(replica, _NONE), _NONE)
        assert rows.pane is not None
        panes, _ = whole_numbers(rows.pane)
        hi, lo = rows.hi, rows.lo
        if positions is not None:
            panes, hi, lo = panes[positions], hi[positions], lo[positions]
        hi, lo = at_times(hi, lo, panes)
        order = sort_order(hi, lo)
        hi, lo, panes = hi[order], lo[order], panes[order]
        source = order if positions is None else positions[order]
        starts = group_starts(hi, lo)
        part = self.parts_of(rows, source)
        heads = starts[:-1]
        hi, lo, panes = hi[heads], lo[heads], panes[heads]
        addresses = replica.find(hi, lo)
        keys = self.keys_at(rows, source[heads])
        grouped = Groups(starts, part)
        state = self.reducers.merge(replica, addresses, rows.partials, source, grouped)
        return _Merged(PaneRows(hi, lo, panes, keys, state), addresses)

    def stored(self, replica: Replica, addresses: UInt64Array) -> PaneRows:
        """Rows of the replica."""
        hi, lo, panes = (c.to_numpy() for c in replica.gather(addresses, [HI, LO, PANE]))
        keys = replica.gather(addresses, [key.name for key in self.keys])
        states = replica.gather(addresses, [field.name for field in self.reducers.fields])
        return PaneRows(hi, lo, panes, keys, states)

    def _change(self, replica: Replica, merged: _Merged, emitting: _Emitting) -> TableChange:
        """The rows that stay in state, and the number of those that are over."""
        rows = merged.rows
        is_new = merged.addresses == 0
        staying = rows.panes >= emitting.limit
        evicted = int((~staying & ~is_new).sum()) + emitting.evicted()
        arrays = [
            pa.array(rows.hi),
            pa.array(rows.lo),
            pa.array(np.zeros(len(rows), np.bool_)),
            *rows.keys,
            pa.array(rows.panes),
            *rows.states,
        ]
        if emitting.due is not None:
            arrays.append(emitting.due)
        changed = pa.RecordBatch.from_arrays(arrays, schema=replica.schema)
        if not staying.all():
            changed = changed.filter(pa.array(staying))
        return TableChange(changed, int((staying & is_new).sum()), evicted=evicted)


class _Emitting:
    """What one shard emits in one epoch, and which panes are over after it."""

    def __init__(
        self,
        operator: WindowOperator,
        replica: Replica,
        groups: Int64Array,
        moment: Moment,
        merged: _Merged,
    ) -> None:
        self._operator = operator
        self._windows = operator.windows
        self._replica = replica
        self._groups = groups
        self._moment = moment
        self._merged = merged
        self._watermark = moment.watermark_us or 0
        self._late = min(moment.late_us or 0, self._watermark)
        self._found: dict[tuple[int, int], UInt64Array] = {}
        # Until all rows of the epoch are there, windows are over as they were before it.
        until = self._late if moment.more else self._watermark
        self.limit = self._windows.over_before(until)
        self.due: pa.Array | None = None
        """For each merged row, when it is due early; None if nothing is."""

    def output(self) -> pa.RecordBatch:
        each, emission = self._operator.each, self._operator.emission
        if emission.mode == NONE:
            return self._nothing()
        if emission.mode == UPDATE:
            # The windows that changed in this epoch and were not over before it.
            rows = self._merged.rows
            return pa.concat_batches([self._around(rows, w, self._late) for w in each])
        found = [self._final(windows) for windows in each]
        if emission.has_early:
            changed = self._due_early()
            found += [self._around(changed, w, self._watermark) for w in each if len(changed)]
        return pa.concat_batches(found)

    def evicted(self) -> int:
        """Rows that the epoch did not change and that are over."""
        before = self._windows.over_before(self._late)
        return len(self._untouched(before, self.limit - self._windows.pane_us))

    def _untouched(self, first: int, last: int) -> UInt64Array:
        """Addresses of rows with panes from `first` to `last` that no row came for."""
        if first > last:
            return _NONE
        if (first, last) not in self._found:
            index = TimeIndex(self._replica, PANE, self._windows.pane_us)
            self._found[first, last] = self._without_touched(
                index.between(self._groups, first, last)
            )
        return self._found[first, last]

    def _without_touched(self, addresses: UInt64Array) -> UInt64Array:
        touched = self._merged.addresses
        return addresses[~np.isin(addresses, touched[touched != 0])] if len(touched) else addresses

    def _final(self, windows: Windows) -> pa.RecordBatch:
        """The windows that the watermark has passed in this epoch."""
        first = windows.end_after(self._late)
        last = windows.end_after(self._watermark) - windows.slide_us
        if self._moment.more or first > last:
            return self._nothing()
        span = (first - windows.size_us, last - windows.pane_us)
        stored = self._operator.stored(self._replica, self._untouched(*span))
        panes = self._merged.rows.panes
        came = self._merged.rows.take(np.flatnonzero((panes >= span[0]) & (panes <= span[1])))
        ended = self._assembled(came.and_then(stored), windows, self._late, self._watermark)
        return self._batch(ended, windows, is_final=True)

    def _nothing(self) -> pa.RecordBatch:
        rows = self._no_rows()
        none = self._assembled(rows, self._windows, self._late)
        return self._batch(none, self._windows, is_final=True)

    def _no_rows(self) -> PaneRows:
        return self._merged.rows.take(np.empty(0, np.int64))

    def _due_early(self) -> PaneRows:
        """The panes whose windows are due as early results."""
        emission, moment = self._operator.emission, self._moment
        before, is_due = due_before(self._replica, self._merged.addresses, moment)
        self.due = due_after(emission, moment, before, is_due)
        if moment.more:
            return self._no_rows()
        changed = self._merged.rows.take(np.flatnonzero(is_due))
        found = self._without_touched(stored_due(emission, self._replica, self._groups, moment))
        return changed.and_then(self._operator.stored(self._replica, found))

    def _around(self, changed: PaneRows, windows: Windows, after_us: int) -> pa.RecordBatch:
        """The windows that some panes are in and that end after a time."""
        if not windows.overlap:
            alone = self._assembled(changed, windows, after_us)
            return self._batch(alone, windows, is_final=False)
        only = windows_around(changed, windows, after_us)
        hi, lo = panes_around(changed, windows, after_us)
        merged = self._merged.rows
        at = positions(hi, lo, merged.hi, merged.lo)
        came = at >= 0
        addresses = self._replica.find(hi[~came], lo[~came])
        stored = self._operator.stored(self._replica, addresses[addresses != 0])
        rows = merged.take(at[came]).and_then(stored)
        found = self._assembled(rows, windows, after_us, only=only)
        return self._batch(found, windows, is_final=False)

    def _assembled(
        self,
        rows: PaneRows,
        windows: Windows,
        after_us: int,
        until_us: int | None = None,
        only: tuple[UInt64Array, UInt64Array] | None = None,
    ) -> WindowRows:
        operator = self._operator
        return assembled(
            rows,
            windows,
            operator.reducers.combine,
            after_us,
            until_us,
            only=only,
            in_order=operator.needs_order,
        )

    def _batch(self, rows: WindowRows, windows: Windows, *, is_final: bool) -> pa.RecordBatch:
        operator = self._operator
        bounds = [window_column(rows.ends, windows)]
        if operator.is_tiled:
            bounds.append(length_column(windows, len(rows.ends)))
        return operator.shown(rows.keys, bounds, rows.states, is_final=is_final)
