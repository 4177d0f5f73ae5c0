"""Epochs of a keyed count: create the keys, and sum up what a side reports of the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from millrace_lab.bench._contract import Result
from millrace_lab.bench._side_process import SideHandle

Epochs = list[dict[str, Any]]
"""One entry per epoch: `rows`, `ms`, `parts` and more, see `_sides.engine.Engine._epochs`."""


def create_keys(
    side: SideHandle, name: str, keys: int, at_once: int, step: Callable[[int], None] | None = None
) -> None:
    """Create every key once, by epochs of `at_once` rows; `step` gets how many are to come."""
    for first in range(0, keys, at_once):
        if step is not None:
            step(keys - first)
        side.call("once", name=name, rows=min(at_once, keys - first), keys=keys, key="value")


def median_ms(samples: Epochs) -> float:
    return float(statistics.median(epoch["ms"] for epoch in samples))


def add_breakdown(result: Result, prefix: str, samples: Epochs) -> None:
    """The median of every part: Spark's `durationMs`, and Millrace's own phases.

    `phase.*` is the driver's side of `addBatch`; `shard.*` is inside `phase.run`, and is the
    slowest shard's.
    """
    for part in dict.fromkeys(part for epoch in samples for part in epoch["parts"]):
        values = [epoch["parts"].get(part, 0.0) for epoch in samples]
        result.figure(f"{prefix}.{part}", statistics.median(values))
