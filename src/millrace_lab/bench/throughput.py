"""Keyed count beside Spark: rows per second at some sizes of state, and the time of a small epoch.

Every side counts the rows of the same source per key, in a process of its own (a quick run has two
processes for four sides), on two cores with two partitions, into a sink that drops its input. First
all of them count some rows over the same keys, and their state is compared with one Spark batch;
only then are they timed, taking turns. State is filled before: each key exists. After the timed
epochs, Millrace's final state is compared with a batch over everything it was given.

PySpark's `transformWithState` is slow, so it gets a smaller sample (`sample_rows.*` says how many
rows); its figure is rows per second of that. It pays per key, and few of a sample's rows share one,
so `pyspark_tws_full` is the same side with whole epochs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs, add_breakdown, create_keys, median_ms
from millrace_lab.bench._oracle import expected, same, state
from millrace_lab.bench._side_process import SideHandle, SideProcess, all_at_once
from millrace_lab.bench._sizes import size_name

NAME = "throughput"

MILLRACE, SPARK, TWS, CEILING = "millrace", "spark_rocksdb", "pyspark_tws", "ceiling"
FASTLOG = "spark_rocksdb_fastlog"

BAR_ROWS = 1_000_000
SMALL = 1_000
SMALL_KEYS = 100_000
FILL_ROWS = 2_500_000
"""At most this many keys are created by one epoch."""

SLOW_KEYS = 1_000_000
"""From here on Spark's side takes half a minute per epoch and gets fewer of them."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    rows: int = 1_000_000
    keys: tuple[int, ...] = (100_000, 5_000_000)
    epochs: int = 12
    small_epochs: int = 40
    small_keys: int = SMALL_KEYS
    rounds: int = 2
    warm: int = 5
    sample_rows: int = 20_000
    full_sample: bool = True
    verify_rows: int = 10_000
    verify_epochs: int = 2
    sample_epochs: int = 5
    processes: tuple[tuple[str, ...], ...] = ((MILLRACE,), (SPARK,), (CEILING,), (TWS,), (FASTLOG,))
    """The sides of each process."""

    def quick(self) -> Options:
        return replace(
            self,
            rows=min(self.rows, 200_000),
            keys=(5_000,) if self.keys == Options.keys else self.keys,
            epochs=min(self.epochs, 4),
            small_epochs=5,
            small_keys=5_000,
            rounds=1,
            warm=2,
            sample_rows=2_000,
            full_sample=False,
            verify_rows=1_000,
            verify_epochs=1,
            sample_epochs=1,
            # Starting a JVM takes longer than what it is to do. The second of two gets the settings
            # of the first, which make no difference to it.
            processes=((MILLRACE, CEILING), (TWS, SPARK)),
        )


