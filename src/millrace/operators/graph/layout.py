"""What the operators on graphs keep, and what a reader shows of it. Pure Arrow.

* adjacency: the main table has a row per vertex with its degree; `neighbours` has a row per vertex
  and neighbour, which belongs to the vertex.
* components: a row per vertex with the smallest vertex of its component. Every shard reads all
  of it, and writes its own key groups.
* triangles: the main table has a row per part of the graph, with its edges and triangles. Beside
  it are the edges of each part, by vertex, and how many a vertex has there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace import types
from millrace.operators.operator import MAIN, ResultColumn, StateLayout, TableLayout

ADJACENCY, COMPONENTS, TRIANGLES = "adjacency", "components", "triangles"
"""The kinds of operators."""

VERTEX, NEIGHBOUR = "vertex", "neighbour"
NEIGHBOURS = "neighbours"
"""The table of neighbours, and the output with its changes."""
OUTGOING = "outgoing"
"""Of a directed graph: whether an edge leads from the vertex to its neighbour."""
DEGREE, IN_DEGREE, OUT_DEGREE = "degree", "in_degree", "out_degree"
PREVIOUS = "previous_degree"
ADDED = "added"

COMPONENT, SIDE = "component", "side"
LABEL_HI, LABEL_LO = "graph.hi", "graph.lo"
"""The fingerprint of the vertex that a component is called after."""

PART, EDGES, COUNT, CHANGE = "part", "edges", "triangles", "change"
CORNERS = "corners"
"""The output with the change of each vertex's triangles."""
VERTICES = "vertices"
"""The table of the vertices of parts."""
OTHER_HI, OTHER_LO, COLOUR = "graph.other_hi", "graph.other_lo", "graph.colour"
"""A neighbour's fingerprint and colour."""
MOST_COLOURS = 16

_COUNT = pa.int64()
_WORD = pa.uint64()


def degree_names(directed: bool) -> tuple[str, ...]:
    """The columns of a vertex."""
    return (DEGREE, IN_DEGREE, OUT_DEGREE) if directed else (DEGREE,)


def adjacency_tables(vertex: pa.DataType, directed: bool) -> dict[str, TableLayout]:
    """The vertices and their neighbours."""
    degrees = [pa.field(name, _COUNT) for name in degree_names(directed)]
    ends = [pa.field(VERTEX, vertex), pa.field(NEIGHBOUR, vertex)]
    way = [pa.field(OUTGOING, pa.bool_())] if directed else []
    return {
        MAIN: TableLayout(pa.schema([pa.field(VERTEX, vertex), *degrees])),
        NEIGHBOURS: TableLayout(pa.schema([*ends, *way]), owned=True),
    }


def component_tables(vertex: pa.DataType, sides: bool) -> dict[str, TableLayout]:
    """The vertices with their components."""
    fields = [pa.field(VERTEX, vertex), pa.field(COMPONENT, vertex)]
    fields += [pa.field(SIDE, pa.int32())] if sides else []
    fields += [pa.field(LABEL_HI, _WORD), pa.field(LABEL_LO, _WORD)]
    return {MAIN: TableLayout(pa.schema(fields), everywhere=True)}


def triangle_tables(vertex: pa.DataType) -> dict[str, TableLayout]:
    """The parts, their edges and their vertices."""
    part = pa.field(PART, pa.int32())
    other = [pa.field(OTHER_HI, _WORD), pa.field(OTHER_LO, _WORD), pa.field(COLOUR, pa.int32())]
    return {
        MAIN: TableLayout(pa.schema([part, pa.field(EDGES, _COUNT), pa.field(COUNT, _COUNT)])),
        NEIGHBOURS: TableLayout(pa.schema([pa.field(NEIGHBOUR, vertex), *other]), owned=True),
        VERTICES: TableLayout(pa.schema([pa.field(DEGREE, _COUNT)])),
    }


def describe_adjacency(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    return _shown(adjacency_tables(keys[0].type, spec["directed"]))


def describe_components(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    return _shown(component_tables(keys[0].type, spec["sides"]))


def describe_triangles(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    return _shown(triangle_tables(types.arrow_of(spec["vertex"]["type"], "a vertex")))


def _shown(tables: dict[str, TableLayout]) -> StateLayout:
    """What is stored is what is shown, but for what only operators need."""
    shown = [
        ResultColumn(field.name, field.type, (field.name,))
        for field in tables[MAIN].schema
        if field.name not in (LABEL_HI, LABEL_LO)
    ]
    return StateLayout(tables, lambda moment: shown)
