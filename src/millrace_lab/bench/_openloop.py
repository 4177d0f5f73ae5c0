"""What the benchmarks on real executors share: open a side, fill it, find its capacity, compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from millrace.log import copies
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._oracle import same, state
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._timeline import SOURCES, Timeline
from millrace_lab.faults import slow

FILLED = "filled"
TRIGGER = 1.0
"""Seconds between epochs."""
TRIGGER_TEXT = "1 second"
EXECUTOR_MB = 640
PROBE_SECONDS = 600.0
"""How long a side is waited for, at most, while its capacity is measured."""
ROOT = "MILLRACE_BENCH_ROOT"
"""The variable with the URL below which the locations of a remote store are."""
LOAD = 0.5
"""The share of its capacity that a side is given."""


@dataclass(frozen=True)
class Store:
    """What kind of store a location is in, and how slow it is made to be."""

    latency_ms: float = 0.0
    mb_per_s: float = 0.0
    is_remote: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """More of the environment of the driver and the executors."""

    @property
    def is_slow(self) -> bool:
        return bool(self.latency_ms or self.mb_per_s)

    def environment(self) -> dict[str, str]:
        if not self.is_slow:
            return dict(self.variables)
        return {**slow.environment(self.latency_ms, self.mb_per_s), **self.variables}


@dataclass
class Side:
    """A side whose location is filled."""

    process: SideProcess
    keys: int
    parallelism: int
    rate: int = 0
    capacity: float = 0.0

    @staticmethod
    def open(
        process: SideProcess, keys: int, executors: int, store: Store, parallelism: int
    ) -> Side:
        """Start its Spark and create all keys."""
        # Relative: an executor's working directory is its own, as its disk would be.
        folder = {copies.VARIABLE: "copies"} if store.is_slow or store.is_remote else {}
        process.call(
            "open",
            executors=executors,
            executor_mb=EXECUTOR_MB,
            env=store.environment(),
            executor_env=folder,
        )
        process.call("fill", name=FILLED, keys=keys, parallelism=parallelism)
        return Side(process, keys, parallelism)

    def probe(self, offered: int, seconds: float) -> None:
        """Find the rows that an epoch of one trigger's length can take.

        More rows are offered than can be taken, so epochs grow; their time is about a constant plus
        a time per row.
        """
        self.process.call("copy", name=FILLED, to="probe")
        self.start("probe", offered, parallelism=self.parallelism, trigger=None, backlog=1.5)
        # The first one is cold, and may last long enough to leave the second with a large backlog.
        self.process.call("wait_commits", name="probe", number=3, timeout=PROBE_SECONDS)
        self.process.call("wait", seconds=seconds)
        self.process.call("wait_commits", name="probe", number=1, timeout=PROBE_SECONDS)
        epochs = self.process.call("progress")
        self.process.call("stop")
        self.process.call("remove", name="probe")
        epochs = epochs[1:]
        if not epochs:
            raise BenchmarkError(
                f"{self.process.kind}: no second epoch within {PROBE_SECONDS:.0f} s at "
                f"{offered:,} rows/s; its capacity is unknown. Give a rate with --rate."
            )
        rows = np.asarray([e["rows"] for e in epochs], float)
        seconds_each = np.asarray([e["ms"] for e in epochs], float) / 1e3
        self.capacity = float(np.max(rows / seconds_each))
        if len(epochs) >= 4 and np.ptp(rows) > 0.2 * rows.max():
            slope, constant = np.polyfit(rows, seconds_each, 1)
            if slope > 0 and 0 <= constant < TRIGGER:
                self.capacity = min(self.capacity, float((TRIGGER - constant) / slope))

    def choose_rate(
        self,
        figures: str,
        result: Result,
        steps: Steps,
        *,
        given: int | None,
        offered: int,
        seconds: float,
        at_most: int | None = None,
    ) -> None:
        """The rate that was given, else a share of the capacity, which is measured for it."""
        rate = float(given or 0)
        if not rate:
            steps.step(f"{self.process.kind}: finding its capacity")
            self.probe(offered, seconds)
            result.figure(f"{figures}.capacity_rows_per_s", self.capacity)
            rate = self.capacity * LOAD
        self.set_rate(min(rate, at_most or rate))
        result.figure(f"{figures}.rate_rows_per_s", self.rate)

    def warm_up(self, parallelism: int, seconds: float) -> None:
        """Run on some executors for a while, on a copy, so that their start is not measured."""
        self.begin("warm", seconds, parallelism=parallelism)
        self.process.call("stop")
        self.process.call("remove", name="warm")

    def set_rate(self, rate: float) -> None:
        """A whole number of rows per source, and not too ragged."""
        self.rate = max(1, int(rate) // (SOURCES * 50)) * SOURCES * 50

    def begin(
        self,
        name: str,
        seconds: float,
        *,
        parallelism: int,
        trigger: str | None = TRIGGER_TEXT,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Run at the rate that was set on a copy of the filled location, for some seconds."""
        self.process.call("copy", name=FILLED, to=name)
        self.start(name, self.rate, parallelism=parallelism, trigger=trigger, options=options)
        # At least two epochs; the first one opens everything.
        self.process.call("wait_commits", name=name, number=2, timeout=300)
        self.process.call("wait", seconds=seconds)

    def start(
        self,
        name: str,
        rate: int,
        *,
        parallelism: int,
        trigger: str | None = TRIGGER_TEXT,
        backlog: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.process.call(
            "start",
            name=name,
            keys=self.keys,
            rate=rate,
            parallelism=parallelism,
            trigger=trigger,
            backlog=backlog,
            **(options or {}),
        )

    def timeline(self, name: str) -> Timeline:
        return Timeline.from_json(self.process.call("timeline", name=name))

    def compare(
        self, result: Result, oracle: SideProcess, name: str, what: str, workdir: Path
    ) -> None:
        """The final state must be what one batch over the same rows gives."""
        ends = self.process.call("ends", name=name)
        path = workdir / f"oracle-{self.process.kind}-{name}.parquet"
        oracle.call("oracle", ends=ends, rate=self.rate, keys=self.keys, path=str(path))
        counted = pq.read_table(path)
        path.unlink()
        counts = np.ones(self.keys, np.int64)
        counts[counted["key"].to_numpy()] += counted["n"].to_numpy()
        table = state(self.process, name, workdir)
        result.compare(
            f"{what}: its counts over {self.keys:,} keys are not the batch's", same(table, counts)
        )
