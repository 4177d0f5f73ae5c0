"""Latency by event, from what a query leaves in its checkpoint. Pure, except for reading files.

The source is open loop: `SOURCES` of Spark's own rate sources, each of which makes the rows of a
second when that second is over, started a part of a second after each other. So when a row was made
follows from its number, and which rows a batch had follows from Spark's offset log. A batch is done
when Spark's commit log says so. Both are files, written alike by every query, and are there after
restarts and kills.

A row's latency is from its making, before the source shows it, to the commit of its batch.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.arrays import BoolArray, Float64Array
from millrace_lab.bench._contract import BenchmarkError

SOURCES = 4
SAMPLES = 25
"""Rows of each second of a source that stand for all of them."""


@dataclass(frozen=True)
class Point:
    """One committed batch with rows."""

    batch: int
    committed: float
    """Seconds since 1970."""
    begins: tuple[int, ...]
    """The first second of each source that is in it."""
    ends: tuple[int, ...]
    planned: float
    """When Spark decided what is in it, right after its trigger."""

    @property
    def seconds(self) -> int:
        """How many seconds of single sources it has."""
        return sum(self.ends) - sum(self.begins)


def read_ends(checkpoint: Path, batch: int) -> tuple[int, ...]:
    """The second of each source at which a batch ends."""
    return _read_plan(checkpoint, batch)[1]


def _read_plan(checkpoint: Path, batch: int) -> tuple[float, tuple[int, ...]]:
    """When a batch was planned, and where its sources end. A file's time lags by some ms."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    ends = tuple(int(line) if line.strip() != "-" else 0 for line in lines[-SOURCES:])
    return json.loads(lines[1])["batchTimestampMs"] / 1e3, ends


def read_points(checkpoint: Path) -> list[Point]:
    """The batches of a query, in order. Its first source is not a rate source and is left out."""
    before = (0,) * SOURCES
    points = []
    commits = checkpoint / "commits"
    for batch in sorted(int(p.name) for p in commits.iterdir() if p.name.isdigit()):
        planned, ends = _read_plan(checkpoint, batch)
        if ends != before:
            committed = (commits / str(batch)).stat().st_mtime_ns / 1e9
            points.append(Point(batch, committed, before, ends, planned))
        before = ends
    return points


@dataclass(frozen=True)
class Spread:
    """Latencies of some rows, in seconds."""

    p50: float
    p99: float
    max: float

    @staticmethod
    def of(latencies: Float64Array) -> Spread:
        if not len(latencies):
            raise BenchmarkError(
                "no row was made and committed in a part of the run: its epochs take longer than "
                "it lasts. Choose a lower --rate, or an idle machine."
            )
        p50, p99 = np.percentile(latencies, [50, 99])
        return Spread(float(p50), float(p99), float(latencies.max()))


