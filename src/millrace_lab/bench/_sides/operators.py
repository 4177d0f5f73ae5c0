"""The sides of `bench operators` that run on Spark: the cases of `_foreign.engines.cases`.

Millrace's operators, and Spark's own on RocksDB, each as its user would write it: final results, a
watermark ten seconds behind. A new case is a function in each of the two tables below.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.arrays import Int64Array
from millrace_lab.bench._foreign.engines.cases import (
    BASE_MS,
    DELAY_S,
    MINUTE_MS,
    columns_sql,
)
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings
from millrace_lab.bench._sides.millrace import OPERATOR, MillraceQueries
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session

Source = Callable[[], DataFrame]
"""The rows `p`, `k`, `amount` and `ts`, as a stream that can be read several times."""
DELAY = f"{DELAY_S} seconds"


def _stream(source: Source) -> mr.Stream:
    return mr.stream(source(), event_time="ts", watermark=DELAY)


def _totals(windows: mr.WindowedStream) -> mr.Stream:
    return windows.aggregate(n=mr.count(), total=mr.sum("amount"), name=OPERATOR)


MILLRACE: dict[str, Callable[[Source], mr.Stream]] = {
    "tumbling": lambda source: _totals(_stream(source).key_by("k").window("1 minute")),
    "hopping": lambda source: _totals(
        _stream(source).key_by("k").window("10 minutes", slide="1 minute")
    ),
}


def _windows(source: Source, *window: str) -> DataFrame:
    rows = source().withWatermark("ts", DELAY)
    grouped = rows.groupBy("k", F.window("ts", *window))
    return grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


SPARK: dict[str, Callable[[Source], DataFrame]] = {
    "tumbling": lambda source: _windows(source, "1 minute"),
    "hopping": lambda source: _windows(source, "10 minutes", "1 minute"),
}

Keep = Callable[[DataFrame, int], None]


class CasesSide(Queries, abc.ABC):
    """What the sides have in common."""

    @abc.abstractmethod
    def start(self, case: str, source: Source, folder: Path, keep: Keep | None) -> StreamingQuery:
        """Start a case; its output goes to a function, or nowhere."""

    def do_output(self, case: str, keys: int, rows: int, minutes: int, path: str) -> int:
        """Write what a case emits of the first minutes, maybe also of some after them."""
        emitted: dict[int, pa.Table] = {}

        def keep(df: DataFrame, batch: int) -> None:
            emitted[batch] = df.toArrow()

        folder = self.folder(f"{case}-output")
        query = self.start(case, self._source(keys, rows), folder, keep)
        self._drive(query, 0, minutes)
        numbers = np.concatenate([whole_numbers(table) for table in emitted.values()])
        np.save(path, numbers)
        return len(numbers)

    def do_timed(self, case: str, keys: int, rows: int, warm: int, windows: int) -> dict[str, Any]:
        """Epochs back to back, each a minute of event time."""
        folder = self.folder(f"{case}-{keys}")
        query = self.start(case, self._source(keys, rows), folder, None)
        epochs = self._drive(query, warm, windows + 1)
        return {
            "windows": [
                {"rows": one["rows"], "begin": one["started"], "end": following["started"]}
                for one, following in itertools.pairwise(epochs)
            ],
            "taken": sum(epoch["rows"] for epoch in self._epochs(query)),
            "parts": [epoch["parts"] for epoch in epochs[:-1]],
        }

    def _source(self, keys: int, rows: int) -> Source:
        columns = columns_sql(rows, keys)
        ms = columns.pop("ms")
        chosen = [f"{sql} AS {name}" for name, sql in columns.items()]

        def source() -> DataFrame:
            return (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", rows)
                .option("numPartitions", PARTITIONS)
                .load()
                .selectExpr("value AS v")
                .selectExpr(*chosen, f"timestamp_millis({ms}) AS ts")
            )

        return source


def whole_numbers(table: pa.Table) -> Int64Array:
    """Rows of whole numbers and times, times in milliseconds; fields of structs are columns."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz))
        columns.append(column.cast(pa.int64()).to_numpy())
    return np.stack(columns, axis=1) if columns else np.empty((0, 0), np.int64)


