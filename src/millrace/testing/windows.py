"""Windows on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.event_time import Duration, make_windows, parse_emission
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.spec import WindowDefinition
from millrace.testing.epochs import NAME, START
from millrace.testing.timed import Given, TimedHarness


class WindowHarness(TimedHarness):
    """`key_by(key).window(size, slide, offset).aggregate(**aggregates)` over rows you give."""

    def __init__(
        self,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str,
        size: Duration,
        aggregates: Mapping[str, Aggregate],
        slide: Duration | None = None,
        offset: Duration | None = None,
        emit: str = "final",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        given = Given(key, schema, event_time, aggregates)
        self._windows = make_windows(size, slide, offset)
        definition = WindowDefinition(
            given.keys, self._windows, given.aggregates, parse_emission(emit)
        )
        super().__init__(WindowOperator(NAME, definition, given.fields), given, start, shards)

    def _times(self, event_us: list[int | None]) -> dict[str, pa.Array]:
        panes = [None if us is None else self._windows.pane_of(us) for us in event_us]
        return {"pane": pa.array(panes, pa.int64())}
