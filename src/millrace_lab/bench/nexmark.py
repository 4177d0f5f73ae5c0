"""NEXMark's queries with state beside Spark's own operators on RocksDB and Flink SQL on heap.

Every side makes the events by itself, by the same arithmetic (`millrace_lab.nexmark.generator`), in
a process of its own with two cores, a parallelism of 2, durable state, and a sink that drops its
input. First each side answers a query over some events, and all rows of the answer are compared
with what DuckDB finds in one batch over the same events; then those that can express the query are
timed, one at a time. Spark and Millrace run epochs back to back; Flink has none and is timed by the
clock and its own counters, after as many events.

Rows are events of all kinds, whether a query takes them or not. A ratio `nexmark.<query>.<peer>` is
one of medians.
"""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace_lab import processes
from millrace_lab.bench import _environments
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._side_process import SideProcess, all_at_once
from millrace_lab.bench._usage import cost, sampling
from millrace_lab.nexmark import generator
from millrace_lab.nexmark.checking import Events, Rows, plain
from millrace_lab.nexmark.queries import BY_NAME, QUERIES, STATELESS, Query

NAME = "nexmark"
MILLION, MB = 1e6, 1e6

MILLRACE, SPARK, FLINK = "nexmark-millrace", "nexmark-spark", "flink-nexmark-heap"
PEERS = {SPARK: "spark-rocksdb", FLINK: "flink-sql-heap"}
"""Processes of the peers, and their names in figures."""
DELAY_S = 1
"""How far the watermark is behind, as in the programs."""

