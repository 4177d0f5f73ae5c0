"""Operators over event time beside Spark's own on RocksDB and Flink SQL on heap and RocksDB.

Every case is the same query over the same rows (`_foreign.engines.cases`) on every side, each in a
process of its own with two cores, a parallelism of 2, durable state, and a sink that drops its
input. First all sides emit their results of some minutes, and every row of them is compared with
what DuckDB finds in one batch; only then are they timed, one at a time. An epoch of Millrace and
Spark is one minute of event time; Flink has no epochs and is timed by the clock and its own
counters, after as many minutes.

A ratio `operators.<case>.<peer>.<keys>` is one of medians. Memory is the peak of all processes of a
side, and bytes are what they have written to storage, shuffled rows included.

Then, of Millrace alone: epochs that open and end windows while 1 and 20 million are open, an epoch
that ends a million at once, and look-ups of windows of three lengths (`_operator_tiles`).
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from millrace.arrays import Int64Array
from millrace_lab import processes
from millrace_lab.bench import _environments
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import median_ms
from millrace_lab.bench._foreign.engines.cases import BY_NAME, CASES, Case, columns_sql, limit_ms
from millrace_lab.bench._operator_tiles import TileOptions, measure_tiles
from millrace_lab.bench._side_process import SideProcess, all_at_once
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._usage import cost, sampling

NAME = "operators"
MILLION, MB = 1e6, 1e6

MILLRACE, SPARK = "operators-millrace", "operators-spark"
FLINK = {"flink-operators-heap": "flink-sql-heap", "flink-operators-rocksdb": "flink-sql-rocksdb"}
PEERS = {SPARK: "spark-rocksdb", **FLINK}
"""Processes of the peers, and their names in figures."""

BARS = {
    "tumbling": 2.5,
    "hopping": 4.0,
    "session": 5.0,
    "dedup": 4.0,
    "inner_join": 5.0,
    "left_join": 4.0,
    "top": 3.0,
}
"""How many times as fast as Spark on RocksDB."""
FLINK_BAR = 1.5
BAR_ROWS = 1_000_000
AT_ONCE = 2_500_000
"""Windows that one epoch opens before epochs are timed."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    cases: tuple[str, ...] = tuple(case.name for case in CASES)
    keys: tuple[int, ...] = (100_000, 1_000_000)
    rows: int = 1_000_000
    """Rows of an epoch."""
    epochs: int = 5
    warm_s: float = 10.0
    window_s: float = 3.0
    verify_rows: int = 20_000
    verify_keys: int = 5_000
    verify_minutes: int = 6
    peers: bool = True
    growth: bool = True
    """Also what concerns Millrace alone: open windows, eviction and tiles."""
    opened: tuple[int, ...] = (1_000_000, 20_000_000)
    """Open windows of the growth; none: it is left out."""
    flow: int = 100_000
    """Windows that an epoch opens and ends meanwhile."""
    flow_epochs: int = 20
    tiles: TileOptions = field(default_factory=TileOptions)
    environments: Path = _environments.DEFAULT

    def quick(self) -> Options:
        return replace(
            self,
            keys=(10_000,) if self.keys == Options.keys else self.keys,
            rows=min(self.rows, 100_000),
            epochs=min(self.epochs, 2),
            warm_s=min(self.warm_s, 2.0),
            window_s=min(self.window_s, 1.0),
            verify_rows=min(self.verify_rows, 2_000),
            verify_keys=min(self.verify_keys, 500),
            opened=(50_000, 200_000) if self.opened == Options.opened else self.opened,
            flow=min(self.flow, 10_000),
            flow_epochs=min(self.flow_epochs, 4),
            tiles=self.tiles.quick(),
        )


