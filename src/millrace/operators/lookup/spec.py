"""A lookup's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.join.layout import LEFT
from millrace.operators.join.streams import columns_from_json, columns_to_json
from millrace.operators.lookup.layout import KIND
from millrace.operators.operator import Column


@dataclass(frozen=True)
class LookupDefinition:
    """Keys and columns of a lookup."""

    keys: tuple[Column, ...]
    left: tuple[Column, ...]
    """The left stream's other columns."""
    right: tuple[Column, ...]
    how: str = LEFT

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            **columns_to_json(self),
            "how": self.how,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> LookupDefinition:
        return LookupDefinition(*columns_from_json(data), data["how"])
