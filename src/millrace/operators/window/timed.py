"""What windows and sessions have in common: aggregates per key and stretch of event time.

Both emit by `emission`, set late rows aside, and end when the watermark passes, so that epochs must
run without rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array
from millrace.ids import OperatorName
from millrace.operators.aggregate.reducing import Reducers, check_names
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.arrays import whole_numbers
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Column, Moment, TableChange
from millrace.operators.process.outputs import LATE
from millrace.operators.window.emission import IS_FINAL, Emission
from millrace.operators.window.spec import WINDOW_TYPE
from millrace.state.replica import Replica


class TimedDefinition(Protocol):
    """What a spec says of an operator."""

    @property
    def keys(self) -> tuple[Column, ...]: ...

    @property
    def aggregates(self) -> tuple[AggregateSpec, ...]: ...

    @property
    def emission(self) -> Emission: ...

    def to_json(self) -> dict[str, Any]: ...


class TimedOperator:
    """Keys, aggregates, and when results are emitted."""

    definition: TimedDefinition

    runs_without_rows = True
    """Results are final when the watermark passes, and it may pass without rows."""

    def __init__(
        self,
        name: OperatorName,
        definition: TimedDefinition,
        column: str,
        fields: Sequence[Column],
        *,
        ansi: bool,
    ) -> None:
        """`column` has the bounds of results; `fields` are the columns of the stream, for the late
        rows."""
        self.name = name
        self.definition = definition
        self.keys = definition.keys
        self.emission = definition.emission
        self.fields = tuple(fields)
        self.reducers = Reducers(definition.aggregates, ansi=ansi)
        self._ansi = ansi
        self._column = column
        self._key_types = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        check_names(name, self.output_schema.names)
        self.side_schemas: dict[str, T.StructType] = {
            LATE: T.StructType([T.StructField(f.name, f.type) for f in self.fields])
        }

    def spec(self) -> dict[str, Any]:
        return self.definition.to_json()

    def code(self) -> bytes:
        """What a worker needs to run it: a spec does not have the columns of late rows."""
        made_of = (type(self), self.name, self.definition, self.fields, self._ansi)
        return pickle.dumps((_restored, made_of))

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(k.name, t) for k, t in zip(self.keys, self._key_types, strict=True)]

    @property
    def output_schema(self) -> T.StructType:
        fields = [T.StructField(k.name, k.type) for k in self.keys]
        fields.append(T.StructField(self._column, WINDOW_TYPE))
        fields += self.reducers.output_fields
        if self.emission.has_early:
            fields.append(T.StructField(IS_FINAL, T.BooleanType()))
        return T.StructType(fields)

    @property
    def needs_order(self) -> bool:
        """Whether rows of different input partitions must be kept apart."""
        return self.reducers.needs_order

    def partials(self, inputs: Sequence[SparkColumn]) -> list[list[SparkColumn]]:
        """What the JVM computes for each aggregate, per group and input partition."""
        return self.reducers.partials(inputs)

    def output_watermark(self, watermark_us: int | None) -> int | None:
        # A result's event time is its last microsecond. All that end up to the watermark have been
        # emitted, so no row before the watermark follows.
        return watermark_us

    def no_rows(self) -> Input:
        nothing = np.empty(0, np.uint64)
        keys = tuple(pa.array([], key_type) for key_type in self._key_types)
        return Input(nothing, nothing, keys)

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        counters: dict[str, int] = {}
        sides: dict[str, pa.RecordBatch] = {}
        positions = self._in_time(rows, moment, counters, sides)
        change, output = self.advance(replicas[MAIN], rows, positions, groups, moment)
        counters["evicted"] = change.evicted
        return Change({MAIN: change}, output, counters, sides)

    def ends(self, rows: Input) -> tuple[Int64Array, BoolArray]:
        """When the last result that each row is part of ends, and whether the row has a time."""
        raise NotImplementedError

    def advance(
        self,
        replica: Replica,
        rows: Input,
        positions: Int64Array | None,
        groups: Int64Array,
        moment: Moment,
    ) -> tuple[TableChange, pa.RecordBatch]:
        """Merge the rows that are in time, those at `positions` or all, into the state."""
        raise NotImplementedError

    def _in_time(
        self,
        rows: Input,
        moment: Moment,
        counters: dict[str, int],
        sides: dict[str, pa.RecordBatch],
    ) -> Int64Array | None:
        """The positions of the rows to merge; None for all. Counts the others."""
        if not rows.num_rows:
            return None
        ends, known = self.ends(rows)
        # As in Spark, a watermark that is not there yet is 0.
        late = known & (ends <= (moment.late_us or 0))
        return self.set_aside(rows, known, late, counters, sides)

    def keys_at(self, rows: Input, positions: Int64Array) -> list[pa.Array]:
        """The key columns of some rows."""
        chosen = pa.array(positions)
        return [
            types.conform(column, key_type).take(chosen)
            for column, key_type in zip(rows.keys, self._key_types, strict=True)
        ]

    def parts_of(self, rows: Input, positions: Int64Array) -> Int64Array:
        """The input partitions of some rows, if they matter."""
        if not self.needs_order:
            return np.zeros(len(positions), np.int64)
        assert rows.part is not None
        return rows.part[positions].astype(np.int64)

    def set_aside(
        self,
        rows: Input,
        known: BoolArray,
        late: BoolArray,
        counters: dict[str, int],
        sides: dict[str, pa.RecordBatch],
    ) -> Int64Array | None:
        """The positions of the rows that are in time; None for all. Counts the others."""
        if rows.late is not None and late.any():
            sides[LATE] = self._late_rows(rows, late)
        kept = known & ~late
        if kept.all():
            return None
        assert rows.count is not None
        counts, _ = whole_numbers(rows.count)
        counters["late"] = int(counts[late].sum())
        if not known.all():
            counters["without_time"] = int(counts[~known].sum())
        return np.flatnonzero(kept)

    def _late_rows(self, rows: Input, late: BoolArray) -> pa.RecordBatch:
        """Late rows as they came: equal ones travelled as one, with their number."""
        assert rows.late is not None
        assert rows.count is not None
        counts, _ = whole_numbers(rows.count)
        each = pa.array(np.repeat(np.flatnonzero(late), counts[late]))
        schema = types.arrow_schema(self.side_schemas[LATE])
        whole = types.conform(rows.late, pa.struct(list(schema))).take(each)
        return pa.RecordBatch.from_arrays(whole.flatten(), schema=schema)

    def shown(
        self,
        keys: list[pa.Array],
        bounds: list[pa.Array],
        states: list[pa.Array],
        *,
        is_final: bool,
    ) -> pa.RecordBatch:
        """Results as they are emitted; `bounds` says of which time they are."""
        arrays = [*keys, *bounds, *self.reducers.results(states)]
        if self.emission.has_early:
            arrays.append(pa.array(np.full(len(bounds[0]), is_final)))
        return pa.RecordBatch.from_arrays(arrays, names=self.output_schema.names)


def _restored(
    kind: Any,
    name: OperatorName,
    definition: TimedDefinition,
    fields: Sequence[Column],
    ansi: bool,
) -> TimedOperator:
    operator: TimedOperator = kind(name, definition, fields, ansi=ansi)
    return operator
