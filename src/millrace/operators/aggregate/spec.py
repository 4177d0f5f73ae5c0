"""An aggregate's spec: what a location keeps of its key and its functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace import types
from millrace.operators.operator import Column

if TYPE_CHECKING:
    from pyspark.sql import types as T

KIND = "aggregate"


@dataclass(frozen=True)
class AggregateSpec:
    """One aggregate, resolved: what it computes, of what, and of which type."""

    name: str
    function: str
    of: str
    type: T.DataType
    options: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "of": self.of,
            "type": types.to_json(self.type),
            "options": dict(self.options),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> AggregateSpec:
        return AggregateSpec(
            data["name"],
            data["function"],
            data["of"],
            types.from_json(data["type"]),
            tuple(sorted(data["options"].items())),
        )

    def __str__(self) -> str:
        return f"{self.name} = {self.function}({self.of}) over {self.type.simpleString()}"


def to_json(keys: Sequence[Column], aggregates: Sequence[AggregateSpec]) -> dict[str, Any]:
    return {
        "kind": KIND,
        "keys": [key.to_json() for key in keys],
        "aggregates": [aggregate.to_json() for aggregate in aggregates],
    }
