"""Bytewax: `stateful_map` over keyed rows, in two processes of one worker each.

Recovery is on, with an epoch every second. Keys are strings, because Bytewax takes no others. Every
worker reads every other row, and counts those that reach its sink, which drops them.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import socket
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

from .job import (
    INTERVAL_S,
    PARALLELISM,
    Marks,
    amount_of,
    key_of,
    read_counts,
    write_counts,
)
from .workers import Jobs, arguments

BATCH = 1_000
"""Rows a source hands over at a time."""

Item = tuple[str, int]
Totals = tuple[int, int]


class NumbersPart(StatefulSourcePartition[Item, int]):  # type: ignore[misc]
    """Every other row, from one on."""

    def __init__(self, first: int, last: int, keys: int) -> None:
        self._next, self._last, self._keys = first, last, keys

    def next_batch(self) -> list[Item]:
        if self._next > self._last:
            raise StopIteration
        end = min(self._next + BATCH * PARALLELISM, self._last + 1)
        keys = self._keys
        batch = [(str(key_of(v, keys)), amount_of(v)) for v in range(self._next, end, PARALLELISM)]
        self._next += BATCH * PARALLELISM
        return batch

    def snapshot(self) -> int:
        return self._next


class Numbers(FixedPartitionedSource[Item, int]):  # type: ignore[misc]
    """The rows `first` to `last`; each process reads a part of its own."""

    def __init__(self, first: int, last: int, keys: int, process: int) -> None:
        self._first, self._last, self._keys, self._process = first, last, keys, process

    def list_parts(self) -> list[str]:
        return [str(self._process)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> NumbersPart:
        first = self._first + int(for_part) if resume_state is None else resume_state
        return NumbersPart(first, self._last, self._keys)


class CountingPart(StatelessSinkPartition[tuple[str, Totals]]):  # type: ignore[misc]
    """Counts what comes; with `kept`, remembers the last of every key."""

    def __init__(self, marks: Marks, worker: int, kept: dict[str, Totals] | None) -> None:
        self._marks, self._worker, self._kept = marks, worker, kept
        self._rows = 0

    def write_batch(self, items: list[tuple[str, Totals]]) -> None:
        self._rows += len(items)
        self._marks.put(self._worker, self._rows)
        if self._kept is not None:
            self._kept.update(items)


class Counting(DynamicSink[tuple[str, Totals]]):  # type: ignore[misc]
    def __init__(self, marks: Marks, kept: dict[str, Totals] | None) -> None:
        self._marks, self._kept = marks, kept

    def build(self, step_id: str, worker_index: int, worker_count: int) -> CountingPart:
        return CountingPart(self._marks, worker_index, self._kept)


def add(before: Totals | None, amount: int) -> tuple[Totals, Totals]:
    """A count and a sum."""
    n, total = before or (0, 0)
    after = n + 1, total + amount
    return after, after


class BytewaxSide:
    """`bytewax`."""

    def __init__(self, workdir: Path) -> None:
        self._jobs = Jobs("bytewax", workdir)

    def do_ready(self) -> dict[str, str]:
        return {"bytewax": importlib.metadata.version("bytewax")}

    def do_counted(self, rows: int, keys: int, path: str) -> int:
        folder = self._jobs.folder()
        jobs = self._workers(folder, 0, rows - 1, keys, keep=True)
        Marks(jobs[0]["marks"], PARALLELISM)
        self._jobs.finish(jobs, {})
        counts = [row for job in jobs for row in read_counts(job["keep"])]
        return write_counts(path, sorted(counts))

    def do_timed(self, keys: int, fill: bool, **measured: Any) -> dict[str, Any]:
        folder = self._jobs.folder()
        first = 0 if fill else keys
        jobs = self._workers(folder, first, first + 10**12, keys, keep=False)
        marks = Marks(jobs[0]["marks"], PARALLELISM)
        return {"windows": self._jobs.timed(jobs, {}, marks, fill=keys if fill else 0, **measured)}

    def close(self) -> None:
        """Nothing is left running."""

    def _workers(
        self, folder: Path, first: int, last: int, keys: int, *, keep: bool
    ) -> list[dict[str, Any]]:
        recovery = folder / "recovery"
        recovery.mkdir()
        init_db_dir(recovery, PARALLELISM)
        addresses = _addresses()
        return [
            {
                "first": first,
                "last": last,
                "keys": keys,
                "process": process,
                "addresses": addresses,
                "recovery": str(recovery),
                "marks": str(folder / "marks"),
                "keep": str(folder / f"counts-{process}") if keep else None,
            }
            for process in range(PARALLELISM)
        ]


def _addresses() -> list[str]:
    """A free port for every process."""
    taken = [socket.socket() for _ in range(PARALLELISM)]
    try:
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in taken]
    finally:
        for one in taken:
            one.close()


def main() -> None:
    """One process of a job."""
    given = arguments()
    kept: dict[str, Totals] | None = None if given["keep"] is None else {}
    source = Numbers(given["first"], given["last"], given["keys"], given["process"])
    flow = Dataflow("totals")
    rows = op.input("rows", flow, source)
    totals = op.stateful_map("totals", rows, add)
    op.output("dropped", totals, Counting(Marks(given["marks"], PARALLELISM), kept))
    cluster_main(
        flow,
        given["addresses"],
        given["process"],
        epoch_interval=dt.timedelta(seconds=INTERVAL_S),
        recovery_config=RecoveryConfig(given["recovery"]),
    )
    if kept is not None:
        write_counts(given["keep"], ((int(key), *totals) for key, totals in kept.items()))


if __name__ == "__main__":
    main()
