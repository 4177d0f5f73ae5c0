"""Time inside an operator: it belongs to the epoch, and never goes back."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark import support
from tests.waiting import DEADLINE, until

import millrace as mr
from millrace.api import starting as starting_module
from millrace.log import open_store, spark_logs

HOUR = 3_600_000
START = 1_700_000_000_000


class Clocked(mr.Processor):
    """What time it is, and how many rows came within the hour."""

    burst = mr.Value("long", default=0, ttl="30 minutes")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        self.burst.set(self.burst.get() + len(rows))
        yield (ctx.epoch, round(ctx.processing_time.timestamp() * 1000), self.burst.get())


def test_a_clock_that_is_set_back_stands_still(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What expired while the clock was ahead does not come back, whether swept or not."""
    times = iter([START, START + HOUR, START, START + 10, START + 2 * HOUR])
    monkeypatch.setattr(starting_module._BatchTimes, "__call__", lambda self: (next(times), None))
    folder = support.Folder(tmp_path / "in", "k long")
    source = spark.readStream.schema(folder.schema).option("maxFilesPerTrigger", 1)

    def run(drops: int, table: str) -> list[tuple[int, int, int]]:
        for _ in range(drops):
            folder.drop([(1,)])
        query = (
            mr.stream(source.parquet(f"{folder.path}/*"))
            .key_by("k")
            .process(Clocked(), "epoch long, at long, burst long", name="clocked")
            .to("memory", name=table)
            .start(str(tmp_path / "location"), parallelism=1)
        )
        query.process_all_available()
        query.stop()
        return sorted(tuple(row) for row in spark.table(table).collect())

    ahead = START + HOUR
    assert run(3, "clocked_before") == [(1, START, 1), (2, ahead, 1), (3, ahead, 2)]
    # The next driver knows, too.
    assert run(2, "clocked_after") == [(4, ahead, 3), (5, START + 2 * HOUR, 1)]


class Alarm(mr.Processor):
    """Has a timer, so it beats."""

    due = mr.ProcessingTimeTimer()
    n = mr.Value("long", default=0)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        self.n.set(self.n.get() + len(rows))
        self.due.set(ctx.processing_time + dt.timedelta(days=30))
        yield (self.n.get(),)

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[Any]:
        yield (-1,)


@pytest.mark.parametrize("has_planned", [False, True])
def test_a_query_that_beats_starts_again_after_the_clock_was_set_back(
    spark: SparkSession, tmp_path: Path, has_planned: bool
) -> None:
    """Spark's rate source, by itself, would plan a batch that ends before it begins."""
    folder = support.Folder(tmp_path / "in", "k long")
    location = tmp_path / "location"

    def run(table: str) -> list[int]:
        folder.drop([(1,)])
        query = (
            mr.stream(spark.readStream.schema(folder.schema).parquet(f"{folder.path}/*"))
            .key_by("k")
            .process(Alarm(), "n long", name="alarm")
            .to("memory", name=table)
            .start(str(location), parallelism=1)
        )
        query.process_all_available()
        query.stop()
        return [row.n for row in spark.table(table).collect()]

    assert run(f"beats_before_{has_planned}") == [1]
    store = open_store(str(location))
    # As if it had beaten for two hours, by a clock that is two hours ahead.
    last = spark_logs.planned(store)[-1]
    ahead = [*spark_logs.offset_lines(store, last)[:-1], "7200"]
    spark_logs.rewrite(store, f"{spark_logs.OFFSETS}/{last}", "\n".join(ahead).encode())
    if has_planned:
        # A start without precautions has left this.
        store.put(f"{spark_logs.OFFSETS}/{last + 1}", "\n".join([*ahead[:-1], "1"]).encode())
    assert run(f"beats_after_{has_planned}") == [2]


def test_rows_that_come_during_the_first_batch_are_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first batch brings only the heartbeat; that it ends says nothing about later rows."""
    folder = support.Folder(tmp_path / "in", "k long")
    outputs: support.Outputs = {}
    begun, may_end, asked = threading.Event(), threading.Event(), threading.Event()

    def hold_the_first(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            begun.set()
            assert may_end.wait(DEADLINE)
        outputs[batch_id] = df.toArrow()

    query = (
        mr.stream(folder.stream(spark))
        .key_by("k")
        .process(Alarm(), "n long", name="alarm")
        .for_each_batch(hold_the_first)
        .start(str(tmp_path / "location"), parallelism=1)
    )
    found: list[int] = []

    def wait() -> None:
        asked.set()
        query.process_all_available()
        found.extend(n for table in outputs.values() for n in table["n"].to_pylist())

    try:
        assert begun.wait(DEADLINE)
        folder.drop([(1,)])
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert asked.wait(DEADLINE)
        may_end.set()
        until(lambda: not waiting.is_alive(), "through waiting")
    finally:
        may_end.set()
        query.stop()
    assert found == [1]
