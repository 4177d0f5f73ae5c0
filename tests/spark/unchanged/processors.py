"""Processors of Spark's own kind, for programs that have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class Totals(StatefulProcessor):
    """How many rows a key has had, and their milliseconds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "n long, ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, ms = self.totals.get() if self.totals.exists() else (0, 0)
        for row in rows:
            n, ms = n + 1, ms + (row.ms or 0)
        self.totals.update((n, ms))
        yield Row(page=key[0], n=n, ms=ms)

    def close(self) -> None:
        pass


class Recent(StatefulProcessor):
    """The last two users of a key, in a list."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.users = handle.getListState("users", "user string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        users = [user for (user,) in self.users.get()] + [row.user for row in rows]
        self.users.put([(user,) for user in users[-2:]])
        yield Row(page=key[0], users=",".join(users[-2:]))

    def close(self) -> None:
        pass


class PerUser(StatefulProcessor):
    """How many rows each user of a key has had, in a map; forgets those that have three."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.counts = handle.getMapState("counts", "user string", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            user = (row.user,)
            n = 1 + (self.counts.getValue(user)[0] if self.counts.containsKey(user) else 0)
            if n == 3:
                self.counts.removeKey(user)
            else:
                self.counts.updateValue(user, (n,))
        for (user,), (n,) in self.counts.iterator():
            yield Row(page=key[0], user=user, n=n)

    def close(self) -> None:
        pass


class Quiet(StatefulProcessor):
    """Says that a key has been quiet for five minutes of event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        times = [int(row.at.timestamp() * 1000) for row in rows if row.at is not None]
        if times:
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.last.update((max(times),))
            self.handle.registerTimer(max(times) + 300_000)
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (last,) = self.last.get()
        self.last.clear()
        quiet = expiredTimerInfo.getExpiryTimeInMs() - last
        yield Row(page=key[0], quiet=quiet, watermark=timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass


class PandasCounts(StatefulProcessor):
    """How many rows a key has had, in pandas."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        n = self.count.get()[0] if self.count.exists() else 0
        n += sum(len(each) for each in rows)
        self.count.update((n,))
        yield pd.DataFrame({"page": [key[0]], "n": [n]})

    def close(self) -> None:
        pass
