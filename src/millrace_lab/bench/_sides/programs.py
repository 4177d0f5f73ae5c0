"""The programs of `bench python`: the same two, as each side's user would write them.

`count` is the number of rows of a key so far. `sessions` are the stretches of a key's event times
without a gap of more than `GAP`: one is emitted when the next one begins, or by a timer when the
watermark has passed its end; times are kept in milliseconds. The classes for Spark's row mode also
run on Millrace, as they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millrace as mr
from millrace_lab.bench._sides.tws import CountProcessor

COUNT, SESSIONS = "count", "sessions"
GAP_MS = 100_000
GAP = dt.timedelta(milliseconds=GAP_MS)
DELAY = "10 seconds"
"""How late rows may be."""

OUTPUTS = {
    COUNT: "key BIGINT, n BIGINT",
    SESSIONS: "key BIGINT, start BIGINT, last BIGINT, events BIGINT",
}
_SESSION = "start BIGINT, last BIGINT, events BIGINT"


class Count(mr.Processor):
    """Millrace's own: a count."""

    n = mr.Value("long", default=0)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[Any, ...]]:
        n = self.n.get() + len(rows)
        self.n.set(n)
        yield key.key, n


class Sessions(mr.Processor):
    """Millrace's own: sessions."""

    session = mr.Value("struct<start:long,last:long,events:long>")
    idle = mr.EventTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[Any, ...]]:
        held: dict[str, int] | None = self.session.get()
        for at in sorted(_millis(row.at) for row in rows):
            if held is not None and at - held["last"] <= GAP_MS:
                held = {"start": held["start"], "last": at, "events": held["events"] + 1}
                continue
            if held is not None:
                yield key.key, held["start"], held["last"], held["events"]
            held = {"start": at, "last": at, "events": 1}
        self.session.set(held)
        self.idle.set(ctx.event_time + GAP)  # type: ignore[operator]

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[tuple[Any, ...]]:
        held = self.session.get()
        self.session.clear()
        yield key.key, held["start"], held["last"], held["events"]


class SparkSessions(StatefulProcessor):
    """`transformWithState`, row mode: sessions, with as few state calls as it takes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", _SESSION)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from self._extend(key[0], sorted(_millis(row.at) for row in rows))

    def _extend(self, key: int, times: list[int]) -> Iterator[Any]:
        held = self._session.get()
        before = None if held is None else held[1]
        for at in times:
            if held is not None and at - held[1] <= GAP_MS:
                held = (held[0], at, held[2] + 1)
                continue
            if held is not None:
                yield self._closed(key, held)
            held = (at, at, 1)
        assert held is not None
        self._session.update(held)
        if before is not None:
            self._handle.deleteTimer(before + GAP_MS)
        self._handle.registerTimer(held[1] + GAP_MS)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        held = self._session.get()
        self._session.clear()
        yield self._closed(key[0], held)

    def _closed(self, key: int, held: Any) -> Any:
        return Row(key=key, start=held[0], last=held[1], events=held[2])

    def close(self) -> None:
        pass


class PandasCount(CountProcessor):
    """`transformWithStateInPandas`: a count."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self._count.get()
        n = (before[0] if before else 0) + sum(len(frame) for frame in rows)
        self._count.update((n,))
        yield pd.DataFrame({"key": [key[0]], "n": [n]})


class PandasSessions(SparkSessions):
    """`transformWithStateInPandas`: sessions."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        frames = [frame["at"].astype("datetime64[ms]").astype("int64") for frame in rows]
        yield from self._extend(key[0], sorted(at for times in frames for at in times.tolist()))

    def _closed(self, key: int, held: Any) -> Any:
        return pd.DataFrame(
            {"key": [key], "start": [held[0]], "last": [held[1]], "events": [held[2]]}
        )


def _millis(time: dt.datetime) -> int:
    return round(time.timestamp() * 1000)


ROW_MODE: dict[str, Callable[[], StatefulProcessor]] = {
    COUNT: CountProcessor,
    SESSIONS: SparkSessions,
}
IN_PANDAS: dict[str, Callable[[], StatefulProcessor]] = {
    COUNT: PandasCount,
    SESSIONS: PandasSessions,
}
NATIVE = {COUNT: Count, SESSIONS: Sessions}
