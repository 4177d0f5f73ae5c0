"""What key groups and placement cost when nothing moves: a keyed count on two executors.

`fixed` is the same code with as few key groups as there can be for its partitions and no say in
where a task runs: what a query with fixed partitions is. Also 256 key groups without placement.
The sides take turns; their final state is compared with one Spark batch over all rows.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace

from millrace.keygroups.groups import MIN_KEY_GROUPS
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs, create_keys, median_ms
from millrace_lab.bench._oracle import expected, same, state
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name

NAME = "placement"
PLACED, UNPLACED = "placed", "unplaced"
BAR_GROUPS, BAR = 256, 0.97
FILL_ROWS = 1_000_000


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    rows: int = 1_000_000
    keys: int = 1_000_000
    key_groups: tuple[int, ...] = (256, 1024, 4096)
    epochs: int = 16
    rounds: int = 4
    warm: int = 3

    def quick(self) -> Options:
        return replace(
            self,
            rows=min(self.rows, 200_000),
            keys=min(self.keys, 100_000),
            epochs=min(self.epochs, 6),
            rounds=2,
            warm=2,
        )


class Placement(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        options, result = self._options, self._result
        fixed = max(2, MIN_KEY_GROUPS)
        with ExitStack() as stack:
            processes = {}
            for kind in (PLACED, UNPLACED):
                # One after the other: local clusters that start within a second get the same
                # application id, and with it the same working directories.
                self._steps.step(f"starting {kind}")
                processes[kind] = stack.enter_context(SideProcess(kind, self._workdir, memory="1g"))
                processes[kind].call("ready")
            sides = {
                "fixed": (UNPLACED, fixed),
                f"unplaced.{BAR_GROUPS}": (UNPLACED, BAR_GROUPS),
                **{f"placed.{groups}": (PLACED, groups) for groups in options.key_groups},
            }
            for name, (kind, groups) in sides.items():
                self._steps.step(f"{name}: filling {size_name(options.keys)} keys")
                create_keys(processes[kind], f"g-{groups}", options.keys, FILL_ROWS)
            samples: dict[str, Epochs] = {name: [] for name in sides}
            for turn in range(options.rounds):
                for name, (kind, groups) in sides.items():
                    share = -(-options.epochs // options.rounds)
                    self._steps.step(f"{name}: {share} epochs of {size_name(options.rows)} rows")
                    samples[name] += processes[kind].call(
                        "run",
                        name=f"g-{groups}",
                        rows=options.rows,
                        keys=options.keys,
                        warm=options.warm if turn == 0 else 2,
                        epochs=share,
                    )
            for name, (kind, groups) in sides.items():
                self._compare(name, processes[kind], f"g-{groups}")
        rate = {
            name: result.figure(f"placement.rows_per_s.{name}", _rows_per_s(epochs))
            for name, epochs in samples.items()
        }
        for name, epochs in samples.items():
            result.figure(f"placement.epoch_ms.{name}", median_ms(epochs))
        for groups in options.key_groups:
            mine = rate[f"placed.{groups}"]
            ratio = result.ratio(f"placement.{groups}_over_fixed", mine / rate["fixed"])
            if groups == BAR_GROUPS and options.rows >= 1_000_000:
                result.at_least(f"placement.{groups}_over_fixed", ratio, BAR)
        if BAR_GROUPS in options.key_groups:
            result.ratio(
                f"placement.{BAR_GROUPS}_over_unplaced",
                rate[f"placed.{BAR_GROUPS}"] / rate[f"unplaced.{BAR_GROUPS}"],
            )
        return result

    def _compare(self, name: str, process: SideProcess, location: str) -> None:
        self._steps.step(f"{name}: comparing the final state")
        keys = self._options.keys
        rows = process.call("total", name=location)["rows"]
        counts = expected(process, self._workdir, loaded=keys, rows=rows, keys=keys)
        self._result.compare(
            f"{name}: its final counts of {rows:,} rows over {keys:,} keys are not the batch's",
            same(state(process, location, self._workdir), counts),
        )


def _rows_per_s(samples: Epochs) -> float:
    return float(statistics.median(epoch["rows"] * 1000 / epoch["ms"] for epoch in samples))


run = Placement.measure
