"""A session operator's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.operators.session.layout import KIND
from millrace.operators.window.emission import Emission


@dataclass(frozen=True)
class SessionDefinition:
    """Keys, gap, aggregates and emission of an operator."""

    keys: tuple[Column, ...]
    gap_us: int
    """A session ends this long after its last row."""
    aggregates: tuple[AggregateSpec, ...]
    emission: Emission

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [key.to_json() for key in self.keys],
            "aggregates": [aggregate.to_json() for aggregate in self.aggregates],
            "gap": self.gap_us,
            "emit": {"mode": self.emission.mode, "period": self.emission.period_us},
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> SessionDefinition:
        return SessionDefinition(
            tuple(Column.from_json(key) for key in data["keys"]),
            data["gap"],
            tuple(AggregateSpec.from_json(aggregate) for aggregate in data["aggregates"]),
            Emission(data["emit"]["mode"], data["emit"]["period"]),
        )
