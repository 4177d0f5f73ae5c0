"""What fingerprints that cannot be made to collide cost: a keyed count, beside format 1.

Both sides are Millrace. One has a new location, the other a location of format 1, which has two
XXH64 for a fingerprint. They run in one process and take turns, because two JVMs differ by more
than what is measured. Keys are whole numbers, then strings of 40 characters. Before anything is
timed, the counts of both are compared with one Spark batch, and so is the final state of both.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs
from millrace_lab.bench._oracle import expected, same, state
from millrace_lab.bench._side_process import SideHandle, SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._usage import sample

NAME = "fingerprints"
NOW, BEFORE = "millrace", "millrace_format_1"
SIDES = (NOW, BEFORE)
KINDS = {"number": False, "text": True}
FILL_ROWS = 2_500_000
TARGET = 0.95
"""A new location's rows per second are at least this share of format 1's."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    rows: int = 1_000_000
    keys: tuple[int, ...] = (100_000, 5_000_000)
    epochs: int = 24
    rounds: int = 6
    warm: int = 5
    verify_rows: int = 10_000

    def quick(self) -> Options:
        return replace(
            self,
            rows=min(self.rows, 100_000),
            keys=(5_000,) if self.keys == Options.keys else self.keys,
            epochs=min(self.epochs, 4),
            rounds=2,
            warm=1,
            verify_rows=1_000,
        )


class Fingerprints(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        with SideProcess(NOW, self._workdir, guests=[BEFORE]) as process:
            self._sides = process.sides
            self._session = process.session
            self._steps.step("starting the sides")
            for side in self._sides.values():
                side.call("ready")
            for kind, text in KINDS.items():
                self._verify(kind, text)
            if self._result.equal:
                for keys in self._options.keys:
                    for kind, text in KINDS.items():
                        self._timed(keys, kind, text)
        return self._result

    def _verify(self, kind: str, text: bool) -> None:
        keys, rows = min(self._options.keys), self._options.verify_rows
        self._steps.step(f"comparing the outputs, {kind} keys")
        for side in self._sides.values():
            for _ in range(2):
                side.call("once", name=f"v-{kind}", rows=rows, keys=keys, key="hash", text=text)
            self._compare(side, f"v-{kind}", 0, 2 * rows, keys)

    def _compare(self, side: SideHandle, name: str, loaded: int, rows: int, keys: int) -> None:
        counts = expected(self._sides[NOW], self._workdir, loaded=loaded, rows=rows, keys=keys)
        self._result.compare(
            f"{side.kind}: its counts of {rows:,} rows over {keys:,} keys are not the batch's",
            same(state(side, name, self._workdir), counts),
        )

    def _timed(self, keys: int, kind: str, text: bool) -> None:
        options, name, size = self._options, f"{kind}-{keys}", size_name(keys)
        for side in self._sides.values():
            self._steps.step(f"{side.kind}: filling {size} {kind} keys")
            for first in range(0, keys, FILL_ROWS):
                rows = min(FILL_ROWS, keys - first)
                side.call("once", name=name, rows=rows, keys=keys, key="value", text=text)
        samples: dict[str, Epochs] = defaultdict(list)
        cpu: dict[str, list[float]] = defaultdict(list)
        share = max(options.epochs // options.rounds, 1)
        for turn in range(options.rounds):
            # Whoever is first in one round is last in the next.
            for which in SIDES if turn % 2 == 0 else SIDES[::-1]:
                warm = options.warm if turn == 0 else 2
                self._steps.step(f"{which}: {share} epochs, {size} {kind} keys")
                before = sample(self._session, memory=False).cpu
                samples[which] += self._sides[which].call(
                    "run",
                    name=name,
                    rows=options.rows,
                    keys=keys,
                    warm=warm,
                    epochs=share,
                    text=text,
                )
                used = sample(self._session, memory=False).cpu - before
                if turn:
                    cpu[which].append(used / (share + warm))
        rate = {
            which: self._result.figure(
                f"rows_per_s.{which}.{kind}.{size}",
                statistics.median(e["rows"] * 1000 / e["ms"] for e in samples[which]),
            )
            for which in SIDES
        }
        # The query's start and stop are in it, on both sides.
        seconds = {
            which: self._result.figure(
                f"cpu_s_per_epoch.{which}.{kind}.{size}", statistics.median(cpu[which])
            )
            for which in SIDES
        }
        self._result.ratio(f"cpu.{kind}.{size}", seconds[BEFORE] / seconds[NOW])
        ratio = self._result.ratio(f"throughput.{kind}.{size}", rate[NOW] / rate[BEFORE])
        if options.rows >= 1_000_000:
            self._result.at_least(f"throughput.{kind}.{size}", ratio, TARGET)
        for side in self._sides.values():
            self._steps.step(f"{side.kind}: comparing the final state, {size} {kind} keys")
            rows = side.call("total", name=name)["rows"]
            self._compare(side, name, keys, rows, keys)


run = Fingerprints.measure
