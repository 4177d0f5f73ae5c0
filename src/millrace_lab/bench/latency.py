"""Event latency at rest: 10, 50 and 80 % of capacity, beside Spark's own stateful query.

Rows come at a fixed rate whether a side keeps up or not, and epochs run back to back. Both sides
count per key on the same executors, and get the same rates: shares of the smaller of the two
capacities, which are measured first.

Spark's rate source makes the rows of a second when that second is over, and there are four of them,
a quarter of a second apart. `shown` is from when the source shows a row to the commit of its epoch:
what an engine can do something about. `made` is from the row's making, as in `rescale`; the wait
for the source, half a second in the mean and the same for both, is in it.

`epoch_ms` is what a batch is made of: Spark's own parts as its progress has them, and within
`addBatch`, for Millrace, those of the epoch and of its slowest shard.

Sides take turns. After each run the state is compared with one Spark batch over the same rows.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._openloop import Side, Store
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._timeline import Spread, medians

NAME = "latency"
SIDES = {"millrace": "millrace_cluster", "spark": "spark_cluster"}
EXECUTORS = PARALLELISM = 2
PARTS = ("p50", "p99", "max")
PARTS_OF = "epoch_ms"
BAR_LOAD, BAR = 50, 0.7


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = 100_000
    loads: tuple[int, ...] = (10, 50, 80)
    """Percent of the smaller capacity."""
    rate: int | None = None
    """Rows per second that count as the capacity, instead of measuring it."""
    rounds: int = 3
    warm: float = 5.0
    steady: float = 20.0
    probe: float = 10.0
    offered: int = 600_000
    spark_offered: int = 300_000

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 20_000),
            loads=(50,),
            rate=self.rate or 40_000,
            rounds=1,
            warm=2.0,
            steady=5.0,
        )


class Latency(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._found: dict[tuple[str, int, str], list[Spread]] = {}
        self._parts: dict[tuple[str, int], list[dict[str, float]]] = {}

    def run(self) -> Result:
        options, result = self._options, self._result
        result.figure("latency.keys", options.keys)
        with ExitStack() as stack:
            sides = {}
            for name, kind in SIDES.items():
                self._steps.step(f"{kind}: filling {size_name(options.keys)} keys")
                process = stack.enter_context(SideProcess(kind, self._workdir, memory="1g"))
                sides[name] = Side.open(process, options.keys, EXECUTORS, Store(), PARALLELISM)
            capacity = float(options.rate or self._capacity(sides))
            result.figure("latency.capacity_rows_per_s", capacity)
            for number in range(options.rounds):
                for load in options.loads:
                    for name, side in sides.items():
                        side.set_rate(capacity * load / 100)
                        result.figure(f"latency.rate_rows_per_s.{load}", side.rate)
                        self._measure(name, side, load, number)
        self._sum_up()
        return result

    def _capacity(self, sides: dict[str, Side]) -> float:
        offered = {"millrace": self._options.offered, "spark": self._options.spark_offered}
        for name, side in sides.items():
            self._steps.step(f"{side.process.kind}: finding its capacity")
            side.probe(offered[name], self._options.probe)
            self._result.figure(f"latency.{name}.capacity_rows_per_s", side.capacity)
        return min(side.capacity for side in sides.values())

    def _measure(self, name: str, side: Side, load: int, number: int) -> None:
        options, process = self._options, side.process
        self._steps.step(f"{process.kind}: {load} % of capacity, round {number + 1}")
        run = f"load-{load}-{number}"
        side.begin(run, options.warm + options.steady, parallelism=PARALLELISM, trigger=None)
        self._parts.setdefault((name, load), []).append(process.call("parts"))
        process.call("stop")
        timeline = side.timeline(run)
        side.compare(self._result, process, run, f"{name} at {load} %", self._workdir)
        until = timeline.points[-1].committed
        since = until - options.steady
        for what, latencies in (
            ("shown", timeline.shown(since, until)),
            ("made", timeline.after(since, until)),
        ):
            self._found.setdefault((name, load, what), []).append(Spread.of(latencies))
        self._steps.say(f"  {self._found[name, load, 'shown'][-1]}")
        process.call("remove", name=run)

    def _sum_up(self) -> None:
        """Medians over the rounds."""
        result = self._result
        for (name, load, what), spreads in self._found.items():
            for part in PARTS:
                value = statistics.median(getattr(spread, part) for spread in spreads)
                result.figure(f"latency.{name}.{load}.{what}_{part}_ms", value * 1e3)
        for (name, load), runs in self._parts.items():
            for part, value in medians(runs).items():
                result.figure(f"{PARTS_OF}.{name}.{load}.{part}", value)
        for load in self._options.loads:
            for what in ("shown", "made"):
                for part in PARTS:
                    figure = f"{load}.{what}_{part}_ms"
                    ours = result.figures[f"latency.millrace.{figure}"]
                    theirs = result.figures[f"latency.spark.{figure}"]
                    result.ratio(f"latency.spark.{load}.{what}_{part}", theirs / ours)
        if BAR_LOAD in self._options.loads and self._options.rate is None:
            figure = f"{BAR_LOAD}.shown_p50_ms"
            ours = result.figures[f"latency.millrace.{figure}"]
            theirs = result.figures[f"latency.spark.{figure}"]
            result.at_most(f"latency.over_spark.{BAR_LOAD}.shown_p50", ours / theirs, BAR)


run = Latency.measure
