"""Recovery under load: SIGKILL of an executor that holds state, or of its Python workers alone.

Rows come at a fixed rate, half of what a side can take; see `rescale`. On three executors of one
core with two shards, one that holds state is killed, and Spark starts another in its place. Time is
from the kill to the commit of the first of three epochs in a row whose latencies are all within
1.25x of the 99th percentile before it. Spark's own side is its aggregation on RocksDB; it has no
Python workers. Nothing may be lost: at the end the state is compared with one Spark batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.bench import _plot
from millrace.bench._console import Steps
from millrace.bench._contract import BenchmarkError, Result
from millrace.bench._openloop import FILLED, Side, Store, write_timelines
from millrace.bench._process import Peer
from millrace.bench._sizes import size_name
from millrace.bench._timeline import Spread

NAME = "recovery"
MILLRACE, SPARK = "millrace_cluster", "spark_cluster"
EXECUTORS, PARALLELISM = 3, 2
WITHIN = 1.25


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = 5_000_000
    rate: int | None = None
    spark: bool = True
    warm: float = 5.0
    steady: float = 10.0
    at_least: float = 15.0
    """Seconds that are looked at after a kill."""
    at_most: float = 180.0
    probe: float = 10.0
    offered: int = 600_000
    spark_offered: int = 40_000
    timelines: Path | None = None
    images: Path | None = None

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


class Recovery:
    """One run of the benchmark."""

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        self._options = options
        self._workdir = workdir
        self._steps = steps
        self._result = Result(NAME)
        self._series: dict[str, dict[str, Any]] = {}

    def run(self) -> Result:
        options, result = self._options, self._result
        result.figure("recovery.keys", options.keys)
        with Peer(MILLRACE, self._workdir, memory="1g") as peer:
            side = self._open(peer, "millrace", options.offered)
            for what in ("executor", "workers"):
                self._measure(side, f"{what}", what, {})
                self._measure(side, f"{what}_standby", what, {"standby": 1})
        if options.spark:
            with Peer(SPARK, self._workdir, memory="1g") as peer:
                other = self._open(peer, "spark", options.spark_offered, at_most=side.rate)
                self._measure(other, "spark_executor", "executor", {})
            theirs = result.figures["recovery.spark_executor.seconds"]
            for name in ("executor", "executor_standby"):
                ours = result.figures[f"recovery.{name}.seconds"]
                result.ratio(f"recovery.spark_over_{name}", theirs / ours)
        self._write()
        return result

    def _open(self, peer: Peer, name: str, offered: int, at_most: int | None = None) -> Side:
        options = self._options
        self._steps.step(f"{peer.kind}: filling {size_name(options.keys)} keys")
        side = Side.open(peer, options.keys, EXECUTORS, Store(), PARALLELISM)
        side.choose_rate(
            f"recovery.{name}",
            self._result,
            self._steps,
            given=options.rate,
            offered=offered,
            seconds=options.probe,
            at_most=at_most,
        )
        return side

    def _measure(self, side: Side, name: str, what: str, extra: dict[str, Any]) -> None:
        options, peer, result = self._options, side.peer, self._result
        self._steps.step(f"{peer.kind}: {name}")
        peer.call("copy", name=FILLED, to=name)
        side.start(name, side.rate, parallelism=PARALLELISM, options=extra)
        peer.call("wait_commits", name=name, number=2, timeout=300)
        peer.call("wait", seconds=options.warm + options.steady)
        killed = peer.call("kill", what=what)
        if not killed["processes"]:
            raise BenchmarkError(f"{name}: there was no process to kill on {killed['executor']}")
        peer.call("wait", seconds=options.at_least)
        waited = options.at_least
        seconds, timeline, before = None, side.timeline(name), None
        while seconds is None:
            timeline = side.timeline(name)
            before = Spread.of(timeline.before(killed["at"] - options.steady, killed["at"]))
            seconds = timeline.recovered(killed["at"], WITHIN * before.p99)
            if seconds is None and waited >= options.at_most:
                if peer.kind == MILLRACE:
                    raise BenchmarkError(
                        f"{name}: latency was not back within {WITHIN}x after {waited:.0f} seconds"
                    )
                # The other side is given up on: it took at least so long.
                result.figure(f"recovery.{name}.given_up_after_s", waited)
                seconds = waited
            if seconds is None:
                peer.call("wait", seconds=3.0)
                waited += 3.0
        assert before is not None
        epochs = peer.call("epochs") if peer.kind == MILLRACE else []
        peer.call("stop")
        side.compare(result, peer, name, name, self._workdir)
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
        peer.call("remove", name=name)

    def _write(self) -> None:
        write_timelines(self._series, self._options.timelines)
        if self._options.images is not None:
            title = f"{size_name(self._options.keys)} keys, SIGKILL at 0 s"
            _plot.write(self._series, title, self._options.images, "recovery")


def run(options: Options, workdir: Path, steps: Steps) -> Result:
    """Run the benchmark in a working directory of its own."""
    return Recovery(options, workdir, steps).run()
