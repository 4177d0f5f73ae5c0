"""Millrace beside other stream processors: a count and a sum per key, of the same rows.

Spark's own streaming aggregation on both of its state stores, PySpark's `transformWithState`, Flink
SQL and PyFlink's keyed state on heap and RocksDB, Bytewax and Pathway. Every side is a process of
its own, those that are not Spark in an environment of their own (`make peers`); all have two
cores, a parallelism of 2, durable state about every second, and a sink that drops its input. First
all of them count the same rows to their end, and their final counts and sums are compared with one
batch, key by key; only then are they timed, one at a time.

Sides with epochs are timed from the start of one epoch to the start of the next; the others over
windows by the clock, of rows by their own counters. Warm-up is excluded. A ratio is one of medians;
its range is from Millrace's slowest window over the other's fastest to the opposite. Millrace's
aggregates are timed before and after the others, so that a machine that changes its speed shows in
their range.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace_lab.bench import _environments
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._oracle_totals import counted, difference, expected
from millrace_lab.bench._peer_sides import AGGREGATE, BY_NAME, MILLRACE, NAMES, SideKind
from millrace_lab.bench._side_process import SideProcess, all_at_once
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._usage import cost, sampling

NAME = "peers"
MILLION, MB, GB = 1e6, 1e6, 1e9


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: tuple[int, ...] = (100_000, 1_000_000)
    rows: int = 1_000_000
    """Rows of an epoch."""
    windows: int = 5
    warm: int = 5
    """Epochs that are not timed."""
    warm_s: float = 10.0
    window_s: float = 3.0
    verify_rows: int = 20_000
    verify_keys: int = 5_000
    samples: float = 1.0
    """The share of their usual rows that epochs of slow sides have."""
    sides: tuple[str, ...] = NAMES
    environments: Path = _environments.DEFAULT

    def quick(self) -> Options:
        return replace(
            self,
            keys=(10_000,) if self.keys == Options.keys else self.keys,
            rows=min(self.rows, 200_000),
            windows=min(self.windows, 2),
            warm=min(self.warm, 2),
            warm_s=min(self.warm_s, 2.0),
            window_s=min(self.window_s, 1.0),
            verify_rows=min(self.verify_rows, 2_000),
            verify_keys=min(self.verify_keys, 500),
            samples=0.1,
        )


@dataclass
class Timed:
    """What a side was measured to do, over all of its turns."""

    rates: list[float] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    checkpoints: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def available(options: Options) -> tuple[list[SideKind], dict[str, list[str]]]:
    """The sides that can run, and those of each missing environment."""
    found: list[SideKind] = []
    missing: dict[str, list[str]] = {}
    for name in dict.fromkeys((*MILLRACE, *options.sides)):
        side = BY_NAME[name]
        if side.environment is None or _environments.exists(options.environments, side.environment):
            found.append(side)
        else:
            missing.setdefault(side.environment, []).append(name)
    needed = {side.beside for side in found if side.name not in MILLRACE}
    return [s for s in found if s.name in needed or s.name in options.sides], missing


def why_not(options: Options) -> str | None:
    """Why `bench all` leaves this out; None if it does not."""
    wanted = [side.environment for side in BY_NAME.values() if side.environment is not None]
    if any(_environments.exists(options.environments, name) for name in wanted):
        return None
    return f"left out: there are no environments in {options.environments}; `make peers` makes them"


class Peers(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._sides, missing = available(options)
        self._processes: dict[str, SideProcess] = {}
        if missing:
            steps.say(_environments.missing_message(options.environments, missing))
        if all(side.name in MILLRACE for side in self._sides):
            raise BenchmarkError("there is nothing to measure Millrace beside.")

    def run(self) -> Result:
        with ExitStack() as stack:
            self._steps.step(f"starting {len(self._sides)} sides")
            for side in self._sides:
                self._processes[side.name] = stack.enter_context(self._start(side))
            for versions in all_at_once(
                self._processes, lambda process: process.call("ready")
            ).values():
                self._result.versions |= versions
            self._verify()
            if self._result.equal:
                for place, keys in enumerate(self._options.keys):
                    self._measure(keys, [s for s in self._sides if s.large or not place])
        return self._result

    def _start(self, side: SideKind) -> SideProcess:
        if side.environment is None:
            return SideProcess(side.name, self._workdir)
        return _environments.start(
            self._options.environments, side.environment, side.name, self._workdir
        )

    def _verify(self) -> None:
        """All sides count the same rows; all of their counts must be what one batch gives."""
        rows, keys = self._options.verify_rows, self._options.verify_keys
        self._steps.step(f"comparing the counts of {rows:,} rows with those of one batch")

        def count(process: SideProcess) -> Path:
            path = self._workdir / f"{process.kind}.counts"
            process.call("counted", rows=rows, keys=keys, path=str(path))
            return path

        wanted = expected(rows, keys)
        for name, path in all_at_once(self._processes, count).items():
            differs = difference(counted(path), wanted)
            self._result.compare(f"{name}: {differs}", differs is None)

    def _measure(self, keys: int, sides: Iterable[SideKind]) -> None:
        """Every side once, and Millrace's aggregates at the beginning and at the end."""
        sides = list(sides)
        again = [side for side in sides if side.name == AGGREGATE]
        timed: dict[str, Timed] = defaultdict(Timed)
        turns = [*sides, *again]
        last = keys == self._options.keys[-1]
        for place, side in enumerate(turns):
            self._steps.step(f"{side.name}: {size_name(keys)} keys")
            self._turn(side, keys, timed[side.name])
            if side not in turns[place + 1 :] and (last or not side.large):
                self._processes[side.name].close()
        self._report(keys, timed)

    def _turn(self, side: SideKind, keys: int, timed: Timed) -> None:
        process = self._processes[side.name]
        with sampling(process.session) as samples:
            answer = process.call("timed", keys=keys, fill=side.fill, **self._pace(side))
        windows = answer["windows"]
        begin, end = windows[0]["begin"], windows[-1]["end"]
        used = cost(samples(), begin, end)
        timed.rates += [one["rows"] / (one["end"] - one["begin"]) for one in windows]
        timed.rows += sum(one["rows"] for one in windows)
        timed.seconds += end - begin
        timed.cpu_seconds += used.cpu_seconds
        timed.peak_bytes = max(timed.peak_bytes, used.peak_bytes)
        if "checkpoints" in answer:
            timed.checkpoints = (timed.checkpoints or 0) + answer["checkpoints"]

    def _pace(self, side: SideKind) -> dict[str, Any]:
        o = self._options
        if side.continuous:
            window_s = o.window_s * side.patience
            return {"warm_s": o.warm_s, "windows": o.windows, "window_s": window_s}
        rows = o.rows if side.sample is None else round(side.sample * o.samples)
        return {"rows": rows, "warm": o.warm if side.sample is None else 1, "windows": o.windows}

    def _report(self, keys: int, timed: dict[str, Timed]) -> None:
        size = size_name(keys)
        for name, found in timed.items():
            figure = self._result.figure
            figure(f"rows_per_s.{name}.{size}", found.median)
            figure(f"rows_per_s.{name}.{size}.low", min(found.rates))
            figure(f"rows_per_s.{name}.{size}.high", max(found.rates))
            figure(f"windows.{name}.{size}", len(found.rates))
            millions = found.rows / MILLION
            figure(f"cpu_s_per_m_rows.{name}.{size}", found.cpu_seconds / millions)
            figure(f"peak_mb.{name}.{size}", found.peak_bytes / MB)
            held = found.peak_bytes / GB * found.seconds / millions
            figure(f"gb_s_per_m_rows.{name}.{size}", held)
            if found.checkpoints is not None:
                figure(f"checkpoints.{name}.{size}", found.checkpoints)
        for name, found in timed.items():
            beside = timed.get(BY_NAME[name].beside)
            if name in MILLRACE or beside is None:
                continue
            ratio = self._result.ratio
            ratio(f"{NAME}.{name}.{size}", beside.median / found.median)
            ratio(f"{NAME}.{name}.{size}.low", min(beside.rates) / max(found.rates))
            ratio(f"{NAME}.{name}.{size}.high", max(beside.rates) / min(found.rates))
            cpu = (found.cpu_seconds / found.rows) / (beside.cpu_seconds / beside.rows)
            ratio(f"{NAME}.cpu.{name}.{size}", cpu)


run = Peers.measure