class Operators(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME
    peers = PEERS
    """The sides beside Millrace."""

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._processes: dict[str, SideProcess] = {}
        self._cases = [BY_NAME[name] for name in options.cases]

    def run(self) -> Result:
        with ExitStack() as stack:
            self._start(stack)
            for case in self._cases:
                self._verify(case)
            if self._result.equal:
                for keys in self._options.keys:
                    for case in self._cases:
                        self._measure(case, keys)
                for name in list(self._processes):
                    if name != MILLRACE:
                        self._processes.pop(name).close()
                if self._options.growth:
                    self._growth()
                    self._kept()
        if self._result.equal and self._options.growth:
            measure_tiles(self._options.tiles, self._workdir, self._steps, self._result)
        return self._result

    def _start(self, stack: ExitStack) -> None:
        sides = [MILLRACE, *(self.peers if self._options.peers else ())]
        environments = self._options.environments
        if self._options.peers and not _environments.exists(environments, "flink"):
            missing = {"flink": list(FLINK.values())}
            self._steps.say(_environments.missing_message(environments, missing))
            sides = [name for name in sides if name not in FLINK]
        self._steps.step(f"starting {len(sides)} sides")
        for name in sides:
            process = (
                _environments.start(environments, "flink", name, self._workdir)
                if name in FLINK
                else SideProcess(name, self._workdir)
            )
            self._processes[name] = stack.enter_context(process)
        ready = all_at_once(self._processes, lambda process: process.call("ready"))
        for versions in ready.values():
            self._result.versions |= versions

    def _verify(self, case: Case) -> None:
        """All sides emit the same rows, and those of one batch."""
        o = self._options
        self._steps.step(f"{case.name}: comparing all rows of {o.verify_minutes} minutes")

        def emit(process: SideProcess) -> Int64Array:
            path = self._workdir / f"{process.kind}-{case.name}.npy"
            process.call(
                "output",
                case=case.name,
                keys=o.verify_keys,
                rows=o.verify_rows,
                minutes=o.verify_minutes,
                path=str(path),
            )
            return ordered(case, np.load(path), o.verify_minutes)

        wanted = expected(case, o.verify_keys, o.verify_rows, o.verify_minutes)
        for name, found in all_at_once(self._processes, emit).items():
            self._result.compare(
                f"{name}, {case.name}: its {len(found):,} rows are not the {len(wanted):,} of one "
                "batch",
                np.array_equal(found, wanted),
            )

    def _measure(self, case: Case, keys: int) -> None:
        rates = {}
        for name, process in self._processes.items():
            self._steps.step(f"{case.name}, {size_name(keys)} keys: {PEERS.get(name, 'millrace')}")
            rates[name] = self._turn(process, case, keys)
        ours = rates.pop(MILLRACE)
        for name, rate in rates.items():
            peer = PEERS[name]
            ratio = f"{NAME}.{case.name}.{peer}.{size_name(keys)}"
            value = self._result.ratio(ratio, ours / rate)
            if self._options.rows != BAR_ROWS:
                continue
            if name == SPARK:
                self._result.at_least(ratio, value, BARS[case.name])
            elif peer.endswith("heap"):
                self._result.at_least(ratio, value, FLINK_BAR)

    def _turn(self, process: SideProcess, case: Case, keys: int) -> float:
        """One side's rows per second, the median; with its figures."""
        o = self._options
        given: dict[str, Any] = {"case": case.name, "keys": keys, "rows": o.rows, "warm": case.warm}
        before = processes.written_bytes(process.session)
        with sampling(process.session) as samples:
            if process.kind in FLINK:
                pace = {"windows": o.epochs, "warm_s": o.warm_s, "window_s": o.window_s}
                answer = process.call("timed_case", **given, **pace)
            else:
                answer = process.call("timed", **given, windows=o.epochs)
        written = processes.written_bytes(process.session) - before
        windows = answer["windows"]
        rows = sum(one["rows"] for one in windows)
        used = cost(samples(), windows[0]["begin"], windows[-1]["end"])
        rates = [one["rows"] / (one["end"] - one["begin"]) for one in windows]
        side = PEERS.get(process.kind, "millrace")
        of = f"{case.name}.{side}.{size_name(keys)}"
        figure = self._result.figure
        median = figure(f"rows_per_s.{of}", statistics.median(rates))
        figure(f"rows_per_s.{of}.low", min(rates))
        figure(f"rows_per_s.{of}.high", max(rates))
        figure(f"cpu_s_per_m_rows.{of}", used.cpu_seconds / (rows / MILLION))
        figure(f"peak_mb.{of}", used.peak_bytes / MB)
        figure(f"written_mb_per_m_rows.{of}", written / MB / (answer["taken"] / MILLION))
        parts = answer.get("parts", [])
        for part in dict.fromkeys(part for epoch in parts for part in epoch):
            values = [epoch.get(part, 0.0) for epoch in parts]
            figure(f"ms.{of}.{part}", statistics.median(values))
        return median

    def _growth(self) -> None:
        """The same flow of windows beside few and many that are open."""
        o, process = self._options, self._processes[MILLRACE]
        medians = {}
        for opened in o.opened:
            size = size_name(opened)
            self._steps.step(f"{size} open windows")
            process.call("opened", name=size, rows=o.flow, opened=opened, at_once=AT_ONCE)
            epochs = process.call(
                "flow", name=size, rows=o.flow, opened=opened, warm=3, epochs=o.flow_epochs
            )
            medians[opened] = self._result.figure(
                f"open_windows.epoch_ms.{size}", median_ms(epochs)
            )
            rows = {epoch["state_rows"] for epoch in epochs}
            # The watermark is that of the epoch before, so a minute more is open.
            self._result.compare(
                f"{size} open windows: there are {sorted(rows)}",
                all(opened <= n <= opened + 2 * o.flow for n in rows),
            )
        for opened in o.opened[1:]:
            name = f"growth.{size_name(opened)}_over_{size_name(o.opened[0])}"
            quotient = self._result.ratio(name, medians[opened] / medians[o.opened[0]])
            if name == "growth.20m_over_1m" and o.flow == Options.flow:
                self._result.at_most(name, quotient, 1.3)
        if o.opened:
            self._eviction(o.opened[0])

    def _eviction(self, opened: int) -> None:
        """One epoch that ends all windows, and those around it."""
        o, process = self._options, self._processes[MILLRACE]
        size = size_name(opened)
        self._steps.step(f"{size} windows end at once")
        around = o.flow_epochs // 2
        process.call("opened", name="ending", rows=o.flow, opened=opened, at_once=AT_ONCE)
        epochs = process.call(
            "flow",
            name="ending",
            rows=o.flow,
            opened=opened,
            warm=3,
            epochs=2 * around + 2,
            jump=around,
        )
        most = max(range(len(epochs)), key=lambda i: epochs[i]["evicted"])
        evicted = epochs[most]["evicted"]
        self._result.compare(f"{size} windows: {evicted:,} ended at once", evicted >= opened)
        figure = self._result.figure
        figure(f"eviction.windows.{size}", evicted)
        figure(f"eviction.epoch_ms.{size}", epochs[most]["ms"])
        figure(f"eviction.before_ms.{size}", median_ms(epochs[:most]))
        figure(f"eviction.after_ms.{size}", median_ms(epochs[most + 1 :]))

    def _kept(self) -> None:
        """The bytes of windows of three lengths over those of the longest alone."""
        o, process = self._options, self._processes[MILLRACE]
        self._steps.step("state of windows of three lengths, and of one")
        lengths = ["5 minutes", "1 hour", "1 day"]
        keys, rows = min(o.keys), min(o.rows, 200_000)
        several = process.call("kept", lengths=lengths, keys=keys, rows=rows, epochs=o.epochs)
        alone = process.call("kept", lengths=lengths[-1:], keys=keys, rows=rows, epochs=o.epochs)
        self._result.compare(
            f"windows of three lengths keep {several['rows']:,} rows, of one {alone['rows']:,}",
            several["rows"] == alone["rows"],
        )
        name = "tiles.bytes_over_longest"
        self._result.at_most(
            name, self._result.figure(name, several["bytes"] / alone["bytes"]), 1.3
        )


def expected(case: Case, keys: int, rows: int, minutes: int) -> Int64Array:
    """What a case must emit, by one batch in DuckDB."""
    columns = ", ".join(f"{sql} AS {name}" for name, sql in columns_sql(rows, keys).items())
    connection = duckdb.connect()
    connection.execute(
        f"CREATE VIEW events AS SELECT {columns} FROM RANGE({rows * minutes}) AS numbers(v)"
    )
    found = connection.sql(case.duckdb).to_arrow_table()
    numbers = np.stack([column.cast("int64").to_numpy() for column in found.columns], axis=1)
    return ordered(case, numbers, minutes)


def ordered(case: Case, rows: Int64Array, minutes: int) -> Int64Array:
    """The rows that every side has emitted, in order."""
    if case.final is not None:
        rows = rows[rows[:, case.columns.index(case.final)] <= limit_ms(minutes)]
    return rows[np.lexsort(rows.T[::-1])]


run = Operators.measure