class Timeline:
    """The batches of one run."""

    def __init__(self, points: Sequence[Point], started: float, rate: float) -> None:
        """`started` is when the first source began; `rate` is of all sources."""
        self.points = list(points)
        self.started = started
        self.rate = rate
        made, shown, done = [], [], []
        for point in self.points:
            rows = self._made(point)
            made.append(rows)
            shown.append(self._shown_at(point))
            done.append(np.full(len(rows), point.committed))
        self._created: Float64Array = np.concatenate(made) if made else np.zeros(0)
        self._shown: Float64Array = np.concatenate(shown) if shown else np.zeros(0)
        self._committed: Float64Array = np.concatenate(done) if done else np.zeros(0)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Timeline:
        points = [
            Point(p["batch"], p["committed"], tuple(p["begins"]), tuple(p["ends"]), p["planned"])
            for p in data["points"]
        ]
        return Timeline(points, data["started"], data["rate"])

    def _made(self, point: Point) -> Float64Array:
        return self._moments(point, (np.arange(SAMPLES) + 0.5) / SAMPLES)

    def _shown_at(self, point: Point) -> Float64Array:
        """When the sources show the rows: at the end of their second."""
        return self._moments(point, np.ones(SAMPLES))

    def _moments(self, point: Point, within: Float64Array) -> Float64Array:
        parts = [
            (np.arange(begin, end)[:, None] + within).ravel() + number / SOURCES
            for number, (begin, end) in enumerate(zip(point.begins, point.ends, strict=True))
        ]
        return self.started + np.concatenate(parts)

    def rows(self, points: Sequence[Point]) -> float:
        return sum(p.seconds for p in points) * self.rate / SOURCES

    def first_commit(self, since: float) -> float:
        """When the first batch was committed after a time."""
        return next(p.committed for p in self.points if p.committed >= since)

    def before(self, since: float, until: float) -> Float64Array:
        """Latencies of rows made after `since` whose batch was done before `until`."""
        return self._latencies((self._created >= since) & (self._committed < until))

    def during(self, since: float, until: float) -> Float64Array:
        """Latencies of rows of which some time between making and commit is in here."""
        return self._latencies((self._committed >= since) & (self._created <= until))

    def after(self, since: float, until: float) -> Float64Array:
        """Latencies of rows made after `since` and before `until`."""
        return self._latencies((self._created > since) & (self._created < until))

    def shown(self, since: float, until: float) -> Float64Array:
        """Of rows that were shown in between: from the source showing them to their commit."""
        chosen = (self._shown > since) & (self._shown < until)
        return (self._committed - self._shown)[chosen]

    def _latencies(self, chosen: BoolArray) -> Float64Array:
        return (self._committed - self._created)[chosen]

    def _window(self, since: float, until: float) -> list[Point]:
        """The batch before `since`, and all up to the first that ends at `until` or later."""
        done = [n for n, p in enumerate(self.points) if p.committed < since]
        first = done[-1] if done else 0
        last = next(
            (n for n, p in enumerate(self.points) if p.committed >= until), len(self.points) - 1
        )
        return self.points[first : last + 1]

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between commits, from the one before `since` to the first after `until`."""
        window = self._window(since, until)
        return [b.committed - a.committed for a, b in itertools.pairwise(window)]

    def throughput(self, since: float, until: float) -> float:
        """Rows per second that were committed."""
        first, *others = self._window(since, until)
        return self.rows(others) / (others[-1].committed - first.committed)

    def missed(self, since: float, until: float, trigger: float) -> int:
        """How many triggers passed without a batch of their own.

        Spark triggers at whole multiples of the interval. A batch that outlasts it delays the next
        one, which then starts at once: that is late, and seen in the latencies. Only when none
        starts before the trigger after that one has an epoch been left out.
        """
        had = {int(p.planned // trigger) for p in self.points}
        window = self._window(since, until)
        first, last = (int(p.planned // trigger) for p in (window[0], window[-1]))
        return sum(tick not in had for tick in range(first, last))

    def series(self, origin: float) -> list[list[float]]:
        """Per batch: when it was done, and the least, mean and largest latency of its rows."""
        found = []
        for point in self.points:
            latencies = point.committed - self._made(point)
            values = (point.committed - origin, latencies.min(), latencies.mean(), latencies.max())
            found.append([round(float(value), 4) for value in values])
        return found

    def recovered(self, since: float, within: float, in_a_row: int = 3) -> float | None:
        """Seconds until some batches in a row have all their latencies below a bound again."""
        later = [p for p in self.points if p.committed >= since]
        good = [bool((p.committed - self._made(p)).max() <= within) for p in later]
        for n, point in enumerate(later[: len(later) - in_a_row + 1]):
            if all(good[n : n + in_a_row]):
                return point.committed - since
        return None


def medians(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Part by part; a part that a batch does not have took it no time."""
    names = dict.fromkeys(name for batch in batches for name in batch)
    return {
        name: float(statistics.median(batch.get(name, 0.0) for batch in batches)) for name in names
    }
