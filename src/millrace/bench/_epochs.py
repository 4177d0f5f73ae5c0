"""Epochs as a peer reports them, and what is made of them."""

from __future__ import annotations

import statistics
from typing import Any

from millrace.bench._contract import Result

Epochs = list[dict[str, Any]]
"""One entry per epoch: `rows`, `ms`, `parts` and more, see `_peers.engine.Engine._epochs`."""


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
