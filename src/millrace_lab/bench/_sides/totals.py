"""The sides of `bench peers` that run on Spark: a count and a sum per key.

Millrace's built-in aggregates and a `mr.Processor` in Python; Spark's own streaming aggregation on
both of its state stores; PySpark's `transformWithState`, in row and in pandas mode. The rows are
those of `_foreign.engines.job`, from Spark's `rate-micro-batch` source.
"""

from __future__ import annotations

import abc
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millrace as mr
from millrace_lab.bench._foreign.engines.job import AMOUNT_SQL, KEY_SQL, write_counts
from millrace_lab.bench._peer_sides import MILLRACE, PROCESSOR
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings
from millrace_lab.bench._sides.millrace import OPERATOR, MillraceQueries
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session

HDFS_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}
"""The state store whose tables are in the JVM's heap, wherever its files are."""
OUTPUT = "k BIGINT, n BIGINT, total BIGINT"


class TotalsSide(Queries, abc.ABC):
    """What the sides have in common."""

    @abc.abstractmethod
    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the job over rows of `k` and `amount`, from the checkpoint in `folder`."""

    @abc.abstractmethod
    def table(self, folder: Path) -> pa.Table:
        """The state in `folder`: `k`, `n` and `total`."""

    def do_counted(self, rows: int, keys: int, path: str) -> int:
        """Count the first rows in two epochs, and write the state."""
        folder = self.folder("counted")
        for part in (rows // 2, rows - rows // 2):
            self._once(folder, part, keys, skipped=0)
        columns = self.table(folder).select(["k", "n", "total"]).columns
        counts = sorted(zip(*(column.to_pylist() for column in columns), strict=True))
        return write_counts(path, counts)

    def do_timed(self, keys: int, rows: int, fill: bool, warm: int, windows: int) -> dict[str, Any]:
        """Epochs back to back. A window is from the start of one to the start of the next."""
        folder = self.folder(f"timed-{keys}")
        skipped = 0 if fill else keys
        if fill and rows < keys:
            self._once(folder, keys, keys, skipped)
        query = self.start(self._rows(rows, keys, skipped), folder, {})
        epochs = self._drive(query, warm, windows + 1)
        return {
            "windows": [
                {"rows": one["rows"], "begin": one["started"], "end": following["started"]}
                for one, following in itertools.pairwise(epochs)
            ]
        }

    def _once(self, folder: Path, rows: int, keys: int, skipped: int) -> None:
        query = self.start(self._rows(rows, keys, skipped), folder, {"availableNow": True})
        query.awaitTermination()

    def _rows(self, rows: int, keys: int, skipped: int) -> DataFrame:
        """The rows after the first `skipped`, a number of them in each epoch."""
        return (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .load()
            .selectExpr(f"value + {skipped} AS v")
            .selectExpr(f"{KEY_SQL.format(keys=keys)} AS k", f"{AMOUNT_SQL} AS amount")
        )


class Totals(mr.Processor):
    """Millrace's own, per key in Python."""

    n = mr.Value("long", default=0)
    total = mr.Value("long", default=0)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[Any, ...]]:
        n = self.n.get() + len(rows)
        total = self.total.get() + sum(row.amount for row in rows)
        self.n.set(n)
        self.total.set(total)
        yield key.k, n, total


class MillraceTotals(MillraceQueries, TotalsSide):
    """`millrace-aggregate` and `millrace-processor`."""

    def __init__(self, kind: str, workdir: Path, memory: str) -> None:
        super().__init__(kind, workdir, memory)
        self._processor = kind == PROCESSOR

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        keyed = mr.stream(source).key_by("k")
        totals = (
            keyed.process(Totals(), OUTPUT, name=OPERATOR)
            if self._processor
            else keyed.aggregate(n=mr.count(), total=mr.sum("amount"), name=OPERATOR)
        )
        self._query = totals.to("noop").start(
            str(folder), parallelism=PARTITIONS, trigger="available_now" if trigger else None
        )
        return self._query.spark_query

    def table(self, folder: Path) -> pa.Table:
        return mr.open(str(folder)).to_arrow(OPERATOR)


class SparkTotals(TotalsSide):
    """`spark-rocksdb` and `spark-hdfs`: an aggregation in the JVM, in update mode."""

    def __init__(self, kind: str, workdir: Path, memory: str) -> None:
        state = STATE_SETTINGS if kind == "spark-rocksdb" else HDFS_SETTINGS
        settings = {**common_settings(workdir, memory), **state}
        super().__init__(plain_session(kind, settings), workdir)

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        totals = source.groupBy("k").agg(F.count("*"), F.sum("amount"))
        return _to_noop(totals, folder, trigger)

    def table(self, folder: Path) -> pa.Table:
        state = self.spark.read.format("statestore").load(str(folder))
        return state.selectExpr("key.k", "value.count AS n", "value.sum AS total").toArrow()


class RowTotals(StatefulProcessor):
    """`transformWithState`, row mode: one get and one update per key and epoch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        amounts = [row.amount for row in rows]
        n, total = self._add(len(amounts), sum(amounts))
        yield Row(k=key[0], n=n, total=total)

    def _add(self, rows: int, amount: int) -> tuple[int, int]:
        n, total = self._totals.get() or (0, 0)
        after = n + rows, total + amount
        self._totals.update(after)
        return after

    def close(self) -> None:
        pass


class PandasTotals(RowTotals):
    """`transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        frames = list(rows)
        amounts = sum(int(frame["amount"].sum()) for frame in frames)
        n, total = self._add(sum(len(frame) for frame in frames), amounts)
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


class PySparkTotals(TotalsSide):
    """`pyspark-row` and `pyspark-pandas`, on RocksDB."""

    def __init__(self, kind: str, workdir: Path, memory: str) -> None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {
            **common_settings(workdir, memory),
            **STATE_SETTINGS,
            "spark.python.unix.domain.socket.enabled": "true",
        }
        super().__init__(plain_session(kind, settings), workdir)
        self._pandas = kind == "pyspark-pandas"

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        grouped = source.groupBy("k")
        totals = (
            grouped.transformWithStateInPandas(PandasTotals(), OUTPUT, "Update", "None")
            if self._pandas
            else grouped.transformWithState(RowTotals(), OUTPUT, "Update", "None")
        )
        return _to_noop(totals, folder, trigger)

    def table(self, folder: Path) -> pa.Table:
        state = self.spark.read.format("statestore").option("stateVarName", "totals")
        return state.load(str(folder)).selectExpr("key.k", "value.n", "value.total").toArrow()


def _to_noop(df: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
    writer = df.writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(folder))
    return (writer.trigger(**trigger) if trigger else writer).start()


def make_side(kind: str, workdir: Path, memory: str) -> TotalsSide:
    """A side by its name in `_peer_sides`."""
    if kind in MILLRACE:
        return MillraceTotals(kind, workdir, memory)
    if kind.startswith("spark-"):
        return SparkTotals(kind, workdir, memory)
    return PySparkTotals(kind, workdir, memory)
