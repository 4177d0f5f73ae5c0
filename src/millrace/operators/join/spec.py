"""A join's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.operators.join.layout import KIND, LEFT
from millrace.operators.join.streams import columns_from_json, columns_to_json
from millrace.operators.operator import Column


@dataclass(frozen=True)
class JoinDefinition:
    """Keys, columns and the interval of a join.

    Rows with the same key are a pair if the right one's event time, less the left one's, is between
    `lower_us` and `upper_us`, both included.
    """

    keys: tuple[Column, ...]
    left: tuple[Column, ...]
    """The left stream's other columns."""
    right: tuple[Column, ...]
    lower_us: int
    upper_us: int
    how: str
    time: str = LEFT
    """Whose event time the output's is: the left row's, the right row's, or that of either."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            **columns_to_json(self),
            "within": {"lower": self.lower_us, "upper": self.upper_us},
            "how": self.how,
            "time": self.time,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> JoinDefinition:
        within = data["within"]
        return JoinDefinition(
            *columns_from_json(data), within["lower"], within["upper"], data["how"], data["time"]
        )
