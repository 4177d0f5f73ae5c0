"""The two sides on real executors: Millrace, and Spark's own aggregation on RocksDB."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.keygroups.groups import DEFAULT_KEY_GROUPS
from millrace.log import Journal, open_store
from millrace.log.layout import SPARK
from millrace_lab.bench._sides.engine import COUNTS
from millrace_lab.bench._sides.openloop import OpenLoopEngine
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS
from millrace_lab.bench._timeline import medians
from millrace_lab.processes import executor_processes, open_state_files

OPERATOR = "counts"


class MillraceCluster(OpenLoopEngine):
    """`millrace_cluster`."""

    _query: mr.Query

    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        return mr.session("millrace", master, settings)

    def url(self, name: str) -> str:
        """Where a location is."""
        return str(self.location(name))

    def make(self, name: str) -> None:
        Journal.create(open_store(self.url(name)), DEFAULT_KEY_GROUPS)

    def checkpoint(self, name: str) -> Path:
        return self.location(name) / SPARK

    def begin(
        self,
        source: DataFrame,
        name: str,
        parallelism: int,
        trigger: str | None,
        standby: int = 0,
    ) -> None:
        counted = mr.stream(source).key_by("key").aggregate(n=mr.count(), name=OPERATOR)
        self._query = counted.to("noop").start(
            self.url(name), parallelism=parallelism, trigger=trigger, standby=standby
        )

    @property
    def query(self) -> StreamingQuery:
        return self._query.spark_query

    def do_parts(self) -> dict[str, float]:
        """Spark's, and below `addBatch` the epoch's own and its slowest shard's."""
        epochs = self._query.recent_progress()
        own = [
            {
                **{f"epoch.{name}": s * 1e3 for name, s in epoch["phases"].items()},
                **{
                    f"shard.{name}": s * 1e3
                    for name, s in epoch["operators"][OPERATOR]["shard_seconds"].items()
                },
            }
            for epoch in epochs[len(epochs) // 2 :]
        ]
        return super().do_parts() | medians(own)

    def _check(self) -> None:
        # A restart is a moment without a running query.
        error = None if self._query.is_active else self._query.exception()
        if error is not None:
            raise error

    def halt(self) -> None:
        self._query.stop()

    def table(self, name: str) -> pa.Table:
        return mr.open(self.url(name)).to_arrow(OPERATOR).cast(COUNTS)

    def last_batch(self, name: str) -> int:
        # A query may be stopped after its manifest and before Spark's commit.
        batch = mr.open(self.url(name)).batch_id
        assert batch is not None
        return batch

    def victim(self) -> str:
        return self._query.assignment()[OPERATOR].executors[0].removeprefix("executor-")

    def do_rescale(self, parallelism: int, strategy: str) -> dict[str, Any]:
        """Rescale, and wait for it; when it was asked for, when it was done, and its report."""
        requested = time.time()
        move = self._query.rescale(parallelism, strategy=strategy).wait(600)
        ended = time.time()
        report = move.report
        return {
            "requested": requested,
            "ended": ended,
            "bytes": report.bytes,
            "key_groups": report.key_groups,
        }

    def do_epochs(self) -> list[dict[str, Any]]:
        """Where the time of recent epochs went."""
        return [
            {
                "epoch": r["epoch"],
                "batch": r["batch_id"],
                "seconds": r["seconds"],
                "phases": r["phases"],
                "shard": r["operators"][OPERATOR]["shard_seconds"],
                "merged": r["operators"][OPERATOR]["merged_rows"],
                "executors": r["operators"][OPERATOR]["executors"],
            }
            for r in self._query.recent_progress()
        ]


class SparkCluster(OpenLoopEngine):
    """`spark_cluster`."""

    _query: StreamingQuery

    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        builder: Any = SparkSession.builder.appName("spark-rocksdb").master(master)
        for key, value in {**settings, **STATE_SETTINGS}.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        return spark

    def make(self, name: str) -> None:
        self.location(name).mkdir()

    def checkpoint(self, name: str) -> Path:
        return self.location(name)

    def begin(self, source: DataFrame, name: str, parallelism: int, trigger: str | None) -> None:
        self.spark.conf.set("spark.sql.shuffle.partitions", str(parallelism))
        writer = (
            source.groupBy("key")
            .count()
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(self.location(name)))
        )
        if trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        self._query = writer.start()

    @property
    def query(self) -> StreamingQuery:
        return self._query

    def _await_pause(self) -> None:
        """Wait for the time between two batches: state cannot be repartitioned after half a one."""
        until = time.time() + 30
        while self._query.status["isTriggerActive"] and time.time() < until:
            time.sleep(0.01)

    def halt(self) -> None:
        self._await_pause()
        self._query.stop()

    def table(self, name: str) -> pa.Table:
        state = self.spark.read.format("statestore").load(str(self.location(name)))
        counts = state.selectExpr("key.key AS key", "value.count AS n").toArrow()
        return pa.table(counts.columns, names=["key", "n"]).cast(COUNTS)

    def victim(self) -> str:
        processes = executor_processes()
        return max(processes, key=lambda name: open_state_files(processes[name]))

    def do_rescale(self, parallelism: int, strategy: str) -> dict[str, Any]:
        """Spark's own way: stop, repartition the state, start."""
        name = self._arguments["name"]
        folder = self.location(name)
        self._await_pause()
        requested = time.time()
        self._query.stop()
        stopped = time.time()
        last = {
            log: max(int(p.name) for p in (folder / log).iterdir() if p.name.isdigit())
            for log in ("offsets", "commits")
        }
        if last["offsets"] != last["commits"]:
            # It was stopped inside a batch after all: finish that one first.
            trigger, self._arguments["trigger"] = self._arguments["trigger"], "available_now"
            self._begin(int(self.spark.conf.get("spark.sql.shuffle.partitions") or 0))
            self._query.awaitTermination()
            self._arguments["trigger"] = trigger
        before = _size(folder / "state")
        began = time.time()
        self.spark._streamingCheckpointManager.repartition(str(folder), parallelism)
        repartitioned = time.time()
        written = _size(folder / "state") - before
        self._begin(parallelism)
        self.do_wait_commits(name, 1, 600)
        return {
            "requested": requested,
            "ended": time.time() - 0.1,
            "bytes": max(0, written),
            "stop_s": stopped - requested,
            "repartition_s": repartitioned - began,
            "start_s": time.time() - repartitioned,
        }


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
