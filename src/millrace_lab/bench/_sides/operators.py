"""The sides of `bench operators` and `bench patterns` that run on Spark: the cases of
`_foreign.engines.cases`.

Millrace's operators, and Spark's own on RocksDB, each as its user would write it: final results, a
watermark ten seconds behind. A new case is a function in each of the two tables below; a pattern
in the first only, because Spark has none.

Spark has no operator for the best rows of a key, but its aggregate `max_by` takes a number of rows
since version 4.2. It runs in the JVM, with a partial step before the exchange, so nothing that a
user writes by hand (`transformWithState`, `applyInPandasWithState`) comes near it.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.arrays import Int64Array
from millrace_lab.bench._foreign.engines.cases import (
    BASE_MS,
    BEST,
    BY_NAME,
    DELAY_S,
    GAP_S,
    HIGH,
    LOW,
    MINUTE_MS,
    STREAK,
    TICK_MS,
    WITHIN_PATTERN_S,
    WITHIN_S,
    columns_sql,
)
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings
from millrace_lab.bench._sides.millrace import OPERATOR, MillraceQueries
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session

DELAY = f"{DELAY_S} seconds"
GAP = f"{GAP_S} seconds"


@dataclass(frozen=True)
class Source:
    """The rows `p`, `k`, `amount` and `ts`, as streams; a minute of them is a batch."""

    spark: SparkSession
    keys: int
    rows: int

    def all(self) -> DataFrame:
        return self._rows(self.rows, "value")

    def ticks(self) -> DataFrame:
        """With the tick in which a row's event time is."""
        return self.all().withColumn("tick", F.expr(f"unix_millis(ts) div {TICK_MS} * {TICK_MS}"))

    def even(self) -> DataFrame:
        """The rows with even numbers: the left stream of a join."""
        return self._rows(self.rows // 2, "value * 2")

    def odd(self) -> DataFrame:
        """The other half, with other names for all but the key."""
        rows = self._rows(self.rows // 2, "value * 2 + 1")
        return rows.selectExpr("k", "p AS q", "amount AS price", "ts AS at")

    def _rows(self, at_once: int, number: str) -> DataFrame:
        columns = columns_sql(self.rows, self.keys)
        ms = columns.pop("ms")
        chosen = [f"{sql} AS {name}" for name, sql in columns.items()]
        return (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", at_once)
            .option("numPartitions", PARTITIONS)
            .load()
            .selectExpr(f"{number} AS v")
            .selectExpr(*chosen, f"timestamp_millis({ms}) AS ts")
        )


def _stream(rows: DataFrame, event_time: str = "ts") -> mr.Stream:
    return mr.stream(rows, event_time=event_time, watermark=DELAY)


def _totals(windows: mr.WindowedStream | mr.SessionStream) -> mr.Stream:
    return windows.aggregate(n=mr.count(), total=mr.sum("amount"), name=OPERATOR)


def _joined(source: Source, how: str) -> mr.Stream:
    within = (f"-{WITHIN_S} seconds", "0 seconds")
    right = _stream(source.odd(), "at")
    return _stream(source.even()).join(right, on="k", within=within, how=how, name=OPERATOR)


def _matches(source: Source, pattern: mr.Pattern, last: str) -> mr.Stream:
    select = {
        "p": mr.matched("a").first("p"),
        "q": mr.matched(last).last("p"),
        "ts": mr.matched(last).last("ts"),
    }
    whole = pattern.within(f"{WITHIN_PATTERN_S} seconds")
    keyed = _stream(source.all()).key_by("k")
    return keyed.match(whole, select=select, after="skip to next", name=OPERATOR)


def _jump(source: Source) -> mr.Stream:
    amount = F.col("amount")
    low = mr.pattern("a").where(amount < LOW)
    return _matches(source, low.next("b").where(amount >= HIGH), "b")


def _rising(source: Source) -> mr.Stream:
    rises = F.col("amount") > mr.previous("amount")
    return _matches(source, mr.pattern("a").next("b").where(rises).next("c").where(rises), "c")


def _streak(source: Source) -> mr.Stream:
    amount = F.col("amount")
    low = mr.pattern("a").where(amount < 700).times(STREAK, each="next")
    high = low.next("b").where(amount * STREAK > mr.matched("a").sum("amount") * 2)
    return _matches(source, high, "b")


MILLRACE: dict[str, Callable[[Source], mr.Stream]] = {
    "tumbling": lambda source: _totals(_stream(source.all()).key_by("k").window("1 minute")),
    "hopping": lambda source: _totals(
        _stream(source.all()).key_by("k").window("10 minutes", slide="1 minute")
    ),
    "session": lambda source: _totals(_stream(source.all()).key_by("k").session(GAP)),
    "dedup": lambda source: _stream(source.ticks()).drop_duplicates("k", "tick", name=OPERATOR),
    "inner_join": lambda source: _joined(source, "inner"),
    "left_join": lambda source: _joined(source, "left"),
    "top": lambda source: (
        mr.stream(source.all()).key_by("k").top(BEST, "amount", "p", name=OPERATOR)
    ),
    "jump": _jump,
    "rising": _rising,
    "streak": _streak,
}


def _windows(source: Source, window: Column) -> DataFrame:
    grouped = source.all().withWatermark("ts", DELAY).groupBy("k", window)
    return grouped.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


def _spark_joined(source: Source, how: str) -> DataFrame:
    left = source.even().withWatermark("ts", DELAY)
    right = source.odd().withWatermark("at", DELAY).withColumnRenamed("k", "other_k")
    near = f"k = other_k AND at BETWEEN ts - INTERVAL {WITHIN_S} SECONDS AND ts"
    return left.join(right, F.expr(near), how).drop("other_k")


def _spark_top(source: Source) -> DataFrame:
    row = F.struct("amount", "p")
    best = source.all().groupBy("k").agg(F.max_by(row, row, BEST).alias("best"))
    return best.select("k", F.inline("best"))


SPARK: dict[str, Callable[[Source], DataFrame]] = {
    "tumbling": lambda source: _windows(source, F.window("ts", "1 minute")),
    "hopping": lambda source: _windows(source, F.window("ts", "10 minutes", "1 minute")),
    "session": lambda source: _windows(source, F.session_window("ts", GAP)),
    "dedup": lambda source: (
        source.ticks().withWatermark("ts", DELAY).dropDuplicatesWithinWatermark(["k", "tick"])
    ),
    "inner_join": lambda source: _spark_joined(source, "inner"),
    "left_join": lambda source: _spark_joined(source, "left"),
    "top": _spark_top,
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
        query = self.start(case, Source(self.spark, keys, rows), folder, keep)
        self._drive(query, 0, minutes)
        wanted = BY_NAME[case].columns
        found = {batch: whole_numbers(table, wanted) for batch, table in emitted.items()}
        if BY_NAME[case].final is None:
            numbers = newest([found[batch] for batch in range(minutes)])
        else:
            numbers = np.concatenate(list(found.values()))
        np.save(path, numbers)
        return len(numbers)

    def do_timed(self, case: str, keys: int, rows: int, warm: int, windows: int) -> dict[str, Any]:
        """Epochs back to back, each a minute of event time."""
        folder = self.folder(f"{case}-{keys}")
        query = self.start(case, Source(self.spark, keys, rows), folder, None)
        epochs = self._drive(query, warm, windows + 1)
        return {
            "windows": [
                {"rows": one["rows"], "begin": one["started"], "end": following["started"]}
                for one, following in itertools.pairwise(epochs)
            ],
            "taken": sum(epoch["rows"] for epoch in self._epochs(query)),
            "parts": [epoch["parts"] for epoch in epochs[:-1]],
        }


def whole_numbers(table: pa.Table, names: tuple[str, ...]) -> Int64Array:
    """Columns of whole numbers and times by name, or fields of structs.

    Times are in milliseconds, NULL is -1.
    """
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    table = table.rename_columns([name.rpartition(".")[2] for name in table.column_names])
    columns = []
    for name in names:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz))
        columns.append(column.cast(pa.int64()).fill_null(-1).to_numpy())
    return np.stack(columns, axis=1)


def newest(batches: list[Int64Array]) -> Int64Array:
    """Of updates, each with all rows of some keys, the last of every key; keys come first."""
    rows = np.concatenate(batches)
    batch = np.repeat(np.arange(len(batches)), [len(found) for found in batches])
    _, key = np.unique(rows[:, 0], return_inverse=True)
    last = np.zeros(len(rows), np.int64)
    np.maximum.at(last, key, batch)
    newest_rows: Int64Array = rows[batch == last[key]]
    return newest_rows


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
        keyed = _stream(Source(self.spark, keys, rows).all()).key_by("k")
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
    """`operators-spark`: operators of the JVM on RocksDB, in append mode if there is event time."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = {**common_settings(workdir, memory), **STATE_SETTINGS}
        super().__init__(plain_session("operators-spark", settings), workdir)

    def start(self, case: str, source: Source, folder: Path, keep: Keep | None) -> StreamingQuery:
        mode = "update" if BY_NAME[case].final is None else "append"
        writer = SPARK[case](source).writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", str(folder))
        return (writer.format("noop") if keep is None else writer.foreachBatch(keep)).start()
