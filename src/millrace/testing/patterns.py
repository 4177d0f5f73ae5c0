"""Patterns on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.event_time import check_event_time
from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import PatternError
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.pattern.builder import Pattern
from millrace.operators.pattern.definition import define
from millrace.operators.pattern.expressions import Expression, Reference
from millrace.operators.pattern.operator import PatternOperator
from millrace.operators.process.convert import to_us
from millrace.testing.epochs import (
    NAME,
    START,
    Emitted,
    OperatorHarness,
    check_columns,
    columns_of,
)


class PatternHarness(OperatorHarness[PatternOperator]):
    """`key_by(key).match(pattern, after=after, select=select)` over rows you give.

    Conditions over Spark expressions need Spark. Here they are written with `mr.testing.column` and
    `mr.testing.earlier`, which read columns of the row and of earlier ones, and so is `select`.
    """

    def __init__(
        self,
        pattern: Pattern,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str,
        select: Mapping[str, Expression],
        after: str = "skip past last",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        self._fields = [Column(f.name, f.dataType) for f in parse_schema(schema).fields]
        by_name = {field.name: field.type for field in self._fields}
        names = [key] if isinstance(key, str) else list(key)
        check_columns([*names, event_time], by_name)
        check_event_time(event_time, by_name[event_time])
        self._event_time = event_time
        measures = {}
        for name, reference in select.items():
            if not isinstance(reference, Reference):
                raise PatternError(
                    f"select={{{name!r}: ...}}: give something of the rows of a match, such as "
                    "mr.testing.earlier('large').last('amount')."
                )
            measures[name] = reference
        for variable, conditions in pattern.conditions().items():
            if not all(isinstance(condition, Expression) for condition in conditions):
                raise PatternError(
                    f"the condition of {variable!r} takes Spark to compute. Write it with "
                    "mr.testing.column and mr.testing.earlier."
                )
        definition = define(
            pattern, tuple(Column(n, by_name[n]) for n in names), by_name, measures, after
        )
        operator = PatternOperator(NAME, definition, self._fields)
        super().__init__(operator, operator.keys, start, shards)

    def send(self, rows: Iterable[dict[str, Any]] = ()) -> Emitted:
        """Run an epoch with these rows; returns what it emitted."""
        return self._run(encode(self._input(list(rows))))

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        names = [field.name for field in self._fields]
        columns = dict(zip(names, columns_of(self._fields, rows), strict=True))
        keys = tuple(columns[key.name] for key in self._operator.keys)
        hi, lo = self._fingerprints(list(keys))
        times = [row.get(self._event_time) for row in rows]
        kept = [columns[column.name] for column in self._operator.definition.columns]
        return Input(
            hi,
            lo,
            keys,
            np.zeros(len(rows), np.int32),
            columns=(*kept, pa.array(np.zeros(len(rows), np.int64))),
            event_us=pa.array([None if t is None else to_us(t) for t in times], pa.int64()),
            late=pa.StructArray.from_arrays(list(columns.values()), names=list(columns)),
        )
