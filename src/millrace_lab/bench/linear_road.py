"""Linear Road: how many expressways two cores sustain, and a load that grows with autoscaling.

Three parts, each compared with the oracle over all answers (`millrace_lab.linear_road`):

- The largest L: the last minutes of the three hours, the fullest ones, on two cores and two shards,
  with one expressway, two, four, and so on, and then between the last that was sustained and the
  first that was not. L is sustained if every answer came within its time: 5 seconds after the
  report, and 10 for daily expenditures.
- The whole curve on one expressway, on executors of one core, autoscaled from one shard up. The
  clock runs faster, by a factor that is a share of the L that was found: one expressway then brings
  as many rows a second as that number of expressways would.
- The same minutes as in the first part, on executors, one of which is killed half-way.

Then arithmetic: how many cores L = 350 and L = 1000 would need if each sustained what one of the
two cores does. It is not a measurement: it takes for granted that exchanges between more executors
cost no more per row.

Known rough edge: with a clock that runs faster than ours, minutes end more often than they would.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from millrace.arrays import Float64Array, Int64Array
from millrace_lab.bench import _timeline_plot
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.linear_road.answers import BALANCE, EXPENDITURE, TOLL, difference
from millrace_lab.linear_road.generator import (
    COLUMNS,
    THREE_HOURS,
    Tick,
    Traffic,
    paid,
    write_history,
    write_ticks,
)
from millrace_lab.linear_road.oracle import Oracle

NAME = "linear-road"
CORES = 2
EXECUTORS = 3
EXECUTOR_MB = 1_024
WITHIN, EXPENDITURE_WITHIN = 5.0, 10.0
"""Seconds that an answer may take."""
GIVE_UP = 30.0
"""A query that is this many seconds behind will not catch up."""
GROWN_SHARE = 0.7
"""Of the L that was sustained: the load at the end of the growing run."""
EXTRAPOLATED = (350, 1_000)
SEEP = (350, 50)
"""Expressways, and virtual machines that they took there, as published."""

WORDS = _timeline_plot.Words(
    heading="Response time",
    about=(
        "Seconds from a report's arrival to its answer; the line is the mean of an epoch, the band "
        "its least and largest. Shaded: after an executor was killed, until answers are in time "
        "again. Same scale everywhere."
    ),
    axis="seconds since the road's clock started",
)


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    traffic: Traffic = Traffic(begin=THREE_HOURS - 600)  # noqa: RUF009
    """Of the probes; how many expressways they have is what is looked for."""
    most: int = 64
    """Expressways, at most."""
    clock: float = 1.0
    """Seconds of the road in one of ours, while L is looked for and in the run with a failure."""
    tick: int = 1
    """Seconds of the road that come at once."""
    warm: int = 120
    """Seconds of the road that are not measured."""
    growing_clock: float | None = None
    """None: a share of the L that was found."""
    growing: Traffic = Traffic()  # noqa: RUF009
    growing_tick: int | None = None
    """None: as many seconds of the road as pass in about one of ours."""
    timelines: Path | None = None
    images: Path | None = None

    def quick(self) -> Options:
        """A short and nearly empty road: it shows that all parts work, and nothing else."""
        small = Traffic(
            begin=THREE_HOURS - 420, miles=4, per_hour=400, capacity=20, accidents_per_hour=40
        )
        return replace(
            self,
            traffic=small,
            most=min(self.most, 2),
            clock=max(self.clock, 10.0),
            tick=10,
            growing_clock=self.growing_clock or 60.0,
            growing=replace(small, begin=THREE_HOURS - 1_800, per_hour=1_500),
            growing_tick=30,
        )


@dataclass(frozen=True)
class Run:
    """What a run over some traffic came to."""

    answers: Int64Array
    types: Int64Array
    seconds: Float64Array
    """How long each measured answer took."""
    more: dict[str, Any]

    @property
    def is_in_time(self) -> bool:
        limit = np.where(self.types == EXPENDITURE, EXPENDITURE_WITHIN, WITHIN)
        return bool(self.more["kept_up"]) and bool((self.seconds <= limit).all())


class LinearRoad(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._series: dict[str, dict[str, Any]] = {}
        self._rates: dict[int, float] = {}
        """L -> rows per second of a probe."""

    def run(self) -> Result:
        options, figure = self._options, self._result.figure
        figure(f"{NAME}.clock", options.clock)
        with SideProcess(NAME, self._workdir / "cores") as process:
            self._result.versions |= process.call("open", executors=0, executor_mb=0)
            found = largest(lambda xways: self._sustains(process, xways), options.most)
        figure(f"{NAME}.xways", found)
        if found:
            figure(f"{NAME}.rows_per_s", self._rates[found])
            per_core = found * options.clock / CORES
            for xways in EXTRAPOLATED:
                figure(f"{NAME}.arithmetic.cores_for_{xways}", math.ceil(xways / per_core))
            figure(f"{NAME}.seep.xways", SEEP[0])
            figure(f"{NAME}.seep.machines", SEEP[1])
        with SideProcess(NAME, self._workdir / "executors", memory="1g") as process:
            process.call("open", executors=EXECUTORS, executor_mb=EXECUTOR_MB)
            self._grow(process, found)
            self._fail(process)
        self._write()
        return self._result

    def _sustains(self, process: SideProcess, xways: int) -> bool:
        """Whether all answers of a probe come in time. They are compared if the query kept up."""
        options = self._options
        traffic = replace(options.traffic, xways=xways)
        run, rate = self._played(process, f"L{xways}", traffic, options.tick, options.clock)
        self._rates[xways] = rate
        self._figures(f"{NAME}.L{xways}", run)
        self._result.figure(f"{NAME}.L{xways}.in_time", float(run.is_in_time))
        self._steps.say(f"  L = {xways}: {'in time' if run.is_in_time else 'too slow'}")
        return run.is_in_time

    def _grow(self, process: SideProcess, found: int) -> None:
        """The whole curve, with autoscaling from one shard up."""
        options = self._options
        if not found and options.growing_clock is None:
            self._steps.say("  not even one is sustained: a growing load needs --growing-clock")
            return
        clock = options.growing_clock or max(1.0, GROWN_SHARE * found * options.clock)
        tick = options.growing_tick or next(t for t in (1, 2, 3, 5, 6, 10, 15, 30) if t >= clock)
        run, _ = self._played(
            process, "growing", options.growing, tick, clock, most_shards=EXECUTORS
        )
        prefix = f"{NAME}.growing"
        self._figures(prefix, run)
        shards = [number for _, number in run.more["shards"]]
        self._result.figure(f"{prefix}.clock", clock)
        self._result.figure(f"{prefix}.first_shards", shards[0])
        self._result.figure(f"{prefix}.most_shards", max(shards))
        self._result.figure(f"{prefix}.changes", len(shards) - 1)
        self._series["growing, autoscaled"] = {
            "points": run.more["series"],
            "shards": run.more["shards"],
            "moves": [],
            "decisions": run.more["decisions"],
        }

    def _fail(self, process: SideProcess) -> None:
        """One expressway, and an executor that is killed half-way."""
        options = self._options
        run, _ = self._played(
            process, "failure", options.traffic, options.tick, options.clock, kill=True
        )
        killed = run.more["killed"]
        if killed is None:
            raise BenchmarkError("failure: the run was over before an executor was killed")
        late = [at for at, *_, most in run.more["series"] if at > killed and most > WITHIN]
        back = max([0.0, *(at - killed for at in late)])
        self._figures(f"{NAME}.failure", run)
        self._result.figure(f"{NAME}.failure.late_for_s", back)
        self._series["an executor is killed"] = {
            "points": run.more["series"],
            "shards": run.more["shards"],
            "moves": [[killed, killed + back]],
        }

    def _played(
        self,
        process: SideProcess,
        name: str,
        traffic: Traffic,
        tick: int,
        clock: float,
        *,
        most_shards: int = 0,
        kill: bool = False,
    ) -> tuple[Run, float]:
        """A run over some traffic, compared; and its rows per second."""
        folder, path = self._workdir / f"traffic-{name}", self._workdir / f"{name}.npz"
        self._steps.step(f"{name}: making {traffic.xways} expressways")
        ticks = write_ticks(traffic, folder / "ticks", tick)
        write_history(traffic, folder / "history")
        warm = min(self._options.warm // tick, len(ticks) // 3)
        minutes = (len(ticks) - warm) * tick / clock / 60
        self._steps.step(f"{name}: {sum(t.rows for t in ticks):,} rows, {minutes:.1f} minutes")
        more = process.call(
            "run",
            name=name,
            ticks=[(str(one.path), one.end, one.rows) for one in ticks],
            history=str(folder / "history"),
            begin=traffic.begin,
            tick=tick,
            warm=warm,
            speed=clock,
            parallelism=1 if most_shards else CORES,
            most_shards=most_shards,
            latency=WITHIN,
            kill=kill,
            # Only a probe that fails can be given up: the others have to be exact to the end.
            give_up=math.inf if most_shards or kill else GIVE_UP,
            path=str(path),
        )
        with np.load(path) as found:
            run = Run(found["rows"], found["types"], found["seconds"], more)
        if more["kept_up"]:
            self._steps.step(f"{name}: comparing {len(run.answers):,} answers")
            self._compare(name, traffic, ticks, run)
        return run, _rate(ticks[warm:], tick, clock)

    def _compare(self, name: str, traffic: Traffic, ticks: list[Tick], run: Run) -> None:
        oracle = Oracle(lambda vid, xway, day: paid(traffic, vid, xway, day))
        for tick in ticks:
            rows = pq.read_table(tick.path)
            columns = (rows.column(name).to_numpy().tolist() for name in COLUMNS)
            oracle.take(zip(*columns, strict=True))
        wrong = difference(run.answers, oracle.rows())
        self._result.compare(f"{name}: {wrong}", wrong is None)

    def _figures(self, prefix: str, run: Run) -> None:
        for what, kind in (("tolls", TOLL), ("balances", BALANCE), ("expenditures", EXPENDITURE)):
            took = run.seconds[run.types == kind]
            if len(took):
                self._result.figure(f"{prefix}.{what}.p50_s", float(np.percentile(took, 50)))
                self._result.figure(f"{prefix}.{what}.p99_s", float(np.percentile(took, 99)))
                self._result.figure(f"{prefix}.{what}.max_s", float(took.max()))

    def _write(self) -> None:
        """Keep the timelines, and draw them."""
        options = self._options
        if options.timelines is not None:
            options.timelines.parent.mkdir(parents=True, exist_ok=True)
            options.timelines.write_text(json.dumps(self._series) + "\n")
        if options.images is not None:
            drawn = {name: run for name, run in self._series.items() if run["points"]}
            _timeline_plot.write(drawn, "Linear Road", options.images, NAME, WORDS)


def _rate(ticks: list[Tick], tick: int, clock: float) -> float:
    return sum(one.rows for one in ticks) / (len(ticks) * tick / clock)


def largest(sustains: Callable[[int], bool], most: int) -> int:
    """The largest number that is sustained, supposing that all smaller ones are; 0 if none is."""
    low, high = 0, 1
    while high <= most and sustains(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sustains(middle) else (low, middle)
    return low


run = LinearRoad.measure
