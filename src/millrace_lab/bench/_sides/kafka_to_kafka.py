"""The sides of `bench end-to-end`: a count and the latest time per key, from a topic to a topic.

Every output record has the key, and as its value the count and the greatest time so far. Epochs and
batches run back to back. Spark's connector has no transactions, so its sides are at least once.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.spark.kafka import add_connector
from millrace_lab.bench._sides.engine import common_settings
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS

REAL_TIME = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
}
"""An aggregation is not on the list of what real-time mode allows, but runs."""
REAL_TIME_BATCH = "10 seconds"


class KafkaSide(abc.ABC):
    """One engine between two topics."""

    cores = 2

    def __init__(self, workdir: Path, memory: str) -> None:
        self.workdir = workdir
        self._memory = memory

    def do_open(self, connector: str) -> dict[str, str]:
        """Start Spark with the jars of a folder; its version."""
        settings = common_settings(self.workdir, self._memory)
        self.spark = self.session(f"local[{self.cores}]", settings)
        self.spark.sparkContext.setLogLevel("ERROR")
        add_connector(self.spark, connector)
        return {"pyspark": self.spark.version}

    @abc.abstractmethod
    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        """A session as this side's user has it."""

    @abc.abstractmethod
    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> Any:
        """Start the query; `to` has the servers and the topic."""

    def do_start(self, servers: str, source: str, target: str) -> None:
        rows = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("CAST(key AS STRING) AS k", "CAST(CAST(value AS STRING) AS LONG) AS v")
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


class SparkToKafka(KafkaSide):
    """`kafka-spark`: micro-batches, with state in RocksDB."""

    settings: dict[str, str] = STATE_SETTINGS
    trigger: dict[str, Any] = {}  # noqa: RUF012

    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        builder: Any = SparkSession.builder.appName("spark").master(master)
        for key, value in {**settings, **self.settings}.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        return spark

    def start(self, source: DataFrame, to: dict[str, str], folder: str) -> StreamingQuery:
        counted = source.groupBy("k").agg(F.count("*").alias("n"), F.max("v").alias("v"))
        writer = (
            counted.select(F.col("k").alias("key"), F.concat_ws(",", "n", "v").alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", to["servers"])
            .option("topic", to["topic"])
            .option("checkpointLocation", folder)
            .outputMode("update")
        )
        return (writer.trigger(**self.trigger) if self.trigger else writer).start()


class RealTimeToKafka(SparkToKafka):
    """`kafka-spark-real-time`: long-running tasks, two of the source and two of the state."""

    cores = 6
    settings = {**STATE_SETTINGS, **REAL_TIME}  # noqa: RUF012
    trigger = {"realTime": REAL_TIME_BATCH}  # noqa: RUF012


def make_side(kind: str, workdir: Path, memory: str) -> KafkaSide:
    """A side by its name."""
    if kind == "kafka-spark":
        return SparkToKafka(workdir, memory)
    if kind == "kafka-spark-real-time":
        return RealTimeToKafka(workdir, memory)
    return MillraceToKafka(workdir, memory, exactly_once=kind == "kafka-millrace")
