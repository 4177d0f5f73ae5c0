"""Time inside an operator: it belongs to the epoch, and never goes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark import support

import millrace as mr
from millrace.api import starting as starting_module

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
