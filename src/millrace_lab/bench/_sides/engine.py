"""What all peers have in common: the source, how a query is driven, how its epochs are timed.

The source is Spark's `rate-micro-batch`: the same rows for everyone, however often they are asked
for. A query is started from its checkpoint, runs some epochs, and is stopped. An epoch's time is
Spark's own `triggerExecution`: everything between two epochs, for both sides alike.
"""

from __future__ import annotations

import abc
import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace_lab.local_session import local_settings

PARTITIONS = 2
"""Input partitions, shuffle partitions and shards alike."""

KEYS = {"value": "value", "hash": "pmod(xxhash64(value), {keys})"}
"""How a row gets its key: `value` creates new keys in order, `hash` draws from all of them."""

_CUSTOMER = "customer/0000000000000000/"
TEXT = f"concat('{_CUSTOMER}', lpad(CAST({{key}} AS STRING), 14, '0'))"
"""A key as a string of 40 characters."""


def numbers(counts: pa.Table) -> pa.Table:
    """Counts by key, the keys as numbers even if they were strings."""
    key, n = counts.column("key"), counts.column("n")
    if pa.types.is_string(key.type):
        key = pc.utf8_slice_codeunits(key, len(_CUSTOMER)).cast(pa.int64())
    return pa.table([key, n], names=["key", "n"]).cast(COUNTS)


def common_settings(workdir: Path, memory: str) -> dict[str, str]:
    """Settings of every side's session."""
    return {
        **local_settings(memory, workdir, partitions=PARTITIONS),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }


class Queries:
    """A session and its queries. The methods `do_*` are what the benchmark can ask for."""

    def __init__(self, spark: SparkSession, workdir: Path) -> None:
        self.spark = spark
        self.workdir = workdir
        spark.sparkContext.setLogLevel("ERROR")

    def parts(self, query: StreamingQuery, batch: int) -> dict[str, float]:
        """More about where a batch's time went, in milliseconds."""
        return {}

    def folder(self, name: str) -> Path:
        return self.workdir / name

    def do_ready(self) -> dict[str, str]:
        """Spark's version; who asks waits for the session to start."""
        return {"pyspark": self.spark.version}

    def close(self) -> None:
        self.spark.stop()

    def _drive(self, query: StreamingQuery, warm: int, epochs: int) -> list[dict[str, Any]]:
        """Let a query run epochs back to back; the first `warm` are not part of the answer."""
        try:
            while query.isActive:
                last = query.lastProgress
                if last is not None and len(self._numbers(query)) >= warm + epochs:
                    break
                time.sleep(0.1)
        finally:
            query.stop()
        error = query.exception()
        if error is not None:
            raise error
        return self._epochs(query)[warm : warm + epochs]

    def _numbers(self, query: StreamingQuery) -> list[int]:
        return [p["batchId"] for p in query.recentProgress if p["numInputRows"]]

    def _epochs(self, query: StreamingQuery) -> list[dict[str, Any]]:
        epochs = []
        for progress in query.recentProgress:
            if not progress["numInputRows"]:
                continue
            durations = dict(progress["durationMs"])
            states = progress["stateOperators"]
            batch = progress["batchId"]
            epochs.append(
                {
                    "batch": batch,
                    "rows": progress["numInputRows"],
                    "ms": float(durations.pop("triggerExecution")),
                    "started": dt.datetime.fromisoformat(progress["timestamp"]).timestamp(),
                    "parts": {**durations, **self.parts(query, batch)},
                    "state_rows": states[0]["numRowsTotal"] if states else None,
                    "end": _end_offset(progress),
                }
            )
        return epochs


class Engine(Queries, abc.ABC):
    """One side of the keyed count."""

    @abc.abstractmethod
    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        """Start a keyed count over `source` from the checkpoint in `folder`."""

    @abc.abstractmethod
    def table(self, folder: Path) -> pa.Table:
        """The counts in `folder`: columns `key` and `n`, both 64-bit integers."""

    def do_once(
        self, name: str, rows: int, keys: int, key: str, text: bool = False
    ) -> dict[str, Any]:
        """Exactly one epoch."""
        source = self._source(rows, keys, key, text)
        query = self.start(source, self.folder(name), {"availableNow": True})
        query.awaitTermination()
        return self._epochs(query)[-1]

    def do_run(
        self, name: str, rows: int, keys: int, warm: int, epochs: int, text: bool = False
    ) -> list[dict[str, Any]]:
        """Epochs back to back; the first `warm` of them are not part of the answer."""
        query = self.start(self._source(rows, keys, "hash", text), self.folder(name), {})
        return self._drive(query, warm, epochs)

    def do_state(self, name: str, path: str) -> int:
        """Write the counts to a Parquet file, sorted by key; returns how many there are."""
        table = self.table(self.folder(name)).sort_by("key")
        pq.write_table(table, path)
        return int(table.num_rows)

    def do_total(self, name: str) -> dict[str, int]:
        """The number of keys and the sum of the counts."""
        table = self.table(self.folder(name))
        return {"keys": table.num_rows, "rows": pc.sum(table["n"]).as_py() or 0}

    def do_oracle(self, first: int, rows: int, keys: int, path: str) -> int:
        """The counts of the source's rows from `first` up to `rows`, by one Spark batch."""
        counts = (
            self.spark.range(first, rows, 1, PARTITIONS)
            .withColumnRenamed("id", "value")
            .selectExpr(f"{KEYS['hash'].format(keys=keys)} AS key")
            .groupBy("key")
            .count()
            .toArrow()
        )
        table = pa.table(counts.columns, names=["key", "n"])
        pq.write_table(table.cast(COUNTS), path)
        return int(table.num_rows)

    def _source(self, rows: int, keys: int, key: str, text: bool) -> DataFrame:
        number = KEYS[key].format(keys=keys)
        return (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .load()
            .selectExpr(f"{TEXT.format(key=number) if text else number} AS key")
        )


COUNTS = pa.schema([("key", pa.int64()), ("n", pa.int64())])


def _end_offset(progress: Any) -> int:
    """How many rows the source has given up to and including this batch."""
    end = progress["sources"][0]["endOffset"]
    return int((json.loads(end) if isinstance(end, str) else end)["offset"])