class MillraceCases(MillraceQueries, CasesSide):
    """`operators-millrace`."""

    def start(self, case: str, source: Source, folder: Path, keep: Keep | None) -> StreamingQuery:
        emitted = MILLRACE[case](source)
        written = emitted.to("noop") if keep is None else emitted.for_each_batch(keep)
        self._query = written.start(str(folder), parallelism=PARTITIONS)
        return self._query.spark_query

    def _epochs(self, query: StreamingQuery) -> list[dict[str, Any]]:
        epochs = super()._epochs(query)
        for epoch in epochs:
            report = self._report(epoch["batch"])
            if report is not None:
                counters = report["operators"][self.operator]["counters"]
                epoch["evicted"] = counters.get("evicted", 0)
        return epochs

    def do_opened(self, name: str, rows: int, opened: int, at_once: int) -> int:
        """Open this many windows, each of another key: `rows` of them in every minute."""
        for first in range(0, opened, at_once):
            flow = self._flow(min(at_once, opened - first), rows, None)
            query = self._flowing(name, flow, opened // rows, trigger="available_now")
            query.awaitTermination()
        return opened

    def do_flow(
        self, name: str, rows: int, opened: int, warm: int, epochs: int, jump: int | None = None
    ) -> list[dict[str, Any]]:
        """Epochs that open `rows` windows and end as many, while this many are open.

        With `jump`, all that are open end at once some epochs after the warm-up.
        """
        jump_at = None if jump is None else opened + (warm + jump) * rows
        query = self._flowing(name, self._flow(rows, rows, jump_at), opened // rows)
        return self._drive(query, warm, epochs)

    def _flow(self, at_once: int, rows: int, jump_at: int | None) -> DataFrame:
        later = "0" if jump_at is None else f"if(value >= {jump_at}, 1000000, 0)"
        ms = f"{BASE_MS} + (value div {rows} + {later}) * {MINUTE_MS}"
        return (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", at_once)
            .option("numPartitions", PARTITIONS)
            .load()
            .selectExpr("value AS k", f"timestamp_millis({ms}) AS ts")
        )

    def _flowing(self, name: str, flow: DataFrame, minutes: int, **options: Any) -> StreamingQuery:
        windows = mr.stream(flow, event_time="ts", watermark=f"{minutes} minutes").key_by("k")
        emitted = windows.window("1 minute").aggregate(n=mr.count(), name=OPERATOR)
        folder = str(self.folder(name))
        self._query = emitted.to("noop").start(folder, parallelism=PARTITIONS, **options)
        return self._query.spark_query

    def do_kept(self, lengths: list[str], keys: int, rows: int, epochs: int) -> dict[str, Any]:
        """What windows of a day keep that begin every minute: of one length, or of several."""
        folder = self.folder(f"kept-{len(lengths)}")
        keyed = _stream(self._source(keys, rows)).key_by("k")
        windows = (
            keyed.windows(lengths, slide="1 minute")
            if len(lengths) > 1
            else keyed.window(lengths[0], slide="1 minute")
        )
        kept = windows.aggregate(n=mr.count(), total=mr.sum("amount"), emit="none", name=OPERATOR)
        self._query = kept.to("noop").start(str(folder), parallelism=PARTITIONS)
        found = self._drive(self._query.spark_query, 0, epochs)[:epochs]
        return {
            "rows": found[-1]["state_rows"],
            "bytes": sum(epoch["segment_bytes"] for epoch in found),
        }


class SparkCases(CasesSide):
    """`operators-spark`: operators of the JVM, in append mode, on RocksDB."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = {**common_settings(workdir, memory), **STATE_SETTINGS}
        super().__init__(plain_session("operators-spark", settings), workdir)

    def start(self, case: str, source: Source, folder: Path, keep: Keep | None) -> StreamingQuery:
        writer = SPARK[case](source).writeStream.outputMode("append")
        writer = writer.option("checkpointLocation", str(folder))
        return (writer.format("noop") if keep is None else writer.foreachBatch(keep)).start()
