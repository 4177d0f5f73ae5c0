"""Epochs that change the same number of keys, on states of growing size.

For each size a query fills the state; its log is then aged, without Spark, until every key group
has been merged and their merges are spread evenly (`_sides.statelog`): from then on merges, deltas
and files stay what they are. Then the query continues, and its epochs are timed: states
of all sizes are ready first, and their queries take turns. At the end each state is compared with
what the counts must be.

A replica is opened by new processes twice: when the first merges begin (`open_unmerged_s.*`: the
log is as long as it gets, and every key group has its part of it), and after aging (`open_s.*`).
Opening maps the files; `first_lookup_s.*` is what the first look-ups cost when they touch every key
group, and so have all of the log indexed.

Keys are drawn uniformly, as many rows as change the wanted number of keys on average.

`growth.A_over_B` is the quotient of two epoch times: lower is better.

`write_amplification.*` is the bytes of all segments and manifests of an epoch over the in-memory
Arrow size of the rows it changed (fingerprint, key, state). A key group is merged once in
`MERGE_RATIO x rows of state / changed rows` epochs, which makes 450 at 20 million keys; so the
smallest state's is measured in the query, over two such cycles, and `write_amplification_aged.*`
over the last cycle of each state's aging.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from millrace.log.journal import Journal
from millrace.log.manifest import manifest_path
from millrace.log.store import open_store
from millrace.state.merging import MERGE_RATIO
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs, add_breakdown, create_keys, median_ms
from millrace_lab.bench._oracle import expected, same, state
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name

NAME = "growth"
FILL_ROWS = 5_000_000
CYCLES = 2
"""Merge cycles over which bytes are counted in the query."""
WARM = 5
SEED = 20


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    changed: int = 100_000
    keys: tuple[int, ...] = (1_000_000, 5_000_000, 20_000_000)
    epochs: int = 30
    rounds: int = 2
    openings: int = 3
    """New processes that open a state; the median counts. With one, only aged states are opened."""

    def quick(self) -> Options:
        return replace(
            self,
            changed=min(self.changed, 10_000),
            keys=(50_000, 200_000) if self.keys == Options.keys else self.keys,
            epochs=min(self.epochs, 8),
            rounds=1,
            openings=1,
        )


class Growth(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._process: SideProcess

    def run(self) -> Result:
        sizes = sorted(self._options.keys)
        # One process for all sizes, so that all find the same warm JVM.
        with SideProcess("millrace", self._workdir) as self._process:
            for keys in sizes:
                self._prepare(keys)
            samples = self._turns(sizes)
            for keys in sizes:
                self._compare(keys)
            self._report(sizes, samples)
        return self._result

    def _location(self, keys: int) -> str:
        return str(self._process.workdir / size_name(keys))

    def _added(self, keys: int) -> Path:
        """How often aging counted each key."""
        return self._workdir / f"added-{size_name(keys)}.npy"

    def _rows(self, keys: int) -> int:
        """How many uniform draws change the wanted number of keys on average."""
        share = min(self._options.changed / keys, 0.9)
        return round(-keys * math.log1p(-share))

    def _cycle(self, keys: int) -> int:
        """Epochs until a key group is merged again."""
        return math.ceil(MERGE_RATIO * keys / min(self._options.changed, keys))

    def _prepare(self, keys: int) -> None:
        size, cycle = size_name(keys), self._cycle(keys)
        create_keys(
            self._process,
            size,
            keys,
            FILL_ROWS,
            lambda left: self._steps.step(f"{size} keys: filling, {size_name(left)} to go"),
        )
        with SideProcess("statelog", self._workdir) as log:
            self._steps.step(f"{size} keys: aging by at least {2 * cycle} epochs")
            log.call("begin", location=self._location(keys), rows=self._rows(keys), seed=SEED)
            if self._options.openings > 1:
                log.call("until_merging", at_most=10 * cycle)
                self._opened(keys, "open_unmerged_s")
                self._steps.step(f"{size} keys: aging by at least {2 * cycle} epochs")
            settled = log.call("settle", at_most=10 * cycle)
            aged = log.call("measure", epochs=cycle)
            log.call("save", added=str(self._added(keys)))
        shutil.rmtree(log.workdir)
        self._opened(keys, "open_s")
        self._row_bytes = aged["changed"] / aged["changed_rows"]
        written = aged["segments"] + aged["manifests"]
        self._result.figure(f"row_bytes.{size}", self._row_bytes)
        self._result.figure(f"write_amplification_aged.{size}", written / aged["changed"])
        self._result.figure(f"settling_epochs.{size}", settled)
        self._result.figure(f"merging_epochs_share.{size}", aged["merging_epochs"] / cycle)
        self._result.figure(f"state_layer_ms.{size}", 1000 * aged["seconds"] / cycle)

    def _turns(self, sizes: list[int]) -> dict[int, Epochs]:
        samples: dict[int, Epochs] = defaultdict(list)
        rounds = self._options.rounds
        for turn in range(rounds):
            for keys in sizes:
                wanted = self._options.epochs
                if keys == sizes[0]:
                    wanted = max(wanted, CYCLES * self._cycle(keys))
                share = wanted // rounds + (turn < wanted % rounds)
                self._steps.step(f"{size_name(keys)} keys: {share} epochs")
                samples[keys] += self._process.call(
                    "run",
                    name=size_name(keys),
                    rows=self._rows(keys),
                    keys=keys,
                    warm=WARM,
                    epochs=share,
                )
        return samples

    def _opened(self, keys: int, name: str) -> None:
        size = size_name(keys)
        self._steps.step(f"{size} keys: opening in new processes")
        smallest = self._location(min(self._options.keys))
        opened = []
        for _ in range(self._options.openings):
            with SideProcess("statelog", self._workdir / "opening") as fresh:
                opened.append(fresh.call("open", location=self._location(keys), warm=smallest))
            shutil.rmtree(fresh.workdir)
        rows = {o["rows"] for o in opened}
        self._result.compare(f"{size} keys: the state has {rows} rows", rows == {keys})
        seconds = statistics.median(o["open_s"] for o in opened)
        self._result.figure(f"{name}.{size}", seconds)
        self._result.figure(f"{name}.{size}.cpu", statistics.median(o["cpu_s"] for o in opened))
        if keys == 20_000_000:
            self._result.at_most(f"{name}.{size}", seconds, 2)
        if name == "open_s":
            lookup = statistics.median(o["first_lookup_s"] for o in opened)
            self._result.figure(f"first_lookup_s.{size}", lookup)

    def _compare(self, keys: int) -> None:
        size, process = size_name(keys), self._process
        self._steps.step(f"{size} keys: comparing the state")
        added = np.load(self._added(keys))
        rows = process.call("total", name=size_name(keys))["rows"] - int(added.sum())
        counts = expected(process, self._workdir, loaded=keys, rows=rows, keys=keys)
        self._result.compare(
            f"{size} keys: the final counts are not the batch's",
            same(state(process, size, self._workdir), counts + added),
        )

    def _report(self, sizes: list[int], samples: dict[int, Epochs]) -> None:
        result = self._result
        median = {}
        for keys in sizes:
            size = size_name(keys)
            median[keys] = result.figure(f"epoch_ms.{size}", median_ms(samples[keys]))
            result.figure(f"changed_keys.{size}", _mean(samples[keys], "changed"))
            result.figure(f"merged_rows.{size}", _mean(samples[keys], "merged"))
            add_breakdown(result, f"epoch_ms.{size}", samples[keys])
        smallest = sizes[0]
        for keys in sizes[1:]:
            name = f"growth.{size_name(keys)}_over_{size_name(smallest)}"
            quotient = result.ratio(name, median[keys] / median[smallest])
            if name == "growth.20m_over_1m" and self._options.changed == 100_000:
                result.at_most(name, quotient, 1.5)
        size = size_name(smallest)
        amplification = result.figure(
            f"write_amplification.{size}", self._amplification(smallest, samples[smallest])
        )
        if smallest == 1_000_000 and self._options.changed == 100_000:
            result.at_most(f"write_amplification.{size}", amplification, 1.5)

    def _amplification(self, keys: int, samples: Epochs) -> float:
        store = Journal.open(open_store(self._location(keys))).store
        written = sum(e["segment_bytes"] for e in samples)
        written += sum(store.size(manifest_path(e["epoch"])) or 0 for e in samples)
        return float(written / (sum(e["changed"] for e in samples) * self._row_bytes))


def _mean(samples: Epochs, name: str) -> float:
    return float(sum(e[name] for e in samples) / len(samples))


run = Growth.measure
