"""The pattern operator: rows of a key in order of event time, and the matches among them.

A row is looked at when the watermark has reached it, so the result does not depend on the order in
which rows arrive. In an epoch a shard (1) sets late rows aside, (2) collects the rows that the
watermark has reached, stored and new ones, and the keys that have a partial match whose time is
over, (3) loads the partial matches of these keys and the rows that they hold, (4) lets the matcher
go through all of it, and (5) writes the partial matches that changed, rows that they have newly
taken, and the rows that have to wait.

Invariant: after an epoch, partial matches are those of all rows up to its watermark, and each row
that one of them holds is stored, in `matched`.

Rows of the same key and time are in the order in which they came; those of one epoch, in order of
input partition.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.errors import PatternError
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO, OWNER_HI, OWNER_LO
from millrace.operators.aggregate.reducing import check_names
from millrace.operators.arrays import whole_numbers
from millrace.operators.as_of.matching import in_order_of_time
from millrace.operators.input import Input
from millrace.operators.join.arrivals import Arrived, arrived, event_times
from millrace.operators.join.columns import Columns, arrow_fields, arrow_types, taken, united
from millrace.operators.join.layout import EVENT, KEY_HI, KEY_LO
from millrace.operators.join.ordering import LEAST_TICK_BITS, numbers
from millrace.operators.join.storing import stored_rows
from millrace.operators.operator import MAIN, Change, Column, Moment, TableChange, TableLayout
from millrace.operators.pattern import layout, storing, tree
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.layout import MASK, MATCHED, NUMBER, PARTIAL
from millrace.operators.pattern.matcher import Found, Matcher, OrderedRows
from millrace.operators.pattern.measures import measured
from millrace.operators.pattern.program import compile_conditions
from millrace.operators.pattern.spec import PatternDefinition
from millrace.operators.pattern.storing import KeyRows, Loaded, Taken
from millrace.operators.process.outputs import LATE
from millrace.operators.window.fingerprints import at_times
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.time_index import TimeIndex

TIMEOUTS = "timed out matches"
"""The output for partial matches whose time was over."""

_NEW = 1 << 31
"""Rows that do not wait have numbers from here on, of 2^32 of an epoch."""
_EPOCH_BITS = 32


class PatternOperator:
    """Keys, a pattern, and what is said of its matches."""

    runs_without_rows = True
    """Rows are looked at when the watermark reaches them, and it may do so without rows."""

    tables: dict[str, TableLayout]

    def __init__(
        self, name: OperatorName, definition: PatternDefinition, fields: Sequence[Column] = ()
    ) -> None:
        """`fields` are the columns of the stream, for the late rows."""
        self.name = name
        self.definition = definition
        self.keys = definition.keys
        self.fields = tuple(fields)
        self.key_types = arrow_types(definition.keys, "key column")
        self.column_types = arrow_types(definition.columns, "column")
        self.names = [c.name for c in (*definition.keys, *definition.columns)]
        self._key_fields = arrow_fields(definition.keys, self.key_types)
        self.tables = layout.tables(
            self._key_fields, arrow_fields(definition.columns, self.column_types)
        )
        for table in self.tables.values():
            check_names(name, table.schema.names)
        automaton = compile_pattern(definition.pattern)
        arrow = dict(zip(self.names, [*self.key_types, *self.column_types], strict=True))
        programs = compile_conditions(dict(definition.conditions), automaton.variables, arrow)
        bits = {variable: bit for bit, variable in enumerate(definition.bits)}
        self.matcher = Matcher(automaton, programs, bits, definition.within_us, definition.after)
        spark = {c.name: c.type for c in (*definition.keys, *definition.columns)}
        known = tree.variables(definition.pattern)
        measures = []
        for measure in definition.measures:
            if measure.variable is not None and measure.variable not in known:
                raise PatternError(
                    f"select= refers to {measure.variable!r}, of which a match has no rows. It has "
                    f"rows of {', '.join(map(repr, known))}."
                )
            number = -1 if measure.variable is None else known.index(measure.variable)
            result = measure.result_type(None if measure.column is None else spark[measure.column])
            measures.append((measure, number, result))
        columns = [(m.name, result) for m, _, result in measures]
        shown = [*((key.name, key.type) for key in self.keys), *columns]
        self.output_schema = T.StructType([T.StructField(n, kind) for n, kind in shown])
        check_names(name, self.output_schema.names)
        late = T.StructType([T.StructField(f.name, f.type) for f in self.fields])
        self.side_schemas = {TIMEOUTS: self.output_schema, LATE: late}
        self._output = types.arrow_schema(self.output_schema)
        self._measures = [
            (m, number, self._output.field(len(self.keys) + i).type)
            for i, (m, number, _) in enumerate(measures)
        ]

    def spec(self) -> dict[str, Any]:
        return self.definition.to_json()

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> PatternOperator:
        return PatternOperator(name, PatternDefinition.from_json(data))

    def code(self) -> bytes:
        """What a worker needs to run it: a spec does not have the columns of late rows."""
        return pickle.dumps((PatternOperator, (self.name, self.definition, self.fields)))

    def output_watermark(self, watermark_us: int | None) -> int | None:
        # A start is settled when its time is over, at the latest.
        return None if watermark_us is None else watermark_us - self.definition.within_us

    def no_rows(self) -> Input:
        nothing = np.empty(0, np.uint64)
        keys = tuple(pa.array([], kind) for kind in self.key_types)
        columns = tuple(pa.array([], kind) for kind in (*self.column_types, pa.int64()))
        none = pa.array([], pa.int64())
        return Input(nothing, nothing, keys, np.empty(0, np.int32), (), columns, none)

    def sweep(self, table: str, moment: Moment) -> Eviction:
        return layout.eviction(table, self.definition.within_us, moment)

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Matching(self, replicas, rows, groups, moment).change()

    def shown(self, matches: Int64Array, found: Found, looked: _Looked) -> pa.RecordBatch:
        """Matches, or partial ones, as they are emitted."""
        at = pa.array(matches[:, 0])
        keys = [column.take(at) for column in looked.keys.columns]
        columns = dict(zip(self.names, looked.columns, strict=True))
        arrays = [*keys, *measured(matches, found.paths, columns, self._measures)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)


@dataclass(frozen=True)
class _Looked:
    """The rows that are looked at in an epoch, with those taken before, by key and time."""

    keys: KeyRows
    bounds: Int64Array
    """Where the rows of each key begin."""
    columns: list[pa.Array]
    """Those of the key, then the others that are kept."""
    hi: UInt64Array
    lo: UInt64Array
    mask: Int64Array
    due: BoolArray
    is_taken: BoolArray
    """Which rows are stored as taken."""


class _Matching:
    """What one shard does in one epoch."""

    def __init__(
        self,
        operator: PatternOperator,
        replicas: dict[str, Replica],
        rows: Input,
        groups: Int64Array,
        moment: Moment,
    ) -> None:
        self._operator = operator
        self._within_us = operator.definition.within_us
        self._replicas = replicas
        self._rows = rows
        self._groups = groups
        self._moment = moment
        watermark = moment.watermark_us or 0
        self._late_us = min(moment.late_us or 0, watermark)
        # Until all rows of the epoch are there, nothing is due.
        self._until = self._late_us if moment.more else watermark
        assert rows.part is not None
        times, self._known = event_times(rows)
        # As in Spark, a watermark that is not there yet is 0, and what is at the watermark is late.
        self._is_late = self._known & (times <= (moment.late_us or 0))
        positions = rows.by_part(np.flatnonzero(self._known & ~self._is_late))
        self._new: Arrived = arrived(rows, positions, times, LEAST_TICK_BITS)
        kinds = [*operator.key_types, *operator.column_types, pa.int64()]
        self._columns = Columns([*rows.keys, *rows.columns], kinds)

    def change(self) -> Change:
        operator, until = self._operator, self._until
        partial = self._replicas[PARTIAL]
        due = TimeIndex(self._replicas[MAIN], EVENT).added_between(
            self._groups, self._late_us + 1, until
        )
        expiring = TimeIndex(partial, layout.DEADLINE).between(
            self._groups, self._late_us + 1, until
        )
        looked, loaded = self._looked(due, expiring)
        keys = looked.keys
        rows = OrderedRows(
            looked.bounds,
            keys.time,
            looked.mask,
            looked.due,
            dict(zip(operator.names, looked.columns, strict=True)),
        )
        found = operator.matcher.run(rows, loaded.partials, until)
        tables = {
            MAIN: self._waiting(len(due)),
            MATCHED: self._taken(looked, found),
            PARTIAL: storing.store(partial, loaded, found, keys, until, len(expiring)),
        }
        counters = {
            "late": int(self._is_late.sum()),
            "without_time": int((~self._known).sum()),
            "evicted": sum(change.evicted for change in tables.values()),
            "timeouts": len(found.timeouts),
        }
        sides = {}
        if len(found.timeouts):
            sides[TIMEOUTS] = operator.shown(found.timeouts, found, looked)
        if self._is_late.any() and self._rows.late is not None:
            sides[LATE] = self._late_rows()
        return Change(
            tables,
            operator.shown(found.matches, found, looked),
            {name: count for name, count in counters.items() if count},
            sides,
        )

    def _looked(self, due: UInt64Array, expiring: UInt64Array) -> tuple[_Looked, Loaded]:
        """All that the matcher has to know."""
        main, matched = self._replicas[MAIN], self._replicas[MATCHED]
        partial = self._replicas[PARTIAL]
        names = self._operator.names
        new = self._new
        now = np.flatnonzero(new.time <= self._until)
        place, lo, time, key_lo, low32, mask = (
            column.to_numpy() for column in main.gather(due, [HI, LO, EVENT, KEY_LO, KEY_HI, MASK])
        )
        due_hi = (place >> np.uint64(32) << np.uint64(32)) | low32.astype(np.uint64)
        owners = (column.to_numpy() for column in partial.gather(expiring, [OWNER_HI, OWNER_LO]))
        expiring_hi, expiring_lo = owners
        hi = np.concatenate((due_hi, new.hi[now], expiring_hi))
        key_hi, key_lo_all = _distinct(hi, np.concatenate((key_lo, new.lo[now], expiring_lo)))
        taken_at, taken_bounds = self._alive(matched, MATCHED, EVENT, key_hi, key_lo_all)
        partial_at, partial_bounds = self._alive(
            partial, PARTIAL, layout.DEADLINE, key_hi, key_lo_all
        )
        taken_hi, taken_lo, taken_time, taken_number = (
            column.to_numpy()
            for column in matched.gather(taken_at, [OWNER_HI, OWNER_LO, EVENT, NUMBER])
        )
        new_columns = self._columns.take(new.position[now])
        new_number = (self._moment.epoch << _EPOCH_BITS) + _NEW + now
        row_hi = np.concatenate((taken_hi, due_hi, new.hi[now]))
        row_lo = np.concatenate((taken_lo, key_lo, new.lo[now]))
        row_time = np.concatenate((taken_time, time, new.time[now]))
        number = np.concatenate((taken_number, numbers(lo).astype(np.int64), new_number))
        masks = np.concatenate(
            (np.zeros(len(taken_at), np.int64), mask, new_columns[-1].to_numpy())
        )
        order = in_order_of_time(row_hi, row_lo, row_time, number.astype(np.uint64))
        at = pa.array(order)
        pieces = [matched.gather(taken_at, names), main.gather(due, names), new_columns[:-1]]
        columns = [column.take(at) for column in united(pieces)]
        is_taken = order < len(taken_at)
        sorted_hi, sorted_lo = row_hi[order], row_lo[order]
        # Every key has rows: those that are due, or else those that partial matches hold.
        bounds = group_starts(sorted_hi, sorted_lo)
        keys = KeyRows(
            key_hi,
            key_lo_all,
            taken(columns[: len(self._operator.keys)], bounds[:-1]),
            number[order],
            row_time[order],
        )
        looked = _Looked(
            keys, bounds, columns, sorted_hi, sorted_lo, masks[order], ~is_taken, is_taken
        )
        key_of = np.repeat(np.arange(len(key_hi)), np.diff(partial_bounds))
        before = _by_number(looked, taken_bounds)
        automaton = self._operator.matcher.automaton
        loaded = storing.load(partial, partial_at, key_of, len(key_hi), before, automaton)
        return looked, loaded

    def _alive(
        self, replica: Replica, table: str, column: str, hi: UInt64Array, lo: UInt64Array
    ) -> tuple[UInt64Array, Int64Array]:
        """The rows of some keys that were not over before the epoch, and where each key's begin."""
        addresses, offsets = replica.entries(hi, lo)
        times, _ = whole_numbers(replica.gather(addresses, [column])[0])
        kept = times >= layout.limit(table, self._within_us, self._late_us)
        before: Int64Array = np.concatenate(([0], np.cumsum(kept)))
        return addresses[kept], before[offsets]

    def _taken(self, looked: _Looked, found: Found) -> TableChange:
        """Rows that partial matches hold and that are not stored as such."""
        replica = self._replicas[MATCHED]
        before, after = (
            layout.limit(MATCHED, self._within_us, us) for us in (self._late_us, self._until)
        )
        over = TimeIndex(replica, EVENT).added_between(self._groups, before, after - 1)
        held: BoolArray = np.zeros(len(looked.due), np.bool_)
        held[found.nodes[:, 0]] = True
        rows = np.flatnonzero(held & ~looked.is_taken)
        number = looked.keys.number[rows]
        hi, lo = at_times(looked.hi[rows], looked.lo[rows], number)
        order = sort_order(hi, lo)
        rows = rows[order]
        arrays = [
            pa.array(hi[order]),
            pa.array(lo[order]),
            pa.array(np.zeros(len(rows), np.bool_)),
            pa.array(looked.hi[rows]),
            pa.array(looked.lo[rows]),
            *taken(looked.columns, rows),
            pa.array(looked.keys.time[rows]),
            pa.array(looked.keys.number[rows]),
        ]
        changed = pa.RecordBatch.from_arrays(arrays, schema=replica.schema)
        return TableChange(changed, len(rows), evicted=len(over))

    def _waiting(self, evicted: int) -> TableChange:
        """The new rows that the watermark has not reached."""
        new = self._new
        kept = np.flatnonzero(new.time > self._until)
        columns = self._columns.take(new.position)
        return stored_rows(self._replicas[MAIN], new, kept, self._moment, columns, evicted=evicted)

    def _late_rows(self) -> pa.RecordBatch:
        """Late rows as they came."""
        schema = types.arrow_schema(self._operator.side_schemas[LATE])
        at = pa.array(np.flatnonzero(self._is_late))
        whole = types.conform(self._rows.late, pa.struct(list(schema))).take(at)
        return pa.RecordBatch.from_arrays(whole.flatten(), schema=schema)


def _distinct(hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Fingerprints in order, each once."""
    order = sort_order(hi, lo)
    heads = order[group_starts(hi[order], lo[order])[:-1]]
    return hi[heads], lo[heads]


def _by_number(looked: _Looked, bounds: Int64Array) -> Taken:
    """The rows that were taken before, in order of key and number."""
    rows = np.flatnonzero(looked.is_taken)
    number = looked.keys.number[rows]
    order = in_order_of_time(
        looked.hi[rows], looked.lo[rows], number, np.zeros(len(rows), np.uint64)
    )
    return Taken(bounds, number[order], rows[order])
