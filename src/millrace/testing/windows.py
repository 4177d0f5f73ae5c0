"""Windows on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from millrace.api.event_time import Duration, make_tiles, make_windows, parse_emission
from millrace.errors import UsageError
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.testing.epochs import NAME, START
from millrace.testing.timed import Given, TimedHarness


class WindowHarness(TimedHarness):
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
        given = Given(key, schema, event_time, aggregates)
        several = not isinstance(size, str | dt.timedelta)
        tiles: tuple[Windows, ...]
        if isinstance(size, str | dt.timedelta):
            tiles = (make_windows(size, slide, offset),)
        elif slide is None:
            raise UsageError("windows of several lengths need slide=, as windows() does.")
        else:
            tiles = make_tiles(size, slide, offset)
        self._windows = tiles[-1]
        definition = WindowDefinition(
            given.keys,
            self._windows,
            given.aggregates,
            parse_emission(emit),
            tuple(windows.size_us for windows in tiles) if several else (),
        )
        super().__init__(WindowOperator(NAME, definition, given.fields), given, start, shards)

    def _times(self, event_us: list[int | None]) -> dict[str, pa.Array]:
        panes = [None if us is None else self._windows.pane_of(us) for us in event_us]
        return {"pane": pa.array(panes, pa.int64())}
