"""The keyed aggregate: one row of state per key, updated by whole batches.

Spark's JVM has already reduced each input partition to one row per key (`partials`). A shard
sorts those rows by fingerprint, finds the keys' rows, merges column by column, and emits the keys
that changed with their new values.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array
from millrace.ids import OperatorName
from millrace.operators.aggregate import spec
from millrace.operators.aggregate.reducers import Groups
from millrace.operators.aggregate.reducing import Reducers, check_names
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.arrays import taken
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
        self._ansi = ansi
        self._reducers = Reducers(self.aggregates, ansi=ansi)
        self._key_types = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        check_names(name, self.state_schema.names)
        self._output_names = self.output_schema.names

    @property
    def state_schema(self) -> pa.Schema:
        fields = [pa.field(k.name, t) for k, t in zip(self.keys, self._key_types, strict=True)]
        return pa.schema([*fields, *self._reducers.fields])

    @property
    def output_schema(self) -> T.StructType:
        fields = [T.StructField(k.name, k.type) for k in self.keys]
        return T.StructType(fields + self._reducers.output_fields)

    @property
    def needs_order(self) -> bool:
        """Whether rows of different input partitions must be kept apart."""
        return self._reducers.needs_order

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

    def code(self) -> bytes | None:
        """What a worker needs to run it, if its spec does not say that."""
        return None

    def partials(self, inputs: Sequence[SparkColumn]) -> list[list[SparkColumn]]:
        """What the JVM computes for each aggregate, per key and input partition."""
        return self._reducers.partials(inputs)

    @property
    def tables(self) -> dict[str, TableLayout]:
        return {MAIN: TableLayout(self.state_schema)}

    @property
    def side_schemas(self) -> dict[str, T.StructType]:
        return {}

    @property
    def runs_without_rows(self) -> bool:
        return False

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return watermark_us

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
            taken(types.conform(column, key_type), key_rows)
            for column, key_type in zip(rows.keys, self._key_types, strict=True)
        ]
        state = self._reducers.merge(replica, addresses, rows.partials, order, grouped)
        if self._reducers.may_stay:
            other = np.flatnonzero(self._reducers.changed(replica, addresses, state))
            hi, lo, addresses = hi[other], lo[other], addresses[other]
            chosen = pa.array(other)
            keys, state = ([c.take(chosen) for c in columns] for columns in (keys, state))
        deleted = pa.array(np.zeros(len(hi), np.bool_))
        changed = pa.RecordBatch.from_arrays(
            [pa.array(hi), pa.array(lo), deleted, *keys, *state], schema=replica.schema
        )
        added = int((addresses == 0).sum())
        return Change({MAIN: TableChange(changed, added)}, self._emitted(keys, state))

    def _emitted(self, keys: Sequence[pa.Array], state: Sequence[pa.Array]) -> pa.RecordBatch:
        """The output for some rows of state."""
        arrays = [*keys, *self._reducers.results(state)]
        return pa.RecordBatch.from_arrays(arrays, names=self._output_names)

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return None


def code_of(operator: AggregateOperator) -> bytes:
    """What a worker needs to run an aggregate that emits otherwise: a spec is of state alone."""
    made_of = (
        type(operator),
        operator.name,
        operator.keys,
        operator.aggregates,
        operator._ansi,
    )
    return pickle.dumps((_restored, made_of))


def _restored(
    kind: type[AggregateOperator],
    name: OperatorName,
    keys: Sequence[Column],
    aggregates: Sequence[AggregateSpec],
    ansi: bool,
) -> AggregateOperator:
    return kind(name, keys, aggregates, ansi=ansi)
