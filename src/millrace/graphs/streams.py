"""Operators over edges: what they keep per vertex is state as any other, and so is what they emit.

Rows are made ready for an operator in the JVM: an edge for both of its ends, or for the parts of
the graph that it is in.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.api.origin import origin, then
from millrace.api.stream import Stream
from millrace.errors import GraphError
from millrace.graphs.edges import FIRST, REMOVED, SECOND, Edges
from millrace.ids import OperatorName
from millrace.operators.aggregate.functions import sum as total
from millrace.operators.graph.adjacency import AdjacencyOperator
from millrace.operators.graph.components import ComponentsOperator
from millrace.operators.graph.layout import (
    CHANGE,
    CORNERS,
    COUNT,
    DEGREE,
    MOST_COLOURS,
    NEIGHBOUR,
    NEIGHBOURS,
    OUTGOING,
    PART,
    PREVIOUS,
    VERTEX,
)
from millrace.operators.graph.spec import (
    AdjacencyDefinition,
    ComponentsDefinition,
    TrianglesDefinition,
)
from millrace.operators.graph.triangles import TrianglesOperator
from millrace.spark.exchange import RowExchange, StreamColumns
from millrace.spark.graphs import ComponentsExchange
from millrace.spark.steps import OperatorStep

COLOURS = 3
"""Of triangles: ten parts, and each edge in three of them."""

_FLAG, _INT = T.BooleanType(), T.IntegerType()
_COLOURS = ("_first_colour", "_second_colour")
_SAMPLE_SALT = 0x67726170
_COLOUR_SALT = 0x68757565
_MANTISSA = 53
"""The bits of a hash that are compared with a share."""
_GRAPH = "graph"


def degrees(edges: Edges, *, name: str | None = None) -> Stream:
    """The degree of each vertex; emits, per epoch, the vertices whose degree changed.

    A row has `vertex`, `degree` and `previous_degree`, which is NULL for a new vertex; of a
    directed graph also `in_degree` and `out_degree`. The neighbours are kept too:
    `.side("neighbours")` has their changes. `name` identifies the operator's state.
    """
    _check_edges(edges, "degrees()")
    operator_name = origin(edges.stream).new_name("degrees", name)
    return _adjacency(edges, operator_name)


def neighbours(edges: Edges, *, name: str | None = None) -> Stream:
    """The neighbours of each vertex; emits, per epoch, the edges that came or went, at both ends.

    A row has `vertex`, `neighbour` and whether it was `added`; of a directed graph also `outgoing`.
    Its state is that of `degrees`, and `graphs.read` looks vertices up in it.
    """
    _check_edges(edges, "neighbours()")
    operator_name = origin(edges.stream).new_name("neighbours", name)
    return _adjacency(edges, operator_name).side(NEIGHBOURS)


def _adjacency(edges: Edges, name: OperatorName) -> Stream:
    def at_both_ends(df: DataFrame) -> DataFrame:
        ends = [(FIRST, SECOND, True), (SECOND, FIRST, False)]
        both = [
            F.struct(
                F.col(here).alias(VERTEX),
                F.col(there).alias(NEIGHBOUR),
                F.col(REMOVED),
                F.lit(outgoing).alias(OUTGOING),
            )
            for here, there, outgoing in ends
        ]
        return df.select(F.inline(F.array(*both)))

    rows = edges.stream.transform(at_both_ends)
    operator = AdjacencyOperator(name, AdjacencyDefinition(edges.vertex, edges.directed))
    fields = [(F.col(NEIGHBOUR), edges.vertex), (F.col(REMOVED), _FLAG)]
    fields += [(F.col(OUTGOING), _FLAG)] if edges.directed else []
    exchange = RowExchange(StreamColumns([(F.col(VERTEX), edges.vertex)], fields))
    return then(rows, operator.output_schema, OperatorStep(operator, exchange))


def degree_distribution(degrees: Stream, *, name: str | None = None) -> Stream:
    """How many vertices have each degree, from what `degrees` returned.

    Emits, per epoch, the degrees whose number of `vertices` changed, 0 included.
    """
    wanted = (DEGREE, PREVIOUS)
    given: object = degrees
    if not (isinstance(given, Stream) and {*wanted} <= {*given.schema.names}):
        raise GraphError(
            "degree_distribution() takes what degrees() returned, with its columns "
            f"{DEGREE!r} and {PREVIOUS!r}."
        )

    def moves(df: DataFrame) -> DataFrame:
        steps = [
            F.struct(F.col(column).alias(DEGREE), F.lit(change).cast("long").alias(CHANGE))
            for column, change in zip(wanted, (1, -1), strict=True)
        ]
        return df.select(F.inline(F.array(*steps))).where(F.col(DEGREE).isNotNull())

    operator_name = origin(degrees).new_name("degree-distribution", name)
    counted = degrees.transform(moves).key_by(DEGREE)
    return counted.aggregate(name=operator_name, vertices=total(CHANGE))


def components(edges: Edges, *, name: str | None = None) -> Stream:
    """The connected component of each vertex, named after its smallest vertex.

    Emits, per epoch, the vertices whose `component` changed. Edges can be added, not removed.
    Directions do not matter.
    """
    return _components(edges, "components", name, sides=False)


def bipartite(edges: Edges, *, name: str | None = None) -> Stream:
    """The component of each vertex and its side, 0 or 1, such that edges lead to the other side.

    `side` is NULL in a component that has no two such sides. The smallest vertex of a component is
    on side 0. Edges can be added, not removed.
    """
    return _components(edges, "bipartite", name, sides=True)


def _components(edges: Edges, what: str, name: str | None, *, sides: bool) -> Stream:
    _check_edges(edges, f"{what}()")
    if edges.has_removals:
        raise GraphError(
            f"{what}() cannot take edges that are removed: what a component falls apart into does "
            "not follow from what is kept. Give edges() without removed=."
        )
    operator = ComponentsOperator(
        origin(edges.stream).new_name(what, name), ComponentsDefinition(edges.vertex, sides)
    )
    exchange = ComponentsExchange(operator, F.col(FIRST), F.col(SECOND))
    return then(edges.stream, operator.output_schema, OperatorStep(operator, exchange))


def triangles(edges: Edges, *, colours: int = COLOURS, name: str | None = None) -> Stream:
    """How many triangles each vertex is a corner of; emits, per epoch, those that changed.

    Directions and loops do not matter. The edges are kept in parts, by an operator of its own
    called `<name>-parts`: with more `colours`, more shards can work on them, and each edge is in
    more parts.
    """
    operator_name = _name(edges, "triangles", name)
    found = _parts(edges, operator_name, colours, 1.0, corners=True)
    corners = found.side(CORNERS).key_by(VERTEX)
    return corners.aggregate(name=operator_name, emit="update", **{COUNT: total(CHANGE)})


def triangle_count(
    edges: Edges,
    *,
    sample: float | None = None,
    colours: int = COLOURS,
    name: str | None = None,
) -> Stream:
    """How many triangles the graph has; emits one row in each epoch in which that changed.

    With `sample`, a share such as 0.1, only that share of the edges is kept, always the same, and
    `triangles` is an estimate: what they form, divided by the share three times.
    """
    operator_name = _name(edges, "triangle-count", name)
    share = 1.0 if sample is None else sample
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise GraphError(
            f"triangle_count(sample={sample!r}): give the share of edges to keep, above 0 and at "
            "most 1."
        )
    found = _parts(edges, operator_name, colours, float(share), corners=False)
    # All changes of an epoch have one key.
    whole = found.transform(lambda df: df.select(F.lit(0).alias(_GRAPH), CHANGE)).key_by(_GRAPH)
    counted = whole.aggregate(name=operator_name, emit="update", **{COUNT: total(CHANGE)})
    if sample is None:
        return counted.transform(lambda df: df.select(COUNT))
    scale = F.col(COUNT) / F.lit(float(share) ** 3)
    return counted.transform(lambda df: df.select(scale.alias(COUNT)))


def _name(edges: Edges, kind: str, name: str | None) -> OperatorName:
    _check_edges(edges, f"{kind.replace('-', '_')}()")
    return origin(edges.stream).new_name(kind, name)


def _parts(
    edges: Edges, name: OperatorName, colours: int, share: float, *, corners: bool
) -> Stream:
    """The operator that counts triangles in parts of the graph."""
    if type(colours) is not int or not 1 <= colours <= MOST_COLOURS:
        raise GraphError(f"colours={colours!r}: give a whole number from 1 to {MOST_COLOURS}.")
    ends = [F.col(FIRST), F.col(SECOND)]
    coloured = [F.pmod(F.xxhash64(F.lit(_COLOUR_SALT), end), F.lit(colours)) for end in ends]
    is_counted = ends[0] != ends[1]
    if share < 1:
        hashed = F.xxhash64(F.lit(_SAMPLE_SALT), F.least(*ends), F.greatest(*ends))
        top = F.shiftrightunsigned(hashed, 64 - _MANTISSA)
        is_counted &= top < F.lit(int(share * (1 << _MANTISSA)))

    def in_parts(df: DataFrame) -> DataFrame:
        columns = [c.cast("int").alias(n) for n, c in zip(_COLOURS, coloured, strict=True)]
        rows = df.where(is_counted).select(*ends, F.col(REMOVED), *columns)
        parts = F.array(*(_part(third, colours) for third in range(colours)))
        return rows.select("*", F.explode(parts).alias(PART))

    definition = TrianglesDefinition(edges.vertex, colours, share, corners)
    rows = edges.stream.transform(in_parts)
    operator = TrianglesOperator(origin(rows).new_name("parts", f"{name}-parts"), definition)
    fields = [(end, edges.vertex) for end in ends] + [(F.col(REMOVED), _FLAG)]
    fields += [(F.col(colour), _INT) for colour in _COLOURS]
    exchange = RowExchange(StreamColumns([(F.col(PART), _INT)], fields))
    return then(rows, operator.output_schema, OperatorStep(operator, exchange))


def _part(third: int, colours: int) -> SparkColumn:
    """The part of an edge's two colours and a third one: the three in order, as one number."""
    three = [*map(F.col, _COLOURS), F.lit(third)]
    least, greatest = F.least(*three), F.greatest(*three)
    middle = reduce(lambda x, y: x + y, three) - least - greatest
    return (least * colours + middle) * colours + greatest


def _check_edges(edges: object, what: str) -> None:
    if not isinstance(edges, Edges):
        raise GraphError(
            f"{what} takes what mr.graphs.edges(df, 'src', 'dst') returned, not "
            f"{type(edges).__name__}."
        )
