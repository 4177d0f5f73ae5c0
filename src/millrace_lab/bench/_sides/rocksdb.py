"""Spark's own JVM streaming aggregation: `groupBy().count()` on RocksDB, changelog on, update mode.

Run as its user would: every setting that is not named here is Spark's default. With `fast_log` it
writes its offset and commit logs as Millrace's queries do, which tells that part of a difference
from the rest.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.log import open_store
from millrace.spark.bookkeeping import checkpoint_files
from millrace_lab.bench._sides.engine import COUNTS, Engine, common_settings

STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def plain_session(name: str, settings: dict[str, str]) -> SparkSession:
    """A session without any of Millrace's settings."""
    builder: Any = SparkSession.builder.appName(name).master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


class RocksDBEngine(Engine):
    """`spark_rocksdb`, and `spark_rocksdb_fastlog`."""

    def __init__(self, workdir: Path, memory: str, *, fast_log: bool = False) -> None:
        settings = {**common_settings(workdir, memory), **STATE_SETTINGS}
        super().__init__(plain_session("spark-rocksdb", settings), workdir)
        self._fast_log = fast_log

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        writer = (
            source.groupBy("key")
            .count()
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(folder))
        )
        writer = writer.trigger(**trigger) if trigger else writer
        if not self._fast_log:
            return writer.start()
        with checkpoint_files(self.spark, open_store(str(folder))):
            return writer.start()

    def _state(self, folder: Path) -> DataFrame:
        state = self.spark.read.format("statestore").load(str(folder))
        return state.selectExpr("key.key AS key", "value.count AS n")

    def table(self, folder: Path) -> pa.Table:
        counts = self._state(folder).toArrow()
        return pa.table(counts.columns, names=["key", "n"]).cast(COUNTS)

    def do_sql(self, name: str, query: str, times: int) -> dict[str, Any]:
        """A query on the state as table `counts`, several times, each from opening on."""
        seconds, rows = [], []
        for _ in range(times):
            started = time.perf_counter()
            self._state(self.folder(name)).createOrReplaceTempView("counts")
            rows = [row.asDict() for row in self.spark.sql(query).collect()]
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "rows": rows}