class Throughput(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._started: dict[str, SideHandle] = {}

    def run(self) -> Result:
        with ExitStack() as stack:
            for kind, *guests in self._options.processes:
                process = SideProcess(kind, self._workdir, guests=guests)
                self._started |= stack.enter_context(process).sides
            self._steps.step("starting the sides")
            for side in self._started.values():
                side.call("ready")
            self._verify()
            if not self._result.equal:
                return self._result
            self._small_epochs()
            for keys in self._options.keys:
                self._large_epochs(keys)
                if keys < SLOW_KEYS:
                    self._sampled(keys)
        return self._result

    def _verify(self) -> None:
        """All sides count the same rows; their state must be what one batch gives."""
        keys = min(self._options.keys)
        rows = self._options.verify_rows * self._options.verify_epochs
        self._steps.step(f"comparing the outputs: {', '.join(self._started)}")
        tables = all_at_once(self._started, self._counted)
        counts = expected(self._started[SPARK], self._workdir, loaded=0, rows=rows, keys=keys)
        for kind, table in tables.items():
            self._result.compare(
                f"{kind}: its counts of {rows:,} rows over {keys:,} keys are not the batch's",
                same(table, counts),
            )

    def _counted(self, side: SideHandle) -> pa.Table:
        """A side's counts of the rows that all of them count."""
        keys, rows = min(self._options.keys), self._options.verify_rows
        for _ in range(self._options.verify_epochs):
            side.call("once", name="verify", rows=rows, keys=keys, key="hash")
        return state(side, "verify", self._workdir)

    def _fill(self, kinds: Iterable[str], name: str, keys: int) -> None:
        """Create every key once."""

        def fill(side: SideHandle) -> None:
            create_keys(side, name, keys, FILL_ROWS)

        self._steps.step(f"filling {size_name(keys)} keys: {', '.join(kinds)}")
        all_at_once({kind: self._started[kind] for kind in kinds}, fill)

    def _turns(
        self, kinds: Iterable[str], name: str, rows: int, keys: int, epochs: dict[str, int]
    ) -> dict[str, Epochs]:
        """The sides take turns; each continues from the checkpoint where its last turn ended."""
        samples: dict[str, Epochs] = defaultdict(list)
        rounds = self._options.rounds
        for turn in range(rounds):
            for kind in kinds:
                wanted = epochs[kind]
                share = wanted // rounds + (turn < wanted % rounds)
                if not share:
                    continue
                slow = kind == SPARK and keys >= SLOW_KEYS
                warm = 1 if slow else self._options.warm if turn == 0 else 2
                self._steps.step(
                    f"{kind}: {share} epochs of {size_name(rows)} rows, {size_name(keys)} keys"
                )
                samples[kind] += self._started[kind].call(
                    "run", name=name, rows=rows, keys=keys, warm=warm, epochs=share
                )
        return samples

    def _large_epochs(self, keys: int) -> None:
        size, name = size_name(keys), f"keys-{keys}"
        kinds = (MILLRACE, SPARK, CEILING)
        self._fill((MILLRACE, SPARK), name, keys)
        epochs = dict.fromkeys(kinds, self._options.epochs)
        if keys >= SLOW_KEYS:
            epochs[SPARK] = min(epochs[SPARK], 3)
        samples = self._turns(kinds, name, self._options.rows, keys, epochs)
        rate = {
            kind: self._result.figure(f"rows_per_s.{kind}.{size}", _rows_per_s(samples[kind]))
            for kind in kinds
        }
        for kind in (MILLRACE, SPARK):
            add_breakdown(self._result, f"ms.{kind}.{size}", samples[kind])
        ratio = self._result.ratio(f"throughput.{SPARK}.{size}", rate[MILLRACE] / rate[SPARK])
        share = self._result.ratio(f"ceiling.{size}", rate[MILLRACE] / rate[CEILING])
        if self._options.rows == BAR_ROWS:
            if keys in (100_000, 5_000_000):
                target = 2 if keys == 100_000 else 10
                self._result.at_least(f"throughput.{SPARK}.{size}", ratio, target)
            if keys == 100_000:
                self._result.at_least(f"ceiling.{size}", share, 0.7)
        self._check_final(name, keys, samples)

    def _check_final(self, name: str, keys: int, samples: dict[str, Epochs]) -> None:
        """What was timed must also be right."""
        self._steps.step(f"comparing the final state, {size_name(keys)} keys")
        millrace = self._started[MILLRACE]
        rows = millrace.call("total", name=name)["rows"]
        self._result.compare(
            f"millrace: {rows:,} rows counted, which is not a whole number of epochs",
            (rows - keys) % self._options.rows == 0,
        )
        counts = expected(self._started[SPARK], self._workdir, loaded=keys, rows=rows, keys=keys)
        self._result.compare(
            f"millrace: its final counts of {rows:,} rows over {keys:,} keys are not the batch's",
            same(state(millrace, name, self._workdir), counts),
        )
        self._result.compare(
            f"spark_rocksdb: it holds another number of keys than {keys:,}",
            all(epoch["state_rows"] == keys for epoch in samples[SPARK]),
        )

    def _sampled(self, keys: int) -> None:
        """PySpark's transformWithState, by a sample."""
        size, name = size_name(keys), f"keys-{keys}"
        self._fill((TWS,), name, keys)
        sample = self._options.sample_rows
        kinds = [(TWS, sample, 2, self._options.sample_epochs)]
        if self._options.full_sample:
            kinds.append((f"{TWS}_full", self._options.rows, 1, 2))
        for kind, rows, warm, epochs in kinds:
            self._steps.step(f"{kind}: {epochs} epochs of {size_name(rows)} rows, {size} keys")
            samples = self._started[TWS].call(
                "run", name=name, rows=rows, keys=keys, warm=warm, epochs=epochs
            )
            rate = self._result.figure(f"rows_per_s.{kind}.{size}", _rows_per_s(samples))
            self._result.figure(f"sample_rows.{kind}.{size}", rows)
            millrace = self._result.figures[f"rows_per_s.{MILLRACE}.{size}"]
            ratio = self._result.ratio(f"throughput.{kind}.{size}", millrace / rate)
            if kind == TWS and keys == 100_000 and self._options.rows == BAR_ROWS:
                self._result.at_least(f"throughput.{TWS}.{size}", ratio, 150)

    def _small_epochs(self) -> None:
        keys, name = self._options.small_keys, "small"
        kinds = [kind for kind in (MILLRACE, SPARK, FASTLOG) if kind in self._started]
        self._fill(kinds, name, keys)
        epochs = dict.fromkeys(kinds, self._options.small_epochs)
        samples = self._turns(kinds, name, SMALL, keys, epochs)
        size = size_name(SMALL)
        median = {
            kind: self._result.figure(f"epoch_ms.{kind}.{size}", median_ms(samples[kind]))
            for kind in kinds
        }
        for kind in kinds:
            add_breakdown(self._result, f"epoch_ms.{kind}.{size}", samples[kind])
        for kind in kinds[1:]:
            self._result.ratio(f"latency.{kind}.{size}", median[kind] / median[MILLRACE])
        if keys == SMALL_KEYS and self._options.small_epochs >= 30:
            ratio = self._result.ratios[f"latency.{SPARK}.{size}"]
            self._result.at_least(f"latency.{SPARK}.{size}", ratio, 1)


def _rows_per_s(samples: Epochs) -> float:
    return float(statistics.median(epoch["rows"] * 1000 / epoch["ms"] for epoch in samples))


run = Throughput.measure
