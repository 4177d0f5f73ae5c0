"""Deduplication on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.dedup import WATERMARK
from millrace.api.event_time import Duration, check_event_time, parse_ttl
from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.operators.dedup.layout import EVENT, NEVER, PROCESSING
from millrace.operators.dedup.operator import DedupOperator
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_us
from millrace.operators.process.durations import duration_us
from millrace.testing.epochs import (
    NAME,
    START,
    Emitted,
    OperatorHarness,
    check_columns,
    columns_of,
)


class DedupHarness(OperatorHarness[DedupOperator]):
    """`drop_duplicates(*key, ttl=ttl)` over rows you give.

    With `event_time`, keys are remembered for `watermark`, the delay that `mr.stream` would be
    given, after the time of their first row.
    """

    def __init__(
        self,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str | None = None,
        watermark: Duration = "0 seconds",
        ttl: Duration | None = WATERMARK,
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        self._fields = [Column(f.name, f.dataType) for f in parse_schema(schema).fields]
        by_name = {field.name: field.type for field in self._fields}
        names = [key] if isinstance(key, str) else list(key)
        check_columns([*names, *([event_time] if event_time else [])], by_name)
        self._event_time = event_time if ttl == WATERMARK else None
        keys = tuple(Column(name, by_name[name]) for name in names)
        if self._event_time is not None:
            check_event_time(self._event_time, by_name[self._event_time])
            delay = 0 if watermark == "0 seconds" else duration_us(watermark)
            definition = DedupDefinition(keys, EVENT, delay)
        elif ttl is None or ttl == WATERMARK:
            definition = DedupDefinition(keys, NEVER)
        else:
            definition = DedupDefinition(keys, PROCESSING, parse_ttl(ttl))
        super().__init__(DedupOperator(NAME, definition, self._fields), keys, start, shards)

    def send(self, rows: Iterable[dict[str, Any]] = ()) -> Emitted:
        """Run an epoch with these rows; returns those that went on."""
        return self._run(encode(self._input(list(rows))))

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        columns = columns_of(self._fields, rows)
        by_name = {field.name: column for field, column in zip(self._fields, columns, strict=True)}
        hi, lo = self._fingerprints([by_name[key.name] for key in self._operator.keys])
        event_us = None
        if self._event_time is not None:
            times = [row.get(self._event_time) for row in rows]
            event_us = pa.array([None if t is None else to_us(t) for t in times], pa.int64())
        part = np.zeros(len(rows), np.int32)
        return Input(hi, lo, (), part, columns=columns, event_us=event_us)
