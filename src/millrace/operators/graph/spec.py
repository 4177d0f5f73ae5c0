"""Specs of the operators on graphs: what a location keeps, and what a worker needs to make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from millrace.operators.graph.layout import ADJACENCY, COMPONENTS, PART, TRIANGLES, VERTEX
from millrace.operators.operator import Column

PART_COLUMN = Column(PART, T.IntegerType())


def vertex_column(vertex: T.DataType) -> Column:
    """Vertices, whatever their columns were called in the stream of edges."""
    return Column(VERTEX, vertex)


@dataclass(frozen=True)
class AdjacencyDefinition:
    """The type of vertices, and whether edges have a direction."""

    vertex: T.DataType
    directed: bool = False

    def to_json(self) -> dict[str, Any]:
        keys = [vertex_column(self.vertex).to_json()]
        return {"kind": ADJACENCY, "keys": keys, "directed": self.directed}

    @staticmethod
    def from_json(data: dict[str, Any]) -> AdjacencyDefinition:
        return AdjacencyDefinition(Column.from_json(data["keys"][0]).type, data["directed"])


@dataclass(frozen=True)
class ComponentsDefinition:
    """The type of vertices, and whether each is to be on one of two sides."""

    vertex: T.DataType
    sides: bool = False

    def to_json(self) -> dict[str, Any]:
        keys = [vertex_column(self.vertex).to_json()]
        return {"kind": COMPONENTS, "keys": keys, "sides": self.sides}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ComponentsDefinition:
        return ComponentsDefinition(Column.from_json(data["keys"][0]).type, data["sides"])


@dataclass(frozen=True)
class TrianglesDefinition:
    """The type of vertices, how many colours they have, and which edges are counted."""

    vertex: T.DataType
    colours: int
    sample: float = 1.0
    """The share of edges that are kept."""
    corners: bool = False
    """Whether the changes of each vertex are emitted."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": TRIANGLES,
            "keys": [PART_COLUMN.to_json()],
            "vertex": vertex_column(self.vertex).to_json(),
            "colours": self.colours,
            "sample": self.sample,
            "corners": self.corners,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TrianglesDefinition:
        vertex = Column.from_json(data["vertex"]).type
        return TrianglesDefinition(vertex, data["colours"], data["sample"], data["corners"])