STATEFUL = tuple(query.name for query in QUERIES if query.answer != STATELESS)
"""The others are Spark's own on both sides."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    queries: tuple[str, ...] = STATEFUL
    rows: int = 1_000_000
    """Events of an epoch."""
    per_second: int = 100_000
    """Events of a second of event time."""
    warm: int = 2
    """Epochs before the timed ones."""
    epochs: int = 5
    warm_s: float = 5.0
    window_s: float = 3.0
    verify_events: int = 20_000
    verify_epochs: int = 3
    verify_per_second: int = 500
    peers: bool = True
    environments: Path = _environments.DEFAULT

    def quick(self) -> Options:
        return replace(
            self,
            rows=min(self.rows, 100_000),
            per_second=min(self.per_second, 10_000),
            warm=min(self.warm, 1),
            epochs=min(self.epochs, 2),
            warm_s=min(self.warm_s, 1.0),
            window_s=min(self.window_s, 1.0),
            verify_events=min(self.verify_events, 6_000),
            verify_per_second=min(self.verify_per_second, 200),
        )


class Nexmark(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._processes: dict[str, SideProcess] = {}
        self._queries = [BY_NAME[name] for name in options.queries]
        self._events = Events(
            workdir / "events",
            options.verify_events,
            options.verify_epochs,
            options.verify_per_second,
        )

    def run(self) -> Result:
        with ExitStack() as stack:
            self._start(stack)
            self._steps.step(f"writing {self._events.number:,} events")
            self._processes[MILLRACE].call("events", **self._files())
            for query in self._queries:
                self._verify(query)
            if self._result.equal:
                for query in self._queries:
                    self._measure(query)
        return self._result

    def _start(self, stack: ExitStack) -> None:
        sides = [MILLRACE, *(PEERS if self._options.peers else ())]
        environments = self._options.environments
        if self._options.peers and not _environments.exists(environments, "flink"):
            missing = {"flink": [PEERS[FLINK]]}
            self._steps.say(_environments.missing_message(environments, missing))
            sides.remove(FLINK)
        self._steps.step(f"starting {len(sides)} sides")
        for name in sides:
            process = (
                _environments.start(environments, "flink", name, self._workdir)
                if name == FLINK
                else SideProcess(name, self._workdir)
            )
            self._processes[name] = stack.enter_context(process)
        ready = all_at_once(self._processes, lambda process: process.call("ready"))
        for versions in ready.values():
            self._result.versions |= versions

    def _files(self) -> dict[str, Any]:
        events = self._events
        return {
            "folder": str(events.folder),
            "number": events.number,
            "epochs": events.epochs,
            "per_second": events.per_second,
        }

    def _sides(self, query: Query) -> dict[str, SideProcess]:
        """Those that can express a query."""
        can = {MILLRACE: True, SPARK: query.spark is not None, FLINK: query.flink is not None}
        return {name: process for name, process in self._processes.items() if can[name]}

    def _verify(self, query: Query) -> None:
        """All sides give the answer of one batch."""
        self._steps.step(f"{query.name}: comparing all rows of {self._events.number:,} events")

        def answer(process: SideProcess) -> Rows:
            path = self._workdir / f"{process.kind}-{query.name}.json"
            if process.kind == FLINK:
                given = flink_query(query, self._events.per_second)
                process.call("answer", **given, number=self._events.number, path=str(path))
            else:
                process.call("answer", query=query.name, **self._files(), path=str(path))
            return plain(map(tuple, json.loads(path.read_text())))

        wanted = self._events.batch(query)
        for name, found in all_at_once(self._sides(query), answer).items():
            self._result.compare(
                f"{name}, {query.name}: its {len(found):,} rows are not the {len(wanted):,} of one "
                f"batch{_first_difference(found, wanted)}",
                found == wanted,
            )

    def _measure(self, query: Query) -> None:
        rates = {}
        for name, process in self._sides(query).items():
            self._steps.step(f"{query.name}, {query.title}: {PEERS.get(name, 'millrace')}")
            rates[name] = self._turn(process, query)
        ours = rates.pop(MILLRACE)
        for name, rate in rates.items():
            self._result.ratio(f"{NAME}.{query.name}.{PEERS[name]}", ours / rate)

    def _turn(self, process: SideProcess, query: Query) -> float:
        """One side's rows per second, the median; with its figures."""
        o = self._options
        before = processes.written_bytes(process.session)
        with sampling(process.session) as samples:
            if process.kind == FLINK:
                answer = process.call(
                    "timed_query",
                    **flink_query(query, o.per_second),
                    fill=o.warm * o.rows,
                    warm_s=o.warm_s,
                    windows=o.epochs,
                    window_s=o.window_s,
                )
            else:
                answer = process.call(
                    "timed",
                    query=query.name,
                    rows=o.rows,
                    per_second=o.per_second,
                    warm=o.warm,
                    windows=o.epochs,
                )
        written = processes.written_bytes(process.session) - before
        windows = answer["windows"]
        rows = sum(one["rows"] for one in windows)
        used = cost(samples(), windows[0]["begin"], windows[-1]["end"])
        rates = [one["rows"] / (one["end"] - one["begin"]) for one in windows]
        of = f"{query.name}.{PEERS.get(process.kind, 'millrace')}"
        figure = self._result.figure
        median = figure(f"rows_per_s.{of}", statistics.median(rates))
        figure(f"rows_per_s.{of}.low", min(rates))
        figure(f"rows_per_s.{of}.high", max(rates))
        figure(f"cpu_s_per_m_rows.{of}", used.cpu_seconds / (rows / MILLION))
        figure(f"peak_mb.{of}", used.peak_bytes / MB)
        figure(f"written_mb_per_m_rows.{of}", written / MB / (answer["taken"] / MILLION))
        return median


def flink_query(query: Query, per_second: int) -> dict[str, Any]:
    """What Flink is given: a query, and the events that it is over."""
    return {
        "sql": query.flink,
        "ms": generator.time_ms(per_second),
        "views": {
            kind: (
                generator.is_kind(kind),
                generator.columns(kind, per_second, generator.FLINK_TIME),
            )
            for kind in generator.KINDS
        },
        "delay_s": DELAY_S,
    }


def _first_difference(found: Rows, wanted: Rows) -> str:
    """A row of each that the other has not, for whoever looks into it."""
    parts = []
    for what, some, others in (("it has", found, wanted), ("it lacks", wanted, found)):
        only = sorted(set(some) - set(others), key=repr)
        if only:
            parts.append(f"{what} {only[0]}")
    return f": {'; '.join(parts)}" if parts else ""


run = Nexmark.measure
