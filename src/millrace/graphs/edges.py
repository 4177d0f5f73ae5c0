"""A stream of edges: which columns are the ends, and what is an edge at all.

A row with NULL at an end is no edge and is left out. All else that could be wrong with the columns
is found here, before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import types
from millrace.api.columns import data_type, named
from millrace.api.origin import origin
from millrace.api.stream import Stream, stream
from millrace.errors import GraphError
from millrace.keygroups.keys import is_computable

FIRST, SECOND, REMOVED = "_first", "_second", "_removed"
"""The columns of edges on their way to an operator."""

_VERTICES = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


@dataclass(frozen=True)
class Edges:
    """What `edges` returns: a stream, and what operators on graphs need to know of it."""

    stream: Stream
    """Rows with two ends, and whether the edge between them goes."""
    vertex: T.DataType
    directed: bool
    has_removals: bool


def edges(
    source: DataFrame | Stream,
    first: str,
    second: str,
    *,
    removed: str | None = None,
    directed: bool = False,
) -> Edges:
    """A stream of edges between the vertices in two columns.

    `removed` names a boolean column: a row in which it is true removes the edge. Without
    `directed`, an edge is the same in both directions. Rows with NULL at an end are left out.
    """
    rows = source if isinstance(source, Stream) else stream(source)
    sample = origin(rows).sample()
    kinds = [data_type(sample, name, "edges()") for name in (first, second)]
    if first == second:
        raise GraphError(f"edges(): both ends are the column {first!r}. Name two columns.")
    for name, kind in zip((first, second), kinds, strict=True):
        _check_vertex(name, kind)
    if kinds[0] != kinds[1]:
        raise GraphError(
            f"edges(): {first!r} is {kinds[0].simpleString()} and {second!r} is "
            f"{kinds[1].simpleString()}. Cast one of them: both ends of an edge are vertices."
        )
    if removed is not None:
        kind = data_type(sample, removed, "edges(removed=...)")
        if not isinstance(kind, T.BooleanType):
            raise GraphError(
                f"edges(removed={removed!r}): the column is {kind.simpleString()} and must be "
                "boolean: true where a row removes its edge."
            )
    ends = [named(first).alias(FIRST), named(second).alias(SECOND)]
    gone = F.lit(False) if removed is None else F.coalesce(named(removed), F.lit(False))
    is_edge = named(first).isNotNull() & named(second).isNotNull()
    plain = rows.transform(lambda df: df.where(is_edge).select(*ends, gone.alias(REMOVED)))
    return Edges(plain, kinds[0], directed, removed is not None)


def _check_vertex(name: str, kind: T.DataType) -> None:
    if not isinstance(kind, _VERTICES) or not is_computable(types.to_json(kind)):
        raise GraphError(
            f"edges(): the column {name!r} is {kind.simpleString()}, which cannot be a vertex. "
            "Vertices are whole numbers, strings without a collation, binary, dates or timestamps."
        )
