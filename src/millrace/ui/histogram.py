"""A histogram of seconds: how many were at most how long, and their sum."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds; the last bucket has none."""


@dataclass
class Histogram:
    """Counts of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Each bound, and how many were not longer."""
        return zip((*BUCKETS, float("inf")), itertools.accumulate(self.counts), strict=True)
