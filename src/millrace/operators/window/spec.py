"""A window operator's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.operators.window.emission import Emission
from millrace.operators.window.layout import KIND
from millrace.operators.window.panes import Windows


@dataclass(frozen=True)
class WindowDefinition:
    """Keys, windows, aggregates and emission of an operator."""

    keys: tuple[Column, ...]
    windows: Windows
    aggregates: tuple[AggregateSpec, ...]
    emission: Emission
    lengths: tuple[int, ...] = ()
    """The sizes of all windows if there are several, in order. `windows` are then the longest."""

    @property
    def each(self) -> tuple[Windows, ...]:
        """The windows of each length."""
        return self.windows.of_lengths(self.lengths) if self.lengths else (self.windows,)

    def to_json(self) -> dict[str, Any]:
        tiles = {"lengths": list(self.lengths)} if self.lengths else {}
        return {
            "kind": KIND,
            "keys": [key.to_json() for key in self.keys],
            "aggregates": [aggregate.to_json() for aggregate in self.aggregates],
            "window": self.windows.to_json(),
            "emit": {"mode": self.emission.mode, "period": self.emission.period_us},
            **tiles,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> WindowDefinition:
        return WindowDefinition(
            tuple(Column.from_json(key) for key in data["keys"]),
            Windows.from_json(data["window"]),
            tuple(AggregateSpec.from_json(aggregate) for aggregate in data["aggregates"]),
            Emission(data["emit"]["mode"], data["emit"]["period"]),
            tuple(data.get("lengths", ())),
        )


WINDOW_TYPE = T.StructType(
    [T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())]
)
"""The type of the column `window`, as Spark's."""


def columns(fields: Sequence[T.StructField]) -> tuple[Column, ...]:
    """The columns of a stream."""
    return tuple(Column(field.name, field.dataType) for field in fields)
