"""The keyed aggregate: one row of state per key, updated by whole batches.

Spark's JVM has already reduced each input partition to one row per key (`partials`). A shard
sorts those rows by fingerprint, finds the keys' rows, merges column by column, and emits the keys
that changed with their new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array
from millrace.errors import DuplicateNameError, InvalidNameError
from millrace.ids import OperatorName
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.aggregate import spec
from millrace.operators.aggregate.reducers import Groups, Reducer, resolve
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import (
    MAIN,
    Change,
    Column,
    Moment,
    TableChange,
    TableLayout,
)
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.writing import Sweep


class AggregateOperator:
    """Keys, aggregates, and the arithmetic between them."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Column],
        aggregates: Sequence[AggregateSpec],
        *,
        ansi: bool = True,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.aggregates = tuple(aggregates)
        self._reducers: list[Reducer] = [
            resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": ansi})
            for a in self.aggregates
        ]
        self._key_types = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        self._check_names()

    def _check_names(self) -> None:
        seen: set[str] = set()
        for field in self.state_schema.names:
            if field.lower() in (HI, LO, DELETED):
                raise InvalidNameError(
                    f"operator {self.name!r} would have a column called {field!r}, which is "
                    "reserved. Rename the aggregate, or the key column in transform()."
                )
            if field.lower() in seen:
                raise DuplicateNameError(
                    f"operator {self.name!r} would have two columns called {field!r}. Rename an "
                    "aggregate, or a key column in transform()."
                )
            seen.add(field.lower())

    @property
    def state_schema(self) -> pa.Schema:
        fields = [pa.field(k.name, t) for k, t in zip(self.keys, self._key_types, strict=True)]
        for reducer in self._reducers:
            fields += reducer.fields
        return pa.schema(fields)

    @property
    def output_schema(self) -> T.StructType:
        fields = [T.StructField(k.name, k.type) for k in self.keys]
        fields += [T.StructField(r.name, r.result_type) for r in self._reducers]
        return T.StructType(fields)

    @property
    def needs_order(self) -> bool:
        """Whether rows of different input partitions must be kept apart."""
        return any(reducer.ordered for reducer in self._reducers)

    def spec(self) -> dict[str, Any]:
        return spec.to_json(self.keys, self.aggregates)

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> AggregateOperator:
        return AggregateOperator(
            name,
            [Column.from_json(key) for key in data["keys"]],
            [AggregateSpec.from_json(aggregate) for aggregate in data["aggregates"]],
            ansi=ansi,
        )

    def partials(self, inputs: Sequence[SparkColumn]) -> list[list[SparkColumn]]:
        """What the JVM computes for each aggregate, per key and input partition."""
        return [
            reducer.partials(column) for reducer, column in zip(self._reducers, inputs, strict=True)
        ]

    @property
    def tables(self) -> dict[str, TableLayout]:
        return {MAIN: TableLayout(self.state_schema)}

    @property
    def side_schemas(self) -> dict[str, T.StructType]:
        return {}

    @property
    def runs_without_rows(self) -> bool:
        return False

    def no_rows(self) -> Input:
        raise NotImplementedError("an aggregate has nothing to do without rows")

    def apply(
        self,
        replicas: dict[str, Replica],
        rows: Input,
        groups: Int64Array,
        moment: Moment,
    ) -> Change:
        replica = replicas[MAIN]
        order = sort_order(rows.hi, rows.lo)
        hi, lo = rows.hi[order], rows.lo[order]
        starts = group_starts(hi, lo)
        part = np.zeros(len(order), np.int64)
        if self.needs_order:
            assert rows.part is not None
            part = rows.part[order].astype(np.int64)
        grouped = Groups(starts, part)
        heads = starts[:-1]
        hi, lo = hi[heads], lo[heads]
        addresses = replica.find(hi, lo)
        key_rows = pa.array(order[heads])
        keys = [
            types.conform(column, key_type).take(key_rows)
            for column, key_type in zip(rows.keys, self._key_types, strict=True)
        ]
        taken = pa.array(order)
        state: list[pa.Array] = []
        shown: list[pa.Array] = []
        for reducer, partials in zip(self._reducers, rows.partials, strict=True):
            current = replica.gather(addresses, [field.name for field in reducer.fields])
            incoming = _incoming(reducer, partials, taken)
            merged = reducer.merge(current, incoming, grouped)
            state += merged
            shown.append(reducer.result(merged))
        deleted = pa.array(np.zeros(len(hi), np.bool_))
        changed = pa.RecordBatch.from_arrays(
            [pa.array(hi), pa.array(lo), deleted, *keys, *state], schema=replica.schema
        )
        output = pa.RecordBatch.from_arrays([*keys, *shown], names=self._output_names)
        added = int((addresses == 0).sum())
        return Change({MAIN: TableChange(changed, added)}, output)

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return None

    @property
    def _output_names(self) -> list[str]:
        return [k.name for k in self.keys] + [r.name for r in self._reducers]


def _incoming(
    reducer: Reducer, partials: Sequence[pa.ChunkedArray], taken: pa.Array
) -> list[pa.Array]:
    """An aggregate's partial results in order of key."""
    columns = [types.conform(column, column.type).take(taken) for column in partials]
    # A value that is kept as it came must have exactly the type it is kept in.
    kept = reducer.fields[0]
    if kept.name == reducer.name and columns[0].type != kept.type:
        columns[0] = columns[0].cast(kept.type)
    return columns
