"""Sides that run a query on real executors, with a source that does not wait for them.

All keys are created first, from files. Then rows come at a fixed rate from Spark's own rate
sources, whether the query keeps up or not; see `_timeline`. A filled location is copied for every
run, so that all runs start from the same state, and cold.
"""

from __future__ import annotations

import abc
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace_lab.bench._sides.engine import COUNTS, common_settings
from millrace_lab.bench._timeline import SOURCES, medians, read_ends, read_points
from millrace_lab.processes import executor_processes, python_workers

FILL_ROWS = 1_000_000
"""Keys created by one epoch."""
PHASE_MS = 125
"""Sources begin this long after a whole second, so that triggers at whole seconds miss no row by a
hair."""


class OpenLoopEngine(abc.ABC):
    """One side. The methods `do_*` are what the benchmark can ask for."""

    def __init__(self, workdir: Path, memory: str) -> None:
        self.workdir = workdir
        self._memory = memory
        self._spark: SparkSession | None = None
        self._runs: dict[str, tuple[float, int]] = {}
        self._arguments: dict[str, Any] = {}
        """What the running query was started with."""

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "not open"
        return self._spark

    @abc.abstractmethod
    def session(self, master: str, settings: dict[str, str]) -> SparkSession:
        """A session as this side's user has it."""

    @abc.abstractmethod
    def make(self, name: str) -> None:
        """Make an empty location, so that its sources' start can be written into it."""

    @abc.abstractmethod
    def checkpoint(self, name: str) -> Path:
        """Spark's checkpoint of a location."""

    @abc.abstractmethod
    def begin(self, source: DataFrame, name: str, parallelism: int, trigger: str | None) -> None:
        """Start a keyed count; a trigger is an interval, `available_now` or None."""

    @property
    @abc.abstractmethod
    def query(self) -> StreamingQuery:
        """The running query."""

    @abc.abstractmethod
    def halt(self) -> None:
        """Stop the query."""

    @abc.abstractmethod
    def table(self, name: str) -> pa.Table:
        """The counts at a location: columns `key` and `n`."""

    @abc.abstractmethod
    def victim(self) -> str:
        """The id of an executor with state."""

    def do_open(
        self, executors: int, executor_mb: int, env: dict[str, str], executor_env: dict[str, str]
    ) -> str:
        """Start Spark with some executors of one core each; its application's id."""
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.update(env)
        settings = {
            **common_settings(self.workdir, self._memory),
            "spark.executor.memory": f"{executor_mb}m",
            "spark.sql.streaming.minBatchesToRetain": "100000",
            **{f"spark.executorEnv.{k}": v for k, v in {**env, **executor_env}.items()},
        }
        master = f"local-cluster[{executors},1,{executor_mb}]"
        self._spark = self.session(master, settings)
        self._spark.sparkContext.setLogLevel("ERROR")
        return str(self._spark.sparkContext.applicationId)

    def location(self, name: str) -> Path:
        return self.workdir / name

    def do_fill(self, name: str, keys: int, parallelism: int) -> int:
        """Create every key once; the number of epochs it took."""
        files = 2 * -(-keys // FILL_ROWS)
        path = str(self._input(keys))
        self.spark.range(0, keys, 1, files).selectExpr("id AS value").write.parquet(path)
        self.make(name)
        # The sources begin tomorrow: all that comes now is the files.
        self._set_start(name, time.time() + 86400)
        self.begin(self._source(keys, SOURCES), name, parallelism, "available_now")
        self.query.awaitTermination()
        return len(list((self.checkpoint(name) / "commits").glob("[0-9]*")))

    def do_copy(self, name: str, to: str) -> None:
        shutil.copytree(self.location(name), self.location(to))

    def do_remove(self, name: str) -> None:
        shutil.rmtree(self.location(name))

    def do_start(
        self,
        name: str,
        keys: int,
        rate: int,
        parallelism: int,
        trigger: str | None,
        backlog: float = 0.0,
        **options: Any,
    ) -> float:
        """Start a query at a filled location; when its source began, `backlog` seconds ago."""
        whole = int(time.time() - backlog) + (1 if not backlog else 0)
        started = whole + PHASE_MS / 1e3
        self._set_start(name, started)
        self._runs[name] = (started, rate)
        self._arguments = {
            "keys": keys,
            "rate": rate,
            "name": name,
            "trigger": trigger,
            "options": options,
        }
        self._begin(parallelism)
        return started

    def _begin(self, parallelism: int) -> None:
        a = self._arguments
        self.begin(
            self._source(a["keys"], a["rate"]), a["name"], parallelism, a["trigger"], **a["options"]
        )

    def do_wait(self, seconds: float) -> None:
        """Let the query run."""
        until = time.time() + seconds
        while (left := until - time.time()) > 0:
            self._check()
            time.sleep(min(left, 0.25))

    def do_wait_commits(self, name: str, number: int, timeout: float) -> bool:
        """Let the query run until some more batches are committed; whether they came."""
        folder, until = self.checkpoint(name) / "commits", time.time() + timeout
        there = len(list(folder.glob("[0-9]*")))
        while len(list(folder.glob("[0-9]*"))) < there + number:
            self._check()
            if time.time() > until:
                return False
            time.sleep(0.05)
        return True

    def _check(self) -> None:
        if not self.query.isActive:
            error = self.query.exception()
            if error is not None:
                raise error

    def do_stop(self) -> None:
        self.halt()

    def do_timeline(self, name: str) -> dict[str, Any]:
        """What `_timeline.Timeline.from_json` reads."""
        started, rate = self._runs[name]
        points = [asdict(point) for point in read_points(self.checkpoint(name))]
        return {"points": points, "started": started, "rate": rate}

    def do_ends(self, name: str) -> list[int]:
        """Up to which second of each source the state has rows."""
        return list(read_ends(self.checkpoint(name), self.last_batch(name)))

    def last_batch(self, name: str) -> int:
        """The last batch that is in the state."""
        commits = (self.checkpoint(name) / "commits").iterdir()
        return max(int(p.name) for p in commits if p.name.isdigit())

    def do_progress(self) -> list[dict[str, Any]]:
        """Rows and milliseconds of the recent batches of the running query."""
        return [
            {"rows": p["numInputRows"], "ms": p["durationMs"]["triggerExecution"]}
            for p in self.query.recentProgress
            if p["numInputRows"]
        ]

    def do_parts(self) -> dict[str, float]:
        """Of the later half of the recent batches, the median milliseconds of each part."""
        batches = [p["durationMs"] for p in self.query.recentProgress if p["numInputRows"]]
        return medians(batches[len(batches) // 2 :])

    def do_state(self, name: str, path: str) -> int:
        """Write the counts to a Parquet file, sorted by key; returns how many there are."""
        table = self.table(name).sort_by("key")
        pq.write_table(table, path)
        return int(table.num_rows)

    def do_oracle(self, ends: list[int], rate: int, keys: int, path: str) -> int:
        """By one Spark batch, the counts of the rows of all sources up to some seconds."""
        rows: DataFrame | None = None
        for number, end in enumerate(ends):
            values = self.spark.range(0, end * rate // SOURCES, 1, 2).withColumnRenamed(
                "id", "value"
            )
            part = values.selectExpr(f"{_key(number, keys)} AS key")
            rows = part if rows is None else rows.unionAll(part)
        assert rows is not None
        counts = rows.groupBy("key").count().toArrow()
        pq.write_table(pa.table(counts.columns, names=["key", "n"]).cast(COUNTS), path)
        return int(counts.num_rows)

    def do_kill(self, what: str) -> dict[str, Any]:
        """SIGKILL an executor with state, or only its Python workers; when, and how many."""
        executor = self.victim()
        process = executor_processes()[executor]
        victims = [process] if what == "executor" else python_workers(process)
        killed = time.time()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return {"at": killed, "executor": executor, "processes": len(victims)}

    def close(self) -> None:
        if self._spark is not None:
            application = self._spark.sparkContext.applicationId
            self._spark.stop()
            # The executors' folders, which Spark keeps.
            work = Path(_find_spark_home(), "work", str(application))
            shutil.rmtree(work, ignore_errors=True)

    def _input(self, keys: int) -> Path:
        return self.workdir / f"keys-{keys}"

    def _set_start(self, name: str, started: float) -> None:
        """When the sources begin: they look it up at their start, and write it if it is missing."""
        for number in range(SOURCES):
            folder = self.checkpoint(name) / "sources" / str(number + 1)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "0").write_text(self.first_moment(started, number))

    @staticmethod
    def first_moment(started: float, source: int) -> str:
        """What a rate source writes down of its start."""
        return f"v1\n{round(started * 1e3) + source * 1000 // SOURCES}"

    def _source(self, keys: int, rate: int) -> DataFrame:
        spark = self.spark
        files = spark.readStream.schema("value LONG").option("maxFilesPerTrigger", 2)
        rows = files.parquet(str(self._input(keys))).selectExpr("value AS key")
        for number in range(SOURCES):
            ticks = spark.readStream.format("rate").option("numPartitions", 1)
            made = ticks.option("rowsPerSecond", rate // SOURCES).load()
            rows = rows.unionAll(made.selectExpr(f"{_key(number, keys)} AS key"))
        return rows


def _key(source: int, keys: int) -> str:
    return f"pmod(xxhash64(value * {SOURCES} + {source}), {keys})"
