"""Pathway: `groupby` and `reduce` on two threads, in its Rust engine.

Rows are sent as messages of many numbers each, which the engine takes apart: one by one, Python's
side of a source would be what is measured. Keys and amounts are computed by the engine. Every
second it persists its input; to persist the state of operators instead needs a license key. Changes
go to the null sink; a few keys of the output are looked at to learn which commits are through, and
the rows of a commit are those of its messages.
"""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path
from typing import Any

import pathway as pw

from .job import AMOUNTS, FACTOR, INTERVAL_S, PARALLELISM, PRIME, SHIFT, Marks, write_counts
from .workers import Jobs, arguments

MESSAGE = 1_000
"""Rows of a message."""
BACKLOG, COMMIT_MS = 1_000, 200
"""Messages that are not through yet, at most: a commit's. While rows keep coming the engine does
not commit, however much time has passed; it does when the backlog keeps them from coming."""
LOOKED_AT = 16
"""Keys of the output that are looked at."""
ENVIRONMENT = {"PATHWAY_THREADS": str(PARALLELISM), "PATHWAY_PROCESSES": "1"}


class Message(pw.Schema):  # type: ignore[misc]
    numbers: tuple[int, ...]


class Numbers(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The rows `first` to `last`, in messages."""

    deletions_enabled = False

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._first, self._last = first, last

    def run(self) -> None:
        for begin in range(self._first, self._last + 1, MESSAGE):
            self.next(numbers=tuple(range(begin, min(begin + MESSAGE, self._last + 1))))


class PathwaySide:
    """`pathway`."""

    def __init__(self, workdir: Path) -> None:
        self._jobs = Jobs("pathway", workdir)

    def do_ready(self) -> dict[str, str]:
        return {"pathway": importlib.metadata.version("pathway")}

    def do_counted(self, rows: int, keys: int, path: str) -> int:
        folder = self._jobs.folder()
        job = _job(folder, 0, rows - 1, keys) | {"keep": path}
        self._jobs.finish([job], ENVIRONMENT)
        return Path(path).stat().st_size // 24

    def do_timed(self, keys: int, fill: bool, **measured: Any) -> dict[str, Any]:
        folder = self._jobs.folder()
        first = 0 if fill else keys
        job = _job(folder, first, first + 10**12, keys)
        marks = Marks(job["marks"], 1)
        needed = keys if fill else 0
        return {"windows": self._jobs.timed([job], ENVIRONMENT, marks, fill=needed, **measured)}

    def close(self) -> None:
        """Nothing is left running."""


def _job(folder: Path, first: int, last: int, keys: int) -> dict[str, Any]:
    return {
        "first": first,
        "last": last,
        "keys": keys,
        "state": str(folder / "state"),
        "marks": str(folder / "marks"),
        "keep": None,
    }


def totals_of(messages: Any, keys: int) -> Any:
    """Count and sum per key, as a table of `k`, `n` and `total`."""
    rows = messages.flatten(messages.numbers).select(v=pw.this.numbers)
    x = (pw.this.v * FACTOR + SHIFT) % PRIME
    drawn = x * x % PRIME % keys
    rows = rows.select(k=pw.if_else(pw.this.v < keys, pw.this.v, drawn), amount=pw.this.v % AMOUNTS)
    return rows.groupby(pw.this.k).reduce(
        pw.this.k, n=pw.reducers.count(), total=pw.reducers.sum(pw.this.amount)
    )


class Progress:
    """Which commits are through, and how many rows they had."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._rows: dict[int, int] = {}

    def taken(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            self._rows[time] = row["messages"] * MESSAGE

    def ignore(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        pass

    def through(self, commit: int) -> None:
        done = [time for time in self._rows if time <= commit]
        if done:
            self._marks.put(0, max(self._rows.pop(one) for one in done), time.time())


def main() -> None:
    """A job."""
    given = arguments()
    messages = pw.io.python.read(
        Numbers(given["first"], given["last"]),
        schema=Message,
        autocommit_duration_ms=COMMIT_MS,
        max_backlog_size=BACKLOG,
        name="numbers",
    )
    totals = totals_of(messages, given["keys"])
    final: dict[int, tuple[int, int]] = {}
    if given["keep"] is None:
        progress = Progress(Marks(given["marks"], 1))
        pw.io.null.write(totals)
        counted = messages.reduce(messages=pw.reducers.count())
        pw.io.subscribe(counted, on_change=progress.taken)
        looked_at = totals.filter(pw.this.k < LOOKED_AT)
        pw.io.subscribe(looked_at, on_change=progress.ignore, on_time_end=progress.through)
    else:

        def keep(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
            if is_addition:
                final[row["k"]] = row["n"], row["total"]

        pw.io.subscribe(totals, on_change=keep)
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(given["state"]),
            snapshot_interval_ms=round(INTERVAL_S * 1000),
            persistence_mode=pw.PersistenceMode.PERSISTING,
        ),
    )
    if given["keep"] is not None:
        write_counts(given["keep"], ((key, *final[key]) for key in sorted(final)))


if __name__ == "__main__":
    main()
