"""The sides of `bench python`: processors on Millrace, and on Spark.

An epoch of `rows` rows has exactly `keys` distinct keys, out of twice as many: one or the other of
each pair, by a hash. Event time moves on by a minute an epoch; a row's is in the first half of it.
So in every epoch half of the keys with a session continue it, a quarter begin a new one, and
timers end the sessions of those that have stayed away.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings
from millrace_lab.bench._sides.millrace import MillraceQueries
from millrace_lab.bench._sides.programs import (
    COUNT,
    DELAY,
    IN_PANDAS,
    NATIVE,
    OUTPUTS,
    ROW_MODE,
    SESSIONS,
)
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session

MILLRACE, COMPAT, ROW, PANDAS = "millrace", "millrace_compat", "pyspark_row", "pyspark_pandas"
"""Millrace's own processors, Spark's classes on Millrace, and Spark's two modes."""

START_MS = 1_704_067_200_000
STEP_MS = 60_000
KEY = "2 * pmod(value, {keys}) + pmod(xxhash64(pmod(value, {keys}), value div {rows}), 2) AS key"
AT = "timestampadd(MILLISECOND, pmod(xxhash64(value), 30000), timestamp) AS at"


def _columns(rows: int, keys: int) -> list[str]:
    return [KEY.format(keys=keys, rows=rows), AT]


class ProcessorQueries(Queries):
    """What both engines have in common."""

    def do_process(
        self,
        face: str,
        program: str,
        rows: int,
        keys: int,
        warm: int,
        epochs: int,
        keep: str | None = None,
    ) -> list[dict[str, Any]]:
        """Run a program's epochs. What a batch emits is kept in `keep`, in a folder of its own."""
        folder = self.folder(f"{face}-{program}-{rows}{'-kept' if keep else ''}")
        source = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .option("startTimestamp", START_MS)
            .option("advanceMillisPerBatch", STEP_MS)
            .load()
            .selectExpr(*_columns(rows, keys))
        )
        query = self.begin(face, program, source, folder, keep)
        return self._drive(query, warm, epochs)

    def begin(
        self, face: str, program: str, source: DataFrame, folder: Path, keep: str | None
    ) -> StreamingQuery:
        """Start a program from the checkpoint in `folder`."""
        raise NotImplementedError

    def do_input(self, rows: int, keys: int, epochs: int, path: str) -> int:
        """The rows of some epochs, by one Spark batch: their batch, key and time."""
        stamped = f"timestamp_millis({START_MS} + {STEP_MS} * (id div {rows})) AS timestamp"
        table = (
            self.spark.range(0, rows * epochs, 1, PARTITIONS)
            .selectExpr("id AS value", stamped)
            .selectExpr(f"value div {rows} AS batch", *_columns(rows, keys))
            .selectExpr("batch", "key", "unix_millis(at) AS at")
            .toArrow()
        )
        pq.write_table(table, path)
        return int(table.num_rows)


class MillraceProcessing(MillraceQueries, ProcessorQueries):
    """`millrace_processing`: `mr.Processor`, and Spark's classes by `mr.transform_with_state`."""

    operator = "program"

    def __init__(self, workdir: Path, memory: str) -> None:
        _utc()
        super().__init__("millrace-processing", workdir, memory)

    def begin(
        self, face: str, program: str, source: DataFrame, folder: Path, keep: str | None
    ) -> StreamingQuery:
        output = OUTPUTS[program]
        if face == MILLRACE:
            times = {"event_time": "at", "watermark": DELAY} if program == SESSIONS else {}
            if program == COUNT:
                source = source.select("key")
            stream = (
                mr.stream(source, **times)
                .key_by("key")
                .process(NATIVE[program](), output, name=self.operator)
            )
        else:
            stream = mr.transform_with_state(
                *_spark_arguments(program, source, ROW_MODE[program]()), name=self.operator
            )
        sink = stream.for_each_batch(_keeper(keep)) if keep else stream.to("noop")
        self._query = sink.start(str(folder / "location"), parallelism=PARTITIONS)
        return self._query.spark_query


class SparkProcessing(ProcessorQueries):
    """`spark_processing`: PySpark's `transformWithState`, in both modes, on RocksDB."""

    def __init__(self, workdir: Path, memory: str) -> None:
        _utc()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {
            **common_settings(workdir, memory),
            **STATE_SETTINGS,
            "spark.python.unix.domain.socket.enabled": "true",
        }
        super().__init__(plain_session("spark-processing", settings), workdir)

    def begin(
        self, face: str, program: str, source: DataFrame, folder: Path, keep: str | None
    ) -> StreamingQuery:
        classes = ROW_MODE if face == ROW else IN_PANDAS
        grouped, *arguments = _spark_arguments(program, source, classes[program]())
        transform = (
            grouped.transformWithState if face == ROW else grouped.transformWithStateInPandas
        )
        writer = transform(*arguments).writeStream.outputMode("update")
        writer = writer.foreachBatch(_keeper(keep)) if keep else writer.format("noop")
        query: StreamingQuery = writer.option("checkpointLocation", str(folder)).start()
        return query


def _spark_arguments(program: str, source: DataFrame, processor: Any) -> list[Any]:
    if program == COUNT:
        return [source.select("key").groupBy("key"), processor, OUTPUTS[COUNT], "Update", "None"]
    grouped = source.withWatermark("at", DELAY).groupBy("key")
    return [grouped, processor, OUTPUTS[SESSIONS], "Update", "EventTime"]


def _keeper(folder: str) -> Any:
    def keep(df: DataFrame, batch_id: int) -> None:
        df.write.mode("overwrite").parquet(f"{folder}/{batch_id}")

    return keep


def _utc() -> None:
    """Spark's row mode shows naive times, in the zone of the process."""
    os.environ["TZ"] = "UTC"
    time.tzset()
