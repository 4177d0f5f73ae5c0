"""The sides of `bench nexmark` on Spark: Millrace's programs, and Spark's own operators."""

from __future__ import annotations

import abc
import itertools
import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session
from millrace_lab.nexmark import generator
from millrace_lab.nexmark.checking import Events, Rows
from millrace_lab.nexmark.queries import BY_NAME, EMITTED, Query

UTC = {"spark.sql.session.timeZone": "UTC"}
"""Days and hours are those of the events."""


class NexmarkSide(Queries, abc.ABC):
    """What both sides have in common."""

    @abc.abstractmethod
    def answer(self, events: Events, query: Query, folder: Path) -> Rows:
        """The answer of a query over files of events."""

    @abc.abstractmethod
    def start(self, query: Query, events: DataFrame, folder: Path) -> StreamingQuery:
        """Start a query whose output goes nowhere."""

    def do_events(self, folder: str, number: int, epochs: int, per_second: int) -> int:
        """Write files of events."""
        Events(Path(folder), number, epochs, per_second).write(self.spark)
        return number

    def do_answer(
        self, query: str, folder: str, number: int, epochs: int, per_second: int, path: str
    ) -> int:
        """Write the answer of a query over files of events."""
        events = Events(Path(folder), number, epochs, per_second)
        rows = self.answer(events, BY_NAME[query], self.folder(f"{query}-answer"))
        Path(path).write_text(json.dumps(rows))
        return len(rows)

    def do_timed(
        self, query: str, rows: int, per_second: int, warm: int, windows: int
    ) -> dict[str, Any]:
        """Epochs back to back. A source that is read several times counts once."""
        numbers = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .load()
            .selectExpr("value AS v")
        )
        events = generator.events(numbers, per_second, null_others=False)
        started = self.start(BY_NAME[query], events, self.folder(query))
        epochs = self._drive(started, warm, windows + 1)
        return {
            "windows": [
                {"rows": rows, "begin": one["started"], "end": following["started"]}
                for one, following in itertools.pairwise(epochs)
            ],
            "taken": rows * len(self._numbers(started)),
        }


class MillraceNexmark(NexmarkSide):
    """`nexmark-millrace`."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = {**common_settings(workdir, memory), **UTC}
        super().__init__(mr.session("nexmark-millrace", "local[2]", settings), workdir)

    def answer(self, events: Events, query: Query, folder: Path) -> Rows:
        return events.answer(query, self.spark, folder)

    def start(self, query: Query, events: DataFrame, folder: Path) -> StreamingQuery:
        program = query.program(events)
        assert isinstance(program, mr.Stream)
        return program.to("noop").start(str(folder), parallelism=PARTITIONS).spark_query


class SparkNexmark(NexmarkSide):
    """`nexmark-spark`: operators of the JVM on RocksDB."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = {**common_settings(workdir, memory), **STATE_SETTINGS, **UTC}
        super().__init__(plain_session("nexmark-spark", settings), workdir)

    def answer(self, events: Events, query: Query, folder: Path) -> Rows:
        return events.spark_answer(query, self.spark, folder)

    def start(self, query: Query, events: DataFrame, folder: Path) -> StreamingQuery:
        assert query.spark is not None
        mode = "append" if query.answer == EMITTED else "update"
        writer = query.spark(events).writeStream.outputMode(mode).format("noop")
        return writer.option("checkpointLocation", str(folder)).start()
