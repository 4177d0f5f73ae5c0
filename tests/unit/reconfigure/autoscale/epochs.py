"""Epochs whose costs a test knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.reconfigure.autoscale.history import History
from millrace.reconfigure.autoscale.observing import (
    HotGroup,
    Observation,
    OperatorLoad,
    ShardLoad,
)


@dataclass
class Epochs:
    """Epochs of one second each, of operators with known costs per row."""

    per_row: Mapping[str, float] = field(default_factory=lambda: {"totals": 1e-4})
    fixed: float = 0.01
    rest: float = 0.1
    hot: Mapping[str, tuple[HotGroup, ...]] = field(default_factory=dict)
    history: History = field(default_factory=History)
    now: float = 1000.0
    number: int = 0

    def run(
        self,
        epochs: int,
        rows: int,
        shards: int | Mapping[str, int],
        *,
        heaviest: Mapping[str, float] | None = None,
        interval: float = 1.0,
        **more: Any,
    ) -> History:
        """Some epochs of `rows` rows for each operator; their shards are even unless said."""
        for _ in range(epochs):
            loads = []
            for name, cost in self.per_row.items():
                n = shards if isinstance(shards, int) else shards[name]
                share = (heaviest or {}).get(name, 1 / n)
                parts = [round(rows * share)]
                parts += [round(rows * (1 - share) / (n - 1))] * (n - 1) if n > 1 else []
                loads.append(
                    OperatorLoad(
                        name,
                        tuple(ShardLoad(part, self.fixed + cost * part) for part in parts),
                        self.hot.get(name, ()),
                    )
                )
            self.now += interval
            self.number += 1
            seconds = self.rest + sum(load.slowest for load in loads)
            cores = max(len(load.shards) for load in loads)
            facts = {"cores": cores, "executors": cores, **more}
            seen = Observation(
                self.number, self.now, seconds, interval, rows, tuple(loads), **facts
            )
            self.history = self.history.add(seen)
        return self.history
