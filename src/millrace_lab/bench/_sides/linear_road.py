"""`linear-road`: the program over traffic that comes at its own pace, in one process or a cluster.

The first ticks are shown at once and are not measured: they bring what cars paid in the past, and
the query opens everything. Then the road's clock starts.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

import millrace as mr
from millrace_lab import local_cluster, processes
from millrace_lab.bench._sides.engine import PARTITIONS, common_settings
from millrace_lab.linear_road import playing
from millrace_lab.linear_road.generator import Tick

OPERATOR = "cars"
"""One that certainly has state when an executor is killed."""
LOOK_EVERY = 0.2


class LinearRoadSide:
    """Runs one query after the other. The methods `do_*` are what the benchmark can ask for."""

    def __init__(self, workdir: Path, memory: str) -> None:
        self._workdir = workdir
        self._memory = memory
        self._spark: SparkSession | None = None

    def do_open(self, executors: int, executor_mb: int) -> dict[str, str]:
        """Start Spark: with two cores of its own, or with executors of one core each."""
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {
            **common_settings(self._workdir, self._memory),
            "spark.sql.session.timeZone": "UTC",
        }
        if not executors:
            self._spark = mr.session("linear-road", f"local[{PARTITIONS}]", settings)
        else:
            settings["spark.executor.memory"] = f"{executor_mb}m"
            with local_cluster.starting():
                master = f"local-cluster[{executors},1,{executor_mb}]"
                self._spark = mr.session("linear-road", master, settings)
        self._spark.sparkContext.setLogLevel("ERROR")
        return {"pyspark": self._spark.version}

    def do_run(
        self,
        name: str,
        ticks: list[tuple[str, int, int]],
        history: str,
        begin: int,
        tick: int,
        warm: int,
        speed: float,
        parallelism: int,
        most_shards: int,
        latency: float,
        kill: bool,
        give_up: float,
        path: str,
    ) -> dict[str, Any]:
        """Run over all ticks, the first `warm` of them unmeasured; what came, and when.

        With `most_shards` the query scales itself, from one shard up. With `kill` an executor with
        state is killed when half of the ticks have been shown. A query that is `give_up` seconds
        behind is stopped. The answers go to a file, with their response times.
        """
        assert self._spark is not None, "not open"
        folder = self._workdir / name
        inbox = playing.Inbox(folder / "inbox", [Tick(Path(p), e, r) for p, e, r in ticks])
        answered = playing.Answered()
        scaling = None
        if most_shards:
            scaling = mr.autoscale(min=1, max=most_shards, latency=f"{latency:g} seconds")
        program = playing.stream(self._spark, inbox.folder, Path(history))
        inbox.show(warm)
        query = program.for_each_batch(answered.keep).start(
            str(folder / "location"),
            parallelism=parallelism,
            autoscale=scaling,
        )
        try:
            query.process_all_available()
            first = begin + warm * tick
            pace = playing.Pace(time.time(), first, tick, speed)
            watched = _Watched(query, answered, pace, give_up)
            player = playing.Player(inbox, pace)
            half = inbox.left // 2
            killed = None
            try:
                while not player.is_done and not watched.is_behind:
                    watched.look()
                    if kill and killed is None and inbox.left <= half:
                        killed = self._kill(query)
                    time.sleep(LOOK_EVERY)
            finally:
                player.close()
            shown = time.time()
            if not watched.is_behind:
                query.process_all_available()
            decisions = () if scaling is None else query.scaling().decisions
        finally:
            query.stop()
        rows, seconds = watched.responses()
        np.savez(path, rows=answered.rows(), types=rows[0], times=rows[1], seconds=seconds)
        shutil.rmtree(folder)
        return {
            "series": watched.series(),
            "shards": watched.shards,
            "kept_up": not watched.is_behind,
            "killed": None if killed is None else killed - pace.began,
            "seconds": shown - pace.began,
            "decisions": [decision.to_json() for decision in decisions],
        }

    def _kill(self, query: mr.Query) -> float:
        """SIGKILL an executor with state; when."""
        executor = query.assignment()[OPERATOR].executors[0].removeprefix("executor-")
        pid = processes.executor_processes()[executor]
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        return now

    def close(self) -> None:
        if self._spark is not None:
            application = self._spark.sparkContext.applicationId
            self._spark.stop()
            # The executors' folders, which Spark keeps.
            shutil.rmtree(Path(_find_spark_home(), "work", str(application)), ignore_errors=True)


class _Watched:
    """A running query: its shards, and how far its answers are behind."""

    def __init__(
        self, query: mr.Query, answered: playing.Answered, pace: playing.Pace, give_up: float
    ) -> None:
        self._query = query
        self._answered = answered
        self._pace = pace
        self._give_up = give_up
        self._unmeasured = set(answered.tables)
        self.shards: list[tuple[float, int]] = []
        """Seconds and shards, of the operator with most, whenever that changed."""
        self.is_behind = False

    def look(self) -> None:
        if not self._query.is_active:
            error = self._query.exception()
            raise error if error is not None else RuntimeError("the query has ended by itself")
        now = time.time()
        shards = max(one.shards for one in self._query.assignment().values())
        if not self.shards or self.shards[-1][1] != shards:
            self.shards.append((now - self._pace.began, shards))
        self.is_behind |= self._behind(now) > self._give_up

    def _behind(self, now: float) -> float:
        """Seconds since the last answers came, or that they took, whichever is more."""
        for batch, (emitted, table) in reversed(list(self._answered.tables.items())):
            if batch in self._unmeasured:
                break
            if table.num_rows:
                newest = float(self._pace.arrived(table.column("time").to_numpy()).max())
                behind: float = max(now - emitted, emitted - newest)
                return behind
        return now - self._pace.began

    def _measured(self) -> list[tuple[float, Any, Any]]:
        """Batches with answers to rows that came after the clock had started."""
        found = []
        for emitted, types, times in self._answered.batches():
            chosen = times >= self._pace.begin
            if chosen.any():
                found.append((emitted, types[chosen], times[chosen]))
        return found

    def responses(self) -> tuple[tuple[Any, Any], Any]:
        """Types and times of the rows that were answered, and how long each answer took."""
        measured = self._measured()
        none = np.zeros(0, np.int64)
        types = np.concatenate([none, *(types for _, types, _ in measured)])
        times = np.concatenate([none, *(times for _, _, times in measured)])
        parts = [emitted - self._pace.arrived(times) for emitted, _, times in measured]
        return (types, times), np.concatenate([np.zeros(0), *parts])

    def series(self) -> list[list[float]]:
        """Per batch: when it came, and its least, mean and longest response time."""
        found = []
        for emitted, _, times in self._measured():
            took = emitted - self._pace.arrived(times)
            values = emitted - self._pace.began, took.min(), took.mean(), took.max()
            found.append([round(float(value), 4) for value in values])
        return found
