"""What fingerprints that cannot be made to collide cost: a keyed count, beside format 1.

Both sides are Millrace. One has a new location, the other a location of format 1, which has two
XXH64 for a fingerprint. They run in one process and take turns, because two JVMs differ by more
than what is measured; ratios are of one round. A second new location takes turns with them: its
ratio to the first one would be 1 if nothing else were in the figures.

Keys are whole numbers, then strings of 40 characters. Before anything is timed, the counts of both
sides are compared with one Spark batch, and so is the final state of all locations.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import Result
from millrace_lab.bench._oracle import expected, same, state
from millrace_lab.bench._side_process import SideHandle, SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._usage import sample

NAME = "fingerprints"
NOW, BEFORE = "millrace", "millrace_format_1"
CONTROL, AGAIN = "millrace_again", "-again"
"""A second new location: how far it is from the first is what the noise is."""
CONTENDERS = (NOW, BEFORE, CONTROL)
KINDS = {"number": False, "text": True}
FILL_ROWS = 2_500_000
WARM = 2
"""Epochs of a round that are not counted."""
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
        options, size = self._options, size_name(keys)
        where = {which: f"{kind}-{keys}" + AGAIN * (which == CONTROL) for which in CONTENDERS}
        for which, location in where.items():
            self._steps.step(f"{which}: filling {size} {kind} keys")
            for first in range(0, keys, FILL_ROWS):
                rows = min(FILL_ROWS, keys - first)
                self._side(which).call(
                    "once", name=location, rows=rows, keys=keys, key="value", text=text
                )
        rates: dict[str, list[float]] = defaultdict(list)
        cpu: dict[str, list[float]] = defaultdict(list)
        share = max(options.epochs // options.rounds, 1)
        for turn in range(-1, options.rounds):
            # Whoever is first in one round is last in the next. The first round of all compiles.
            for which in CONTENDERS if turn % 2 == 0 else CONTENDERS[::-1]:
                self._steps.step(f"{which}: {share} epochs, {size} {kind} keys")
                before = sample(self._session, memory=False).cpu
                epochs = self._side(which).call(
                    "run",
                    name=where[which],
                    rows=options.rows,
                    keys=keys,
                    warm=options.warm if turn < 0 else WARM,
                    epochs=share,
                    text=text,
                )
                used = sample(self._session, memory=False).cpu - before
                if turn >= 0:
                    rates[which].append(
                        statistics.median(e["rows"] * 1000 / e["ms"] for e in epochs)
                    )
                    cpu[which].append(used / (share + WARM))
        for which in CONTENDERS:
            self._result.figure(
                f"rows_per_s.{which}.{kind}.{size}", statistics.median(rates[which])
            )
            # The query's start and stop are in it, on all sides.
            self._result.figure(
                f"cpu_s_per_epoch.{which}.{kind}.{size}", statistics.median(cpu[which])
            )
        self._result.ratio(f"cpu.{kind}.{size}", _paired(cpu[BEFORE], cpu[NOW]))
        self._result.ratio(f"noise.{kind}.{size}", _paired(rates[CONTROL], rates[NOW]))
        ratio = self._result.ratio(f"throughput.{kind}.{size}", _paired(rates[NOW], rates[BEFORE]))
        if options.rows >= 1_000_000:
            self._result.at_least(f"throughput.{kind}.{size}", ratio, TARGET)
        for which, location in where.items():
            self._steps.step(f"{which}: comparing the final state, {size} {kind} keys")
            side = self._side(which)
            self._compare(side, location, keys, side.call("total", name=location)["rows"], keys)

    def _side(self, which: str) -> SideHandle:
        return self._sides[BEFORE if which == BEFORE else NOW]


def _paired(ones: list[float], others: list[float]) -> float:
    """The median ratio of what was measured in the same round."""
    return statistics.median(a / b for a, b in zip(ones, others, strict=True))


run = Fingerprints.measure
