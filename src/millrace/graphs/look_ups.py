"""Neighbours, neighbourhoods and paths in the graph that `neighbours` or `degrees` keeps.

A look-up reads the rows of the vertices it visits, at one committed epoch, while the stream runs.
Paths have at most two edges: what is further away is a question for SQL, or for a copy of the whole
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.query import Query
from millrace.errors import GraphError
from millrace.operators.graph.layout import ADJACENCY, NEIGHBOUR, NEIGHBOURS, OUTGOING, VERTEX
from millrace.reading.keys import key_columns
from millrace.reading.reader import Reader, open_location
from millrace.reading.tables import tables

HOPS = "hops"
MOST_HOPS = 2


def read(source: Query | Reader | str, operator: str | None = None) -> Graph:
    """The graph of a running query, of a reader, or of a location, at its last committed epoch.

    `operator` names what `neighbours` or `degrees` was called; it may be left out if there is only
    one. Close the graph of a query or a location when done, or use it in `with`.
    """
    if isinstance(source, Reader):
        return Graph(source, operator)
    location = source.location if isinstance(source, Query) else source
    return Graph(open_location(location), operator, owned=True)


class Graph:
    """Look-ups in a graph at one epoch."""

    def __init__(self, reader: Reader, operator: str | None = None, *, owned: bool = False) -> None:
        """With `owned`, closing the graph closes the reader."""
        self.reader = reader
        self._owned = owned
        snapshot = reader.snapshot
        kept = [n for n in snapshot.operators if snapshot.description(n).kind == ADJACENCY]
        if operator is None and len(kept) == 1:
            operator = kept[0]
        if operator not in kept:
            self.close()
            raise GraphError(
                f"{reader.location}: no graph is kept by {operator!r}. Operators that keep one, by "
                f"neighbours() or degrees(): {', '.join(map(repr, kept)) or 'none'}."
            )
        self.operator = str(operator)

    @property
    def epoch(self) -> int:
        return int(self.reader.epoch)

    def refresh(self) -> Graph:
        """Go to the newest epoch."""
        self.reader.refresh()
        return self

    def close(self) -> None:
        if self._owned:
            self.reader.close()

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def neighbours(self, *vertices: Any) -> pa.Table:
        """The neighbours of some vertices: a row each, with the columns `vertex`, `neighbour`.

        Of a directed graph also `outgoing`: whether the edge leads from the vertex.
        """
        return self._rows(self._vertices(vertices))

    def neighbourhood(self, vertex: Any, hops: int = MOST_HOPS) -> pa.Table:
        """The vertices that one or two edges lead to, and how many it takes: `vertex`, `hops`.

        Of a directed graph, edges are followed in their direction. The vertex itself is left out.
        """
        if hops not in range(1, MOST_HOPS + 1):
            raise GraphError(f"neighbourhood(hops={hops!r}): give 1 or {MOST_HOPS}.")
        start = self._vertices([vertex])
        reached = _without(self._reached(start), start)
        distance = np.ones(len(reached), np.int32)
        if hops == MOST_HOPS:
            seen = pa.concat_arrays([start, reached])
            further = _without(self._reached(reached), seen)
            distance = np.concatenate((distance, np.full(len(further), 2, np.int32)))
            reached = pa.concat_arrays([reached, further])
        return pa.table({VERTEX: reached, HOPS: distance})

    def paths(self, first: Any, last: Any) -> list[tuple[Any, ...]]:
        """The paths of one or two edges between two vertices, the shortest first."""
        start, end = self._vertices([first]), self._vertices([last])
        reached = self._reached(start)
        found = [(first, last)] if _isin(reached, end).any() else []
        between = _without(reached, pa.concat_arrays([start, end]))
        rows = self._outgoing(self._rows(between))
        leads = pc.is_in(rows.column(NEIGHBOUR), value_set=end)
        middle = pc.unique(rows.filter(leads).column(VERTEX))
        ordered = middle.take(pc.array_sort_indices(middle)).to_pylist()
        return [*found, *((first, vertex, last) for vertex in ordered)]

    def _vertices(self, vertices: Sequence[Any]) -> pa.Array:
        description = self.reader.snapshot.description(self.operator)
        (column,) = key_columns(list(vertices), description, description.key_schema)
        return column

    def _rows(self, vertices: pa.Array) -> pa.Table:
        """All edges of some vertices."""
        table = tables(self.reader.snapshot, self.operator)[NEIGHBOURS]
        found = table.find(table.schema.names, table.fingerprints([pc.unique(vertices)]))
        return pa.Table.from_batches([found])

    def _outgoing(self, rows: pa.Table) -> pa.Table:
        return rows.filter(rows.column(OUTGOING)) if OUTGOING in rows.column_names else rows

    def _reached(self, vertices: pa.Array) -> pa.Array:
        """The vertices that edges of some others lead to, in order."""
        found = pc.unique(self._outgoing(self._rows(vertices)).column(NEIGHBOUR))
        return found.take(pc.array_sort_indices(found))


def _isin(values: pa.Array, known: pa.Array) -> Any:
    return pc.is_in(values, value_set=known).to_numpy(zero_copy_only=False)


def _without(values: pa.Array, known: pa.Array) -> pa.Array:
    return values.filter(pa.array(~_isin(values, known)))
