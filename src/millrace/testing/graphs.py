"""Operators on graphs on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import UsageError
from millrace.operators.graph.adjacency import AdjacencyOperator
from millrace.operators.graph.base import GraphOperator
from millrace.operators.graph.components import ComponentsOperator
from millrace.operators.graph.forest import forest
from millrace.operators.graph.spec import (
    PART_COLUMN,
    AdjacencyDefinition,
    ComponentsDefinition,
    TrianglesDefinition,
    vertex_column,
)
from millrace.operators.graph.triangles import TrianglesOperator
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_arrow
from millrace.testing.epochs import NAME, START, Emitted, OperatorHarness

DEGREES, COMPONENTS, BIPARTITE, TRIANGLES = "degrees", "components", "bipartite", "triangles"


class GraphHarness(OperatorHarness[GraphOperator]):
    """`mr.graphs.degrees`, `components`, `bipartite` or `triangles` over edges you give.

    That of triangles emits by how many triangles each part of the graph changed, and to
    `side("corners")` the same of each vertex.
    """

    def __init__(
        self,
        what: str,
        *,
        vertex: str = "long",
        directed: bool = False,
        colours: int = 3,
        start: dt.datetime = START,
        shards: int = 1,
    ) -> None:
        kind = parse_schema(f"v {vertex}")["v"].dataType
        keys = [vertex_column(kind)]
        self._what = what
        self._colours = colours
        self._directed = directed
        operator: GraphOperator
        if what == DEGREES:
            operator = AdjacencyOperator(NAME, AdjacencyDefinition(kind, directed))
        elif what in (COMPONENTS, BIPARTITE):
            operator = ComponentsOperator(NAME, ComponentsDefinition(kind, what == BIPARTITE))
        elif what == TRIANGLES:
            operator = TrianglesOperator(NAME, TrianglesDefinition(kind, colours, corners=True))
            keys = [PART_COLUMN]
        else:
            known = ", ".join(map(repr, (DEGREES, COMPONENTS, BIPARTITE, TRIANGLES)))
            raise UsageError(f"GraphHarness({what!r}): there are {known}.")
        super().__init__(operator, keys, start, shards)
        self._vertex: Sequence[Column] = [vertex_column(kind)]

    def send(self, rows: Iterable[Any] = (), *, part: Sequence[int] | None = None) -> Emitted:
        """Run an epoch with these edges: `(first, second)`, or `(first, second, removed)`.

        Rows with NULL at an end are left out. `part` has the input partition of each row.
        """
        listed = [tuple(row) for row in rows]
        parts = [0] * len(listed) if part is None else list(part)
        kept = [i for i, row in enumerate(listed) if row[0] is not None and row[1] is not None]
        first, second = (
            to_arrow([listed[i][end] for i in kept], self._operator.vertex, "a vertex")
            for end in (0, 1)
        )
        removed = np.asarray([len(listed[i]) > 2 and bool(listed[i][2]) for i in kept], np.bool_)
        came = np.asarray([parts[i] for i in kept], np.int32)
        if self._what == DEGREES:
            return self._run(encode(self._at_both_ends(first, second, removed, came)))
        if self._what == TRIANGLES:
            return self._run(encode(self._in_parts(first, second, removed, came)))
        return self._everywhere(first, second, came)

    def _of_vertices(self, vertices: pa.Array) -> tuple[Any, Any]:
        keys, self._keys = self._keys, tuple(self._vertex)
        try:
            return self._fingerprints([vertices])
        finally:
            self._keys = keys

    def _at_both_ends(self, first: pa.Array, second: pa.Array, removed: Any, part: Any) -> Input:
        count = len(first)
        order = np.arange(2 * count).reshape(2, count).T.ravel()
        chosen = pa.array(order)
        here, there = (
            pa.concat_arrays(ends).take(chosen) for ends in ((first, second), (second, first))
        )
        columns = [there, pa.array(np.tile(removed, 2)[order])]
        if self._directed:
            columns.append(pa.array(np.repeat([True, False], count)[order]))
        hi, lo = self._of_vertices(here)
        return Input(hi, lo, (here,), np.tile(part, 2)[order], columns=tuple(columns))

    def _in_parts(self, first: pa.Array, second: pa.Array, removed: Any, part: Any) -> Input:
        ends = [self._of_vertices(end) for end in (first, second)]
        colours = [(lo % np.uint64(self._colours)).astype(np.int64) for _, lo in ends]
        is_loop = (ends[0][0] == ends[1][0]) & (ends[0][1] == ends[1][1])
        row = np.repeat(np.flatnonzero(~is_loop), self._colours)
        third = np.tile(np.arange(self._colours), int((~is_loop).sum()))
        three = np.sort([colours[0][row], colours[1][row], third], axis=0)
        number = (three[0] * self._colours + three[1]) * self._colours + three[2]
        parts = pa.array(number.astype(np.int32))
        hi, lo = self._fingerprints([parts])
        chosen = pa.array(row)
        columns = [first.take(chosen), second.take(chosen), pa.array(removed[row])]
        columns += [pa.array(colour[row].astype(np.int32)) for colour in colours]
        return Input(hi, lo, (parts,), part[row], columns=tuple(columns))

    def _everywhere(self, first: pa.Array, second: pa.Array, part: Any) -> Emitted:
        """Each input partition's forest, for all shards."""
        pieces = []
        for number in [-1, *np.unique(part).tolist()]:
            chosen = pa.array(np.flatnonzero(part == number))
            ends = [first.take(chosen), second.take(chosen)]
            (hi, lo), far = (self._of_vertices(end) for end in ends)
            kept = np.flatnonzero(forest((hi, lo), far, self._what == BIPARTITE))
            others = [pa.array(word[kept].view(np.int64)) for word in far]
            values = [end.take(pa.array(kept)) for end in ends]
            pieces.append(encode(Input(hi[kept], lo[kept], (), columns=(*values, *others))))
        return self._run(pieces[0], pa.concat_tables(pieces[1:]) if pieces[1:] else None)
