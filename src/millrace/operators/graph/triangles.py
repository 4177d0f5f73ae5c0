"""Triangles, exactly, in parts of the graph that need nothing from each other.

Vertices have one of a few colours. A part is three colours, and has the edges between vertices of
these; so the three edges of a triangle are together in the part of its colours. An edge is in as
many parts as there are colours. Parts are keys: they are spread over shards, and move like keys.

The edges that an epoch adds or removes are taken one after the other: edge i sees the graph as the
edges before it have left it, and makes or breaks a triangle with each common neighbour of its ends.
The order does not matter for the sum. Common neighbours are found from the end with fewer of them.

Loops are in no triangle, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.keygroups.hashing import fingerprints
from millrace.operators.arrays import whole_numbers
from millrace.operators.graph import changes
from millrace.operators.graph.base import GraphOperator
from millrace.operators.graph.changes import grouped
from millrace.operators.graph.common import Ends, Epoch, Found, common_neighbours
from millrace.operators.graph.fingerprints import in_parts, of_edges
from millrace.operators.graph.layout import (
    CHANGE,
    CORNERS,
    COUNT,
    DEGREE,
    EDGES,
    NEIGHBOURS,
    PART,
    VERTEX,
    VERTICES,
    triangle_tables,
)
from millrace.operators.graph.spec import TrianglesDefinition
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.state.replica import Replica


class TrianglesOperator(GraphOperator):
    """Keeps the edges and triangles of each part; emits by how many triangles parts changed."""

    definition: TrianglesDefinition

    def __init__(self, name: OperatorName, definition: TrianglesDefinition) -> None:
        super().__init__(name, definition)
        self.tables = triangle_tables(self.vertex)
        count = T.StructField(CHANGE, T.LongType())
        self.output_schema = T.StructType([T.StructField(PART, T.IntegerType()), count])
        corner = T.StructField(VERTEX, definition.vertex)
        self.side_schemas = {CORNERS: T.StructType([corner, count])} if definition.corners else {}

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> TrianglesOperator:
        return TrianglesOperator(name, TrianglesDefinition.from_json(data))

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Applying(self, replicas, rows).change()


@dataclass(frozen=True)
class _Moved:
    """The edges that come or go, in order of fingerprint, and where they were in the rows."""

    rows: Int64Array
    added: BoolArray

    @property
    def sign(self) -> Int64Array:
        return np.where(self.added, 1, -1)


class _Applying:
    """What one shard does in one epoch."""

    def __init__(
        self, operator: TrianglesOperator, replicas: dict[str, Replica], rows: Input
    ) -> None:
        self._operator = operator
        self._replicas = replicas
        order = changes.arrival_order(rows)
        self._part_hi, self._part_lo = rows.hi[order], rows.lo[order]
        self._parts, _ = whole_numbers(changes.column(rows.keys[0], pa.int32(), order))
        values = [changes.column(column, operator.vertex, order) for column in rows.columns[:2]]
        self._is_removed = changes.flags(rows.columns[2], order)
        colours = [
            whole_numbers(changes.column(column, pa.int32(), order))[0]
            for column in rows.columns[3:5]
        ]
        scheme = replicas[MAIN].scheme
        assert scheme is not None
        ends = [
            Ends(*fingerprints([v], scheme), v, c) for v, c in zip(values, colours, strict=True)
        ]
        # An edge is the same in both directions.
        swapped = (ends[0].hi > ends[1].hi) | (
            (ends[0].hi == ends[1].hi) & (ends[0].lo > ends[1].lo)
        )
        self._one, self._other = ends[0].mixed(ends[1], swapped), ends[1].mixed(ends[0], swapped)

    def change(self) -> Change:
        moved, epoch = self._moved()
        found = common_neighbours(self._replicas, epoch, self._operator.definition.colours)
        tables, output = self._parts_changed(moved, epoch, found)
        sides = {}
        if self._operator.definition.corners:
            sides[CORNERS] = _corners(epoch, found, self._operator.side_schemas[CORNERS].names)
        return Change(tables, output, {}, sides)

    def _moved(self) -> tuple[_Moved, Epoch]:
        """What is different after the last row of each edge."""
        part = self._part_hi, self._part_lo
        near = in_parts(*part, self._one.hi, self._one.lo)
        far = in_parts(*part, self._other.hi, self._other.lo)
        one_way = np.zeros(len(self._parts), np.bool_)
        there = of_edges(*near, self._other.hi, self._other.lo, one_way)
        edges = grouped(*there)
        exists = self._replicas[NEIGHBOURS].find(edges.hi, edges.lo) != 0
        stays = ~self._is_removed[edges.last]
        is_loop = (self._one.hi == self._other.hi) & (self._one.lo == self._other.lo)
        at = np.flatnonzero((stays != exists) & ~is_loop[edges.last])
        rows = edges.last[at]
        back = of_edges(
            far[0][rows], far[1][rows], self._one.hi[rows], self._one.lo[rows], one_way[rows]
        )
        epoch = Epoch(
            parts=self._parts[rows],
            added=stays[at],
            ends=(self._one.take(rows), self._other.take(rows)),
            owners=((near[0][rows], near[1][rows]), (far[0][rows], far[1][rows])),
            edges=((edges.hi[at], edges.lo[at]), back),
        )
        return _Moved(rows, stays[at]), epoch

    def _parts_changed(
        self, moved: _Moved, epoch: Epoch, found: Found
    ) -> tuple[dict[str, TableChange], pa.RecordBatch]:
        main = self._replicas[MAIN]
        rows = moved.rows
        parts = grouped(self._part_hi[rows], self._part_lo[rows])
        addresses = main.find(parts.hi, parts.lo)
        edges, triangles = (whole_numbers(c)[0] for c in main.gather(addresses, [EDGES, COUNT]))
        edges = edges + changes.sums(parts.number, moved.sign, len(parts))
        change = changes.sums(parts.number[found.edge], moved.sign[found.edge], len(parts))
        numbers = pa.array(self._parts[rows[parts.first]].astype(np.int32))
        written = changes.stored(
            main,
            (parts.hi, parts.lo),
            np.zeros(len(parts), np.bool_),
            [numbers, pa.array(edges), pa.array(triangles + change)],
        )
        tables = {
            MAIN: TableChange(written, int((addresses == 0).sum())),
            NEIGHBOURS: self._neighbours(epoch),
            VERTICES: self._vertices(epoch, moved.sign),
        }
        other = pa.array(change != 0)
        output = changes.batch([PART, CHANGE], [numbers, pa.array(change)])
        return tables, output.filter(other)

    def _neighbours(self, epoch: Epoch) -> TableChange:
        """Each edge twice: once for each end."""
        both = [np.concatenate(words) for words in zip(*epoch.edges, strict=True)]
        owners = [np.concatenate(words) for words in zip(*epoch.owners, strict=True)]
        one, other = epoch.ends
        columns = [
            pa.concat_arrays([other.values, one.values]),
            pa.array(np.concatenate((other.hi, one.hi))),
            pa.array(np.concatenate((other.lo, one.lo))),
            pa.array(np.concatenate((other.colours, one.colours)).astype(np.int32)),
        ]
        deleted = np.tile(~epoch.added, 2)
        replica = self._replicas[NEIGHBOURS]
        fingerprints_, owned = (both[0], both[1]), (owners[0], owners[1])
        written = changes.stored(replica, fingerprints_, deleted, columns, owned)
        return TableChange(written, int((~deleted).sum()), int(deleted.sum()))

    def _vertices(self, epoch: Epoch, sign: Int64Array) -> TableChange:
        """How many neighbours the vertices of changed edges have in each part."""
        replica = self._replicas[VERTICES]
        owners = grouped(*(np.concatenate(words) for words in zip(*epoch.owners, strict=True)))
        addresses = replica.find(owners.hi, owners.lo)
        before, _ = whole_numbers(replica.gather(addresses, [DEGREE])[0])
        after = before + changes.sums(owners.number, np.tile(sign, 2), len(owners))
        wanted = np.flatnonzero((after > 0) | (addresses != 0))
        existing, gone = addresses[wanted] != 0, after[wanted] == 0
        written = changes.stored(
            replica, (owners.hi[wanted], owners.lo[wanted]), gone, [pa.array(after[wanted])]
        )
        return TableChange(written, int((~existing).sum()), int(gone.sum()))


def _corners(epoch: Epoch, found: Found, names: list[str]) -> pa.RecordBatch:
    """By how many triangles each vertex changed."""
    one, other = (end.take(found.edge) for end in epoch.ends)
    hi: UInt64Array = np.concatenate((one.hi, other.hi, found.hi))
    lo: UInt64Array = np.concatenate((one.lo, other.lo, found.lo))
    sign = np.tile(np.where(epoch.added[found.edge], 1, -1), 3)
    corners = grouped(hi, lo)
    total = changes.sums(corners.number, sign, len(corners))
    different = np.flatnonzero(total)
    values = pa.concat_arrays([one.values, other.values, found.values])
    vertices = values.take(pa.array(corners.first[different]))
    return changes.batch(names, [vertices, pa.array(total[different])])
