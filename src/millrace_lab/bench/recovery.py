"""Recovery under load: SIGKILL of an executor that holds state, or of its Python workers alone.

Rows come at a fixed rate, half of what a side can take; see `rescale`. On three executors of one
core with two shards, one that holds state is killed, and Spark starts another in its place. Time is
from the kill to the commit of the first of three epochs in a row whose latencies are all within
1.25x of the 99th percentile before it. Spark's own side is its aggregation on RocksDB; it has no
Python workers. Nothing may be lost: at the end the state is compared with one Spark batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._openloop import Side
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._timeline import Spread
from millrace_lab.bench._under_load import MILLRACE, SPARK, Cluster, LoadOptions, UnderLoad

NAME = "recovery"
EXECUTORS, PARALLELISM = 3, 2
WITHIN = 1.25


@dataclass(frozen=True)
class Options(LoadOptions):
    """Sizes of a run."""

    at_least: float = 15.0
    """Seconds that are looked at after a kill."""
    at_most: float = 180.0

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 200_000),
            rate=self.rate or 20_000,
            warm=2.0,
            steady=4.0,
            at_least=5.0,
            at_most=60.0,
        )


class Recovery(UnderLoad[Options]):
    """One run of the benchmark."""

    name = NAME

    def _cluster(self) -> Cluster:
        return Cluster(EXECUTORS, PARALLELISM)

    def run(self) -> Result:
        options, result = self._options, self._result
        result.figure("recovery.keys", options.keys)
        with SideProcess(MILLRACE, self._workdir, memory="1g") as process:
            side = self._open(process, "millrace", options.offered)
            for what in ("executor", "workers"):
                self._measure(side, f"{what}", what, {})
                self._measure(side, f"{what}_standby", what, {"standby": 1})
        if options.spark:
            with SideProcess(SPARK, self._workdir, memory="1g") as process:
                other = self._open(process, "spark", options.spark_offered, at_most=side.rate)
                self._measure(other, "spark_executor", "executor", {})
            theirs = result.figures["recovery.spark_executor.seconds"]
            for name in ("executor", "executor_standby"):
                ours = result.figures[f"recovery.{name}.seconds"]
                result.ratio(f"recovery.spark_over_{name}", theirs / ours)
        self._write(f"{size_name(options.keys)} keys, SIGKILL at 0 s")
        return result

    def _measure(self, side: Side, name: str, what: str, extra: dict[str, Any]) -> None:
        options, process, result = self._options, side.process, self._result
        self._steps.step(f"{process.kind}: {name}")
        side.begin(name, options.warm + options.steady, parallelism=PARALLELISM, options=extra)
        killed = process.call("kill", what=what)
        if not killed["processes"]:
            raise BenchmarkError(f"{name}: there was no process to kill on {killed['executor']}")
        process.call("wait", seconds=options.at_least)
        waited = options.at_least
        seconds, timeline, before = None, side.timeline(name), None
        while seconds is None:
            timeline = side.timeline(name)
            before = Spread.of(timeline.before(killed["at"] - options.steady, killed["at"]))
            seconds = timeline.recovered(killed["at"], WITHIN * before.p99)
            if seconds is None and waited >= options.at_most:
                if process.kind == MILLRACE:
                    raise BenchmarkError(
                        f"{name}: latency was not back within {WITHIN}x after {waited:.0f} seconds"
                    )
                # The other side is given up on: it took at least this long.
                result.figure(f"recovery.{name}.given_up_after_s", waited)
                seconds = waited
            if seconds is None:
                process.call("wait", seconds=3.0)
                waited += 3.0
        assert before is not None
        epochs = process.call("epochs") if process.kind == MILLRACE else []
        process.call("stop")
        side.compare(result, process, name, name, self._workdir)
        last = timeline.points[-1].committed
        until = min(last, killed["at"] + seconds)
        normal = sorted(timeline.gaps(killed["at"] - options.steady, killed["at"]))
        prefix = f"recovery.{name}"
        result.figure(f"{prefix}.seconds", seconds)
        result.figure(f"{prefix}.p99_before_s", before.p99)
        during = Spread.of(timeline.during(killed["at"], until))
        result.figure(f"{prefix}.p99_during_s", during.p99)
        result.figure(f"{prefix}.max_during_s", during.max)
        gap = max(timeline.gaps(killed["at"], until))
        result.figure(f"{prefix}.downtime_s", max(0.0, gap - normal[len(normal) // 2]))
        self._series[name] = {
            "points": timeline.series(killed["at"]),
            "moves": [[0.0, seconds]],
            "epochs": epochs,
        }
        self._steps.say(f"  {name}: back after {seconds:.1f} s")
        process.call("remove", name=name)


run = Recovery.measure
