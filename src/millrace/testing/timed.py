"""What the harnesses of windows and sessions share: aggregates over rows that you give.

What Spark computes before a shard is computed here row by row: a row is a partial result of itself.
Aggregates over Spark expressions need Spark, so a harness takes names of columns only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from millrace.api.event_time import check_event_time
from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import UsageError
from millrace.operators import Operator
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.aggregate.layout import kept
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.lists import make_lists
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_us
from millrace.testing.epochs import Emitted, OperatorHarness, check_columns, columns_of

_PICKED = ("min", "max", "first", "last", "bool_and", "bool_or")
_LISTED = ("collect_list", "collect_set")
_KNOWN = ("count", "sum", "mean", "variance", "stddev", *_PICKED, *_LISTED)


class Given:
    """Keys, columns, event time and aggregates as a test gives them, checked."""

    def __init__(
        self,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str,
        aggregates: Mapping[str, Aggregate],
    ) -> None:
        self.fields = [Column(f.name, f.dataType) for f in parse_schema(schema).fields]
        by_name = {field.name: field.type for field in self.fields}
        names = [key] if isinstance(key, str) else list(key)
        check_columns([*names, event_time], by_name)
        check_event_time(event_time, by_name[event_time])
        self.event_time = event_time
        self.keys = tuple(Column(name, by_name[name]) for name in names)
        self.inputs = [_input(name, aggregate) for name, aggregate in aggregates.items()]
        check_columns([name for name in self.inputs if name is not None], by_name)
        self.aggregates = tuple(
            AggregateSpec(
                name,
                aggregate.function,
                aggregate.describe(),
                T.IntegerType() if column is None else by_name[column],
                tuple(sorted(aggregate.options.items())),
            )
            for (name, aggregate), column in zip(aggregates.items(), self.inputs, strict=True)
        )


class TimedHarness(OperatorHarness[Operator]):
    """An operator with aggregates over event time."""

    def __init__(self, operator: Operator, given: Given, start: dt.datetime, shards: int) -> None:
        self._given = given
        super().__init__(operator, given.keys, start, shards)

    def send(self, rows: Iterable[dict[str, Any]] = ()) -> Emitted:
        """Run an epoch with these rows; returns what it emitted."""
        return self._run(encode(self._input(list(rows))))

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        given = self._given
        columns = dict(
            zip((f.name for f in given.fields), columns_of(given.fields, rows), strict=True)
        )
        keys = tuple(columns[key.name] for key in given.keys)
        hi, lo = self._fingerprints(list(keys))
        times = [row.get(given.event_time) for row in rows]
        return Input(
            hi,
            lo,
            keys,
            np.zeros(len(rows), np.int32),
            tuple(
                tuple(_partials(spec, None if name is None else columns[name], len(rows)))
                for spec, name in zip(given.aggregates, given.inputs, strict=True)
            ),
            count=pa.array(np.ones(len(rows), np.int64)),
            late=pa.StructArray.from_arrays(list(columns.values()), names=list(columns)),
            **self._times([None if time is None else to_us(time) for time in times]),
        )

    def _times(self, event_us: list[int | None]) -> dict[str, pa.Array]:
        """What the operator gets of event times."""
        raise NotImplementedError


def _input(name: str, aggregate: Aggregate) -> str | None:
    if aggregate.column is not None and not isinstance(aggregate.column, str):
        raise UsageError(
            f"aggregates={{{name!r}: ...}}: {aggregate.column} is a Spark expression, which takes "
            "Spark to compute. Give the name of a column that has its values."
        )
    if aggregate.function not in _KNOWN:
        raise UsageError(
            f"aggregates={{{name!r}: ...}}: what {aggregate.function}() is made of takes Spark to "
            f"compute. Without Spark there are {', '.join(_KNOWN)}."
        )
    return aggregate.column


def _partials(spec: AggregateSpec, values: pa.Array | None, rows: int) -> list[pa.Array]:
    """What Spark would compute of each row alone: see `Reducer.partials`."""
    if values is None:
        return [pa.array(np.ones(rows, np.int64))]
    there = values.is_valid().cast(pa.int64())
    if spec.function == "count":
        return [there]
    fields = kept(spec.function, spec.name, values.type, dict(spec.options)).fields
    if spec.function in _PICKED:
        return [values]
    if spec.function in _LISTED:
        return [make_lists(values.drop_null(), there.to_numpy(), fields[0].type)]
    if spec.function in ("variance", "stddev"):
        numbers = values.cast(pa.float64())
        return [there, numbers, pc.multiply(numbers, 0.0)]
    total = values.cast(fields[0].type)
    decimal = isinstance(spec.type, T.DecimalType)
    return [total, there] if decimal or spec.function == "mean" else [total]
