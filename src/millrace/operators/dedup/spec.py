"""A deduplication's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.dedup.layout import KIND
from millrace.operators.operator import Column


@dataclass(frozen=True)
class DedupDefinition:
    """Keys, and how long each is remembered."""

    keys: tuple[Column, ...]
    time: str
    """The clock that keys are forgotten by: event time, processing time, or never."""
    ttl_us: int = 0
    """How long after its row's time, or after the epoch in which it came, a key is forgotten."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [key.to_json() for key in self.keys],
            "time": self.time,
            "ttl": self.ttl_us,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> DedupDefinition:
        keys = tuple(Column.from_json(key) for key in data["keys"])
        return DedupDefinition(keys, data["time"], data["ttl"])
