"""Adjacency: the neighbours of each vertex, and its degree.

Each edge comes to both of its ends. The graph is simple: an edge that is there already changes
nothing, and neither does the removal of one that is not. A vertex is there from its first edge on,
and stays when its last one goes. As in networkx, a loop makes a vertex its own neighbour and counts
twice in its degree.

Invariant: both ends of an edge see its rows in the same order, so what one says of it, the other
says too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import BoolArray, Int64Array
from millrace.ids import OperatorName
from millrace.keygroups.hashing import fingerprints
from millrace.operators.arrays import whole_numbers
from millrace.operators.graph import changes
from millrace.operators.graph.base import GraphOperator
from millrace.operators.graph.changes import Grouped
from millrace.operators.graph.fingerprints import of_edges
from millrace.operators.graph.layout import (
    ADDED,
    DEGREE,
    NEIGHBOUR,
    NEIGHBOURS,
    OUTGOING,
    PREVIOUS,
    VERTEX,
    adjacency_tables,
    degree_names,
)
from millrace.operators.graph.spec import AdjacencyDefinition
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.state.replica import Replica


class AdjacencyOperator(GraphOperator):
    """Keeps neighbours and degrees; emits the degrees that changed, and beside them the edges."""

    definition: AdjacencyDefinition

    def __init__(self, name: OperatorName, definition: AdjacencyDefinition) -> None:
        super().__init__(name, definition)
        directed = definition.directed
        self.tables = adjacency_tables(self.vertex, directed)
        vertex, count = definition.vertex, T.LongType()
        self.degrees = degree_names(directed)
        names = [DEGREE, PREVIOUS, *self.degrees[1:]]
        self.output_schema = T.StructType([T.StructField(VERTEX, vertex)])
        for column in names:
            self.output_schema.add(column, count)
        edges = T.StructType([T.StructField(VERTEX, vertex), T.StructField(NEIGHBOUR, vertex)])
        if directed:
            edges.add(OUTGOING, T.BooleanType())
        self.side_schemas = {NEIGHBOURS: edges.add(ADDED, T.BooleanType())}

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> AdjacencyOperator:
        return AdjacencyOperator(name, AdjacencyDefinition.from_json(data))

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Applying(self, replicas, rows).change()


class _Applying:
    """What one shard does in one epoch."""

    def __init__(
        self, operator: AdjacencyOperator, replicas: dict[str, Replica], rows: Input
    ) -> None:
        self._operator = operator
        self._directed = operator.definition.directed
        self._main, self._table = replicas[MAIN], replicas[NEIGHBOURS]
        order = changes.arrival_order(rows)
        self._hi, self._lo = rows.hi[order], rows.lo[order]
        self._vertices = changes.column(rows.keys[0], operator.vertex, order)
        self._neighbours = changes.column(rows.columns[0], operator.vertex, order)
        self._is_removed = changes.flags(rows.columns[1], order)
        self._is_outgoing: BoolArray = np.zeros(len(order), np.bool_)
        if self._directed:
            self._is_outgoing = changes.flags(rows.columns[2], order)

    def change(self) -> Change:
        assert self._main.scheme is not None
        other = fingerprints([self._neighbours], self._main.scheme)
        is_loop = (self._hi == other[0]) & (self._lo == other[1])
        edges = changes.grouped(*of_edges(self._hi, self._lo, *other, self._is_outgoing))
        is_there = self._table.find(edges.hi, edges.lo) != 0
        stays = ~self._is_removed[edges.last]
        moved = np.flatnonzero(stays != is_there)
        at = edges.last[moved]
        added = stays[moved]
        written = changes.stored(
            self._table,
            (edges.hi[moved], edges.lo[moved]),
            ~added,
            self._edge_columns(at),
            owners=(self._hi[at], self._lo[at]),
        )
        table = TableChange(written, int(added.sum()), int((~added).sum()))
        # Both ends of an undirected loop are this vertex, and are the same edge.
        weight = np.where(is_loop[at] & (not self._directed), 2, 1) * np.where(added, 1, -1)
        main, output = self._degrees(at, weight)
        side = changes.batch(
            self._operator.side_schemas[NEIGHBOURS].names,
            [*self._edge_columns(at), pa.array(added)],
        )
        return Change({MAIN: main, NEIGHBOURS: table}, output, {}, {NEIGHBOURS: side})

    def _edge_columns(self, at: Int64Array) -> list[pa.Array]:
        chosen = pa.array(at)
        columns = [self._vertices.take(chosen), self._neighbours.take(chosen)]
        return [*columns, pa.array(self._is_outgoing[at])] if self._directed else columns

    def _degrees(self, at: Int64Array, weight: Int64Array) -> tuple[TableChange, pa.RecordBatch]:
        """The vertices that are new or have another degree."""
        vertices: Grouped = changes.grouped(self._hi, self._lo)
        count = len(vertices)
        addresses = self._main.find(vertices.hi, vertices.lo)
        names = list(self._operator.degrees)
        before = [whole_numbers(c)[0] for c in self._main.gather(addresses, names)]
        number = vertices.number[at]
        shares = [weight]
        if self._directed:
            outgoing = self._is_outgoing[at]
            shares += [np.where(outgoing, 0, weight), np.where(outgoing, weight, 0)]
        after = [
            old + changes.sums(number, share, count)
            for old, share in zip(before, shares, strict=True)
        ]
        # An edge that comes and goes within an epoch leaves its ends behind.
        comes = changes.sums(vertices.number, (~self._is_removed).astype(np.int64), count) > 0
        is_new = (addresses == 0) & comes
        differs = is_new.copy()
        for old, new in zip(before, after, strict=True):
            differs |= old != new
        changed = np.flatnonzero(differs)
        keys = self._vertices.take(pa.array(vertices.first[changed]))
        degrees = [pa.array(new[changed]) for new in after]
        written = changes.stored(
            self._main,
            (vertices.hi[changed], vertices.lo[changed]),
            np.zeros(len(changed), np.bool_),
            [keys, *degrees],
        )
        previous = pa.array(before[0][changed], mask=is_new[changed])
        output = changes.batch(
            self._operator.output_schema.names, [keys, degrees[0], previous, *degrees[1:]]
        )
        return TableChange(written, int(is_new.sum())), output
