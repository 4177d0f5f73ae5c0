"""Rescaling under load: 2 -> 4 -> 2 executors, every strategy, beside Spark's own way.

Rows come at a fixed rate, half of what a side can take, whether it keeps up or not. All runs start
from copies of the same filled location. A run: some seconds to warm up, some steady ones, rescale
to 4, some more, back to 2, some more. Latency is by event, from its making to the commit of its
epoch; see `_timeline`. "During" is every event some of whose latency is between the request and the
commit of the epoch that ended the move.

All executors have run shards of another location before: Python, compiled code and JIT are warm, as
in a cluster with spare executors, and what is measured is the moving of state.

Spark's own way is its aggregation on RocksDB: stop, repartition the checkpoint offline, start. It
gets the same rate if it can take it, else half of its own capacity.

After each run the state is compared with one Spark batch over the rows that were committed. Figures
are per move (`out` is 2 -> 4, `in` is 4 -> 2); without either, the worse of the two.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._moves import (
    MOVES,
    add_figures,
    add_worse,
    measure_both,
    there_and_back,
)
from millrace_lab.bench._openloop import TRIGGER, Side, Store
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._timeline import Timeline
from millrace_lab.bench._under_load import MILLRACE, SPARK, Cluster, LoadOptions, UnderLoad

NAME = "rescale"
SLOW_NAME = "rescale-slow-store"
BAR_KEYS = 5_000_000


@dataclass(frozen=True)
class Options(LoadOptions):
    """Sizes of a run."""

    few: int = 2
    many: int = 4
    strategies: tuple[str, ...] = ("live", "pause", "fluid", "lazy", "standby", "restart")
    store: Store = field(default_factory=Store)

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 200_000),
            few=1,
            many=2,
            strategies=("live",) if self.strategies == Options.strategies else self.strategies,
            rate=self.rate or 20_000,
            warm=2.0,
            steady=4.0,
        )


class Rescale(UnderLoad[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        if options.store.is_slow:
            self._result = Result(SLOW_NAME)

    def run(self) -> Result:
        options, result = self._options, self._result
        result.figure("rescale.keys", options.keys)
        result.figure("rescale.executors_few", options.few)
        result.figure("rescale.executors_many", options.many)
        with SideProcess(MILLRACE, self._workdir, memory="1g") as process:
            side = self._open(process, "millrace", options.offered)
            self._steps.step(f"{MILLRACE}: warming up {options.many} executors")
            side.warm_up(options.many, options.warm)
            for strategy in options.strategies:
                standby = {"standby": 1} if strategy == "standby" else {}
                self._measure(side, strategy, strategy, standby)
        if options.spark and not options.store.is_slow:
            with ExitStack() as stack:
                process = stack.enter_context(SideProcess(SPARK, self._workdir, memory="1g"))
                other = self._open(process, "spark", options.spark_offered, side.rate)
                self._measure(other, "spark", "offline repartition", {})
                self._ratios()
        self._bars()
        return result

    def _cluster(self) -> Cluster:
        return Cluster(self._options.many, self._options.few, self._options.store)

    def _measure(self, side: Side, name: str, strategy: str, extra: dict[str, Any]) -> None:
        options, process = self._options, side.process
        self._steps.step(f"{process.kind}: {strategy}")
        side.begin(name, options.warm + options.steady, parallelism=options.few, options=extra)
        moves = there_and_back(side, name, strategy, (options.many, options.few), options.steady)
        epochs = process.call("epochs") if process.kind == MILLRACE else []
        process.call("stop")
        timeline = side.timeline(name)
        side.compare(self._result, process, name, name, self._workdir)
        self._report(name, timeline, moves, epochs)
        # After every run: the last ones may take long.
        self._write(self._title())
        process.call("remove", name=name)

    def _report(
        self,
        name: str,
        timeline: Timeline,
        moves: list[dict[str, Any]],
        epochs: list[dict[str, Any]],
    ) -> None:
        prefix, result = f"rescale.{name}", self._result
        measured = measure_both(timeline, moves, self._options.steady, TRIGGER)
        for label, move, found in zip(MOVES, moves, measured, strict=True):
            add_figures(result, f"{prefix}.{label}", found)
            for part in ("stop_s", "repartition_s", "start_s"):
                if part in move:
                    result.figure(f"{prefix}.{label}.{part}", move[part])
        add_worse(result, prefix, measured)
        origin = moves[0]["requested"]
        self._series[name] = {
            "points": timeline.series(origin),
            "moves": [
                [m["requested"] - origin, timeline.first_commit(m["ended"]) - origin] for m in moves
            ],
            "epochs": epochs,
        }
        self._steps.say(
            f"  {name}: p99 during/before {result.figures[f'{prefix}.p99_during_over_before']:.3g},"
            f" downtime {result.figures[f'{prefix}.downtime_s']:.3g} s"
        )

    def _ratios(self) -> None:
        """How much longer Spark's way is without output; a gap below a trigger counts as one."""
        figures = self._result.figures
        for strategy in self._options.strategies:
            ours = max(figures[f"rescale.{strategy}.downtime_s"], TRIGGER)
            theirs = figures["rescale.spark.downtime_s"]
            self._result.ratio(f"rescale.downtime.spark_over_{strategy}", theirs / ours)

    def _bars(self) -> None:
        if "live" not in self._options.strategies or self._options.keys < BAR_KEYS:
            return
        figures = self._result.figures
        for name, target in (("p99_during_over_before", 1.25), ("epochs_missed", 0)):
            self._result.at_most(f"rescale.live.{name}", figures[f"rescale.live.{name}"], target)
        name = "rescale.live.throughput_during_over_before"
        self._result.at_least(name, figures[name], 0.95)

    def _title(self) -> str:
        options = self._options
        executors = f"{options.few} → {options.many} → {options.few} executors"
        title = f"{size_name(options.keys)} keys, {executors}"
        if options.store.is_slow:
            title += f", store {options.store.latency_ms:g} ms and {options.store.mb_per_s:g} MB/s"
        return title


run = Rescale.measure
