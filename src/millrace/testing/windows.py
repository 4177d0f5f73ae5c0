"""Windows on real state, without Spark.

What Spark computes before a shard, partial results per key and pane, is computed here row by row: a
row is a partial result of itself. Aggregates over Spark expressions need Spark, so a harness takes
names of columns only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from millrace.api.event_time import (
    Duration,
    check_event_time,
    make_tiles,
    make_windows,
    parse_emission,
)
from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import UsageError
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.aggregate.layout import kept
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_us
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.testing.epochs import (
    NAME,
    START,
    Emitted,
    OperatorHarness,
    check_columns,
    columns_of,
)

_PICKED = ("min", "max", "first", "last", "bool_and", "bool_or")
_KNOWN = ("count", "sum", "mean", "variance", "stddev", *_PICKED)


class WindowHarness(OperatorHarness):
    """`key_by(key).window(size, slide, offset).aggregate(**aggregates)` over rows you give.

    With a list of sizes it is `windows(sizes, slide, offset)`.
    """

    def __init__(
        self,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str,
        size: Duration | Sequence[Duration],
        aggregates: Mapping[str, Aggregate],
        slide: Duration | None = None,
        offset: Duration | None = None,
        emit: str = "final",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        self._fields = [Column(f.name, f.dataType) for f in parse_schema(schema).fields]
        by_name = {field.name: field.type for field in self._fields}
        names = [key] if isinstance(key, str) else list(key)
        check_columns([*names, event_time], by_name)
        check_event_time(event_time, by_name[event_time])
        self._event_time = event_time
        self._inputs = [_input(name, aggregate) for name, aggregate in aggregates.items()]
        check_columns([name for name in self._inputs if name is not None], by_name)
        specs = [
            AggregateSpec(
                name,
                aggregate.function,
                aggregate.describe(),
                T.IntegerType() if column is None else by_name[column],
                tuple(sorted(aggregate.options.items())),
            )
            for (name, aggregate), column in zip(aggregates.items(), self._inputs, strict=True)
        ]
        several = not isinstance(size, str | dt.timedelta)
        tiles: tuple[Windows, ...]
        if isinstance(size, str | dt.timedelta):
            tiles = (make_windows(size, slide, offset),)
        elif slide is None:
            raise UsageError("windows of several lengths need slide=, as windows() does.")
        else:
            tiles = make_tiles(size, slide, offset)
        definition = WindowDefinition(
            tuple(Column(name, by_name[name]) for name in names),
            tiles[-1],
            tuple(specs),
            parse_emission(emit),
            tuple(windows.size_us for windows in tiles) if several else (),
        )
        self._operator = WindowOperator(NAME, definition, self._fields)
        super().__init__(self._operator, self._operator.keys, start, shards)

    def send(self, rows: Iterable[dict[str, Any]] = ()) -> Emitted:
        """Run an epoch with these rows; returns the windows it emitted."""
        return self._run(encode(self._input(list(rows))))

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        columns = dict(
            zip((f.name for f in self._fields), columns_of(self._fields, rows), strict=True)
        )
        keys = tuple(columns[key.name] for key in self._operator.keys)
        hi, lo = self._fingerprints(list(keys))
        times = [row.get(self._event_time) for row in rows]
        windows = self._operator.windows
        panes = [None if t is None else windows.pane_of(to_us(t)) for t in times]
        specs = self._operator.definition.aggregates
        return Input(
            hi,
            lo,
            keys,
            np.zeros(len(rows), np.int32),
            tuple(
                tuple(_partials(spec, None if name is None else columns[name], len(rows)))
                for spec, name in zip(specs, self._inputs, strict=True)
            ),
            pane=pa.array(panes, pa.int64()),
            count=pa.array(np.ones(len(rows), np.int64)),
            late=pa.StructArray.from_arrays(list(columns.values()), names=list(columns)),
        )


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
    if spec.function in ("variance", "stddev"):
        numbers = values.cast(pa.float64())
        return [there, numbers, pc.multiply(numbers, 0.0)]
    total = values.cast(fields[0].type)
    decimal = isinstance(spec.type, T.DecimalType)
    return [total, there] if decimal or spec.function == "mean" else [total]
