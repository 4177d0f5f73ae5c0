"""Sessions on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.event_time import Duration, parse_emission, parse_gap
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.session.operator import SessionOperator
from millrace.operators.session.spec import SessionDefinition
from millrace.testing.epochs import NAME, START
from millrace.testing.timed import Given, TimedHarness


class SessionHarness(TimedHarness):
    """`key_by(key).session(gap).aggregate(**aggregates)` over rows you give."""

    def __init__(
        self,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        event_time: str,
        gap: Duration,
        aggregates: Mapping[str, Aggregate],
        emit: str = "final",
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        given = Given(key, schema, event_time, aggregates)
        definition = SessionDefinition(
            given.keys, parse_gap(gap), given.aggregates, parse_emission(emit)
        )
        super().__init__(SessionOperator(NAME, definition, given.fields), given, start, shards)

    def _times(self, event_us: list[int | None]) -> dict[str, pa.Array]:
        times = pa.array(event_us, pa.int64())
        return {"first_us": times, "last_us": times}
