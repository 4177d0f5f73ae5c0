"""An as-of join's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.as_of.layout import KIND
from millrace.operators.join.streams import columns_from_json, columns_to_json
from millrace.operators.operator import Column


@dataclass(frozen=True)
class AsOfDefinition:
    """Keys, columns and the tolerance of an as-of join."""

    keys: tuple[Column, ...]
    left: tuple[Column, ...]
    """The left stream's other columns."""
    right: tuple[Column, ...]
    tolerance_us: int | None = None
    """How much older than a left row its right row may be; None for any age."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            **columns_to_json(self),
            "tolerance": self.tolerance_us,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> AsOfDefinition:
        return AsOfDefinition(*columns_from_json(data), data["tolerance"])
