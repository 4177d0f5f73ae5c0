"""Sides between topics: a count and the latest time per key, in `bench end-to-end` and `realtime`.

Every output record has the key, and as its value the count and the greatest time so far. Epochs and
batches run back to back. Spark's connector has no transactions, so its sides are at least once.
In real time, Millrace also does the same with one window of all time, and with a processor.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.spark.kafka import jars
from millrace_lab.bench._sides.engine import common_settings
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS

REAL_TIME = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
}
"""An aggregation is not on the list of what real-time mode allows, but runs."""
REAL_TIME_BATCH = "10 seconds"

AGGREGATE, WINDOW, PROCESSOR = "aggregate", "window", "processor"
OUTPUT = "k string, n long, v long"
ALL_TIME = "36500 days"
"""One window, which begins in 1970."""


class KafkaSide(abc.ABC):
    """One engine between two topics."""

    cores = 2
    program = AGGREGATE
    epoch = REAL_TIME_BATCH

    def __init__(self, workdir: Path, memory: str) -> None:
        self.workdir = workdir
        self._memory = memory

    def do_open(self, connector: str) -> dict[str, str]:
        """Start Spark with the jars of a folder; its version."""
        settings = common_settings(self.workdir, self._memory)
        # Real time finds them on the class path only, and so they are there from the start.
        settings["spark.jars"] = ",".join(jars(connector))
        self.spark = self.session(f"local[{self.cores}]", settings)
        self.spark.sparkContext.setLogLevel("ERROR")
        return {"pyspark": self.spark.version}

    @abc.abstractmethod
    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        """A session as this side's user has it."""

    @abc.abstractmethod
    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> Any:
        """Start the query; `to` has the servers and the topic."""

    def do_start(
        self,
        servers: str,
        source: str,
        target: str,
        program: str = AGGREGATE,
        epoch: str = REAL_TIME_BATCH,
    ) -> None:
        """`epoch` is how long a batch in real time is."""
        self.program, self.epoch = program, epoch
        rows = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr(
                "CAST(key AS STRING) AS k",
                "CAST(CAST(value AS STRING) AS LONG) AS v",
                "timestamp AS at",
            )
        )
        to = {"servers": servers, "topic": target}
        self._query = self.start(rows, to, str(self.workdir / target))

    def do_check(self) -> None:
        """Fail if the query has ended."""
        query = self._spark_query()
        error = None if query.isActive else query.exception()
        if error is not None:
            raise error

    def do_stop(self) -> None:
        self._query.stop()

    def _spark_query(self) -> StreamingQuery:
        query: StreamingQuery = getattr(self._query, "spark_query", self._query)
        return query

    def close(self) -> None:
        if hasattr(self, "spark"):
            self.spark.stop()


class MillraceToKafka(KafkaSide):
    """`kafka-millrace`, and `kafka-millrace-at-least-once`."""

    def __init__(self, workdir: Path, memory: str, *, exactly_once: bool) -> None:
        super().__init__(workdir, memory)
        self._exactly_once = exactly_once

    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        return mr.session("millrace", master, settings)

    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> mr.Query:
        counted = mr.stream(source).key_by("k").aggregate(n=mr.count(), v=mr.max("v"), name="last")
        value = F.concat_ws(",", "n", "v")
        writer = counted.to("kafka", **to, key="k", value=value, exactly_once=self._exactly_once)
        return writer.start(folder, parallelism=self.cores)


class MillraceRealTime(MillraceToKafka):
    """`kafka-millrace-real-time`: two tasks of the source, two shards."""

    cores = 6

    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> mr.Query:
        if self.program == WINDOW:
            rows = mr.stream(source, event_time="at", watermark="1 day").key_by("k")
            windows = rows.window(ALL_TIME)
            out = windows.aggregate(n=mr.count(), v=mr.max("v"), emit="update", name="last")
        elif self.program == PROCESSOR:
            out = mr.stream(source).key_by("k").process(Last(), OUTPUT, name="last")
        else:
            rows = mr.stream(source).key_by("k")
            out = rows.aggregate(n=mr.count(), v=mr.max("v"), name="last")
        value = F.concat_ws(",", "n", "v")
        writer = out.to("kafka", **to, key="k", value=value, exactly_once=False)
        return writer.start(folder, parallelism=2, trigger=f"real time {self.epoch}")

    def do_stop(self) -> None:
        # The epoch may be longer than anyone wants to wait for.
        self._query.stop(timeout=1.0)


class Last(mr.Processor):
    """A count and the latest time per key, in Python."""

    n = mr.Value("long", default=0)
    v = mr.Value("long", default=0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        n, v = self.n.get(), self.v.get()
        for row in rows:
            n, v = n + 1, max(v, row.v)
        self.n.set(n)
        self.v.set(v)
        yield key.k, n, v


class SparkToKafka(KafkaSide):
    """`kafka-spark`: micro-batches, with state in RocksDB."""

    settings: dict[str, str] = STATE_SETTINGS
    is_real_time = False

    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        builder: Any = SparkSession.builder.appName("spark").master(master)
        for key, value in {**settings, **self.settings}.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        return spark

    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> StreamingQuery:
        counted = source.drop("at").groupBy("k").agg(F.count("*").alias("n"), F.max("v").alias("v"))
        writer: Any = (
            counted.select(F.col("k").alias("key"), F.concat_ws(",", "n", "v").alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", to["servers"])
            .option("topic", to["topic"])
            .option("checkpointLocation", folder)
            .outputMode("update")
        )
        if self.is_real_time:
            writer = writer.trigger(realTime=self.epoch)
        query: StreamingQuery = writer.start()
        return query


class RealTimeToKafka(SparkToKafka):
    """`kafka-spark-real-time`: long-running tasks, two of the source and two of the state."""

    cores = 6
    settings = {**STATE_SETTINGS, **REAL_TIME}  # noqa: RUF012
    is_real_time = True


def make_side(kind: str, workdir: Path, memory: str) -> KafkaSide:
    """A side by its name."""
    if kind == "kafka-spark":
        return SparkToKafka(workdir, memory)
    if kind == "kafka-spark-real-time":
        return RealTimeToKafka(workdir, memory)
    if kind == "kafka-millrace-real-time":
        return MillraceRealTime(workdir, memory, exactly_once=False)
    return MillraceToKafka(workdir, memory, exactly_once=kind == "kafka-millrace")
