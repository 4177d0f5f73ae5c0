"""Connected components, and their two sides: each vertex with the smallest one it can reach.

Every shard gets the edges of an epoch and reads the components of their ends, wherever these are.
All shards join the same components in the same way, and each writes the vertices that it owns. So
one exchange is enough however far a change reaches, and an epoch commits once.

With sides, a vertex is on side 0 if a path of even length leads to the smallest vertex, on side 1
if one of odd length does, and on none (NULL) if both do: its component is then not bipartite.

Invariant: what is stored depends on the edges that have come, and on nothing else: not on their
order, the epochs, or the shards.

Known rough edges: edges cannot be removed. An epoch in which a stored component gets another name
reads the components of all vertices of the shard. Within an epoch, rows must come in one step: a
shard does not see what another one changed in the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.errors import EpochFailedError
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.arrays import whole_numbers
from millrace.operators.graph import changes
from millrace.operators.graph.base import GraphOperator
from millrace.operators.graph.changes import Grouped, grouped
from millrace.operators.graph.layout import (
    COMPONENT,
    LABEL_HI,
    LABEL_LO,
    SIDE,
    VERTEX,
    component_tables,
)
from millrace.operators.graph.spec import ComponentsDefinition
from millrace.operators.graph.union import unite
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.operators.window.assembling import positions
from millrace.state.columns import words
from millrace.state.replica import Replica
from millrace.state.scanning import scan


class ComponentsOperator(GraphOperator):
    """Keeps the component of each vertex; emits the vertices whose component or side changed."""

    definition: ComponentsDefinition

    def __init__(self, name: OperatorName, definition: ComponentsDefinition) -> None:
        super().__init__(name, definition)
        self.tables = component_tables(self.vertex, definition.sides)
        vertex = definition.vertex
        self.output_schema = T.StructType(
            [T.StructField(VERTEX, vertex), T.StructField(COMPONENT, vertex)]
        )
        if definition.sides:
            self.output_schema.add(SIDE, T.IntegerType())
        self.side_schemas = {}

    @staticmethod
    def from_spec(
        name: OperatorName, data: dict[str, Any], *, ansi: bool = True
    ) -> ComponentsOperator:
        return ComponentsOperator(name, ComponentsDefinition.from_json(data))

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        if moment.more or replicas[MAIN].laid_over:
            raise EpochFailedError(
                f"operator {self.name!r} got the edges of an epoch in several steps. This is a bug "
                "in Millrace; nothing was committed."
            )
        return _Applying(self, replicas[MAIN], rows, groups).change()


@dataclass(frozen=True)
class _Names:
    """What vertices are called by: the component of each, and its side."""

    hi: UInt64Array
    lo: UInt64Array
    value: pa.Array
    side: Int64Array
    is_odd: BoolArray


class _Applying:
    """What one shard does in one epoch."""

    def __init__(
        self, operator: ComponentsOperator, replica: Replica, rows: Input, groups: Int64Array
    ) -> None:
        self._operator = operator
        self._sides = operator.definition.sides
        self._replica = replica
        self._groups = groups
        self._owns = np.zeros(replica.key_groups, np.bool_)
        self._owns[groups] = True
        ends = [types.conform(column, operator.vertex) for column in rows.columns[:2]]
        far = [np.asarray(column.to_numpy()).view(np.uint64) for column in rows.columns[2:4]]
        hi, lo = np.concatenate((rows.hi, far[0])), np.concatenate((rows.lo, far[1]))
        self._vertices: Grouped = grouped(hi, lo)
        self._values = pa.concat_arrays(ends).take(pa.array(self._vertices.first))
        self._one, self._other = np.split(self._vertices.number, 2)
        self._addresses = replica.find(self._vertices.hi, self._vertices.lo)
        self._known = self._addresses != 0

    def change(self) -> Change:
        before = self._before()
        labels = grouped(before.hi, before.lo)
        names = before.value.take(pa.array(labels.first))
        rank = np.empty(len(labels), np.int64)
        rank[pc.array_sort_indices(names).to_numpy()] = np.arange(len(labels))
        was_odd = before.is_odd[labels.first]
        is_odd = was_odd.copy()
        one, other = self._one, self._other
        differs = (before.side[one] == before.side[other]) if self._sides else one < 0
        number = labels.number
        edges = np.zeros(len(one), np.bool_)
        root, across = unite(rank, number[one], number[other], differs, is_odd, edges)
        joined = _Joined(labels, names, root, across, is_odd[root])
        is_changed = root != np.arange(len(labels))
        if self._sides:
            is_changed |= joined.is_odd != was_odd
        return self._write(before, joined, is_changed)

    def _before(self) -> _Names:
        """The components of the ends of edges; a vertex that is new is one of its own."""
        hi, lo, known = self._vertices.hi.copy(), self._vertices.lo.copy(), self._known
        names = [COMPONENT, LABEL_HI, LABEL_LO, *([SIDE] if self._sides else [])]
        columns = self._replica.gather(self._addresses[known], names)
        hi[known], lo[known] = (column.to_numpy() for column in columns[1:3])
        source = np.arange(len(hi))
        source[known] = len(hi) + np.arange(int(known.sum()))
        value = pa.concat_arrays([self._values, columns[0]]).take(pa.array(source))
        side = np.zeros(len(hi), np.int64)
        is_odd = np.full(len(hi), not self._sides)
        if self._sides:
            side[known], has_side = whole_numbers(columns[3])
            is_odd[known] = ~has_side
        return _Names(hi, lo, value, side, is_odd)

    def _write(self, before: _Names, joined: _Joined, is_changed: BoolArray) -> Change:
        shift = np.uint64(self._replica.shift)
        number = joined.labels.number
        mine = self._owns[(self._vertices.hi >> shift).astype(np.int64)]
        came = np.flatnonzero(mine & (is_changed[number] | ~self._known))
        parts = [
            _Changed(
                self._vertices.hi[came],
                self._vertices.lo[came],
                self._values.take(pa.array(came)),
                number[came],
                before.side[came],
            )
        ]
        stored = np.zeros(len(is_changed), np.bool_)
        stored[number[self._known]] = True
        parts += self._others(joined.labels, np.flatnonzero(is_changed & stored))
        hi, lo, side = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("hi", "lo", "side")
        )
        label = np.concatenate([part.label for part in parts])
        vertices = pa.concat_arrays([part.vertices for part in parts])
        columns = [vertices, *joined.columns(label, side, self._sides)]
        written = changes.stored(self._replica, (hi, lo), np.zeros(len(hi), np.bool_), columns)
        shown = self._operator.output_schema.names
        output = changes.batch(shown, columns[: len(shown)])
        added = int((~self._known[came]).sum())
        return Change({MAIN: TableChange(written, added)}, output)

    def _others(self, labels: Grouped, renamed: Int64Array) -> list[_Changed]:
        """The vertices of components that changed, but for those at the ends of edges."""
        if not len(renamed):
            return []
        # In order of fingerprint already.
        hi, lo = labels.hi[renamed], labels.lo[renamed]
        names = [HI, LO, VERTEX, LABEL_HI, LABEL_LO, *([SIDE] if self._sides else [])]
        found = []
        for rows in scan(self._replica, self._groups, names):
            at = positions(words(rows, LABEL_HI), words(rows, LABEL_LO), hi, lo)
            hits = np.flatnonzero(at >= 0)
            if not len(hits):
                continue
            own_hi, own_lo = words(rows, HI)[hits], words(rows, LO)[hits]
            rest = positions(own_hi, own_lo, self._vertices.hi, self._vertices.lo) < 0
            hits = hits[rest]
            if not len(hits):
                continue
            chosen = pa.array(hits)
            side = np.zeros(len(hits), np.int64)
            if self._sides:
                side, _ = whole_numbers(rows.column(SIDE).take(chosen))
            vertices = rows.column(VERTEX).take(chosen)
            part = _Changed(own_hi[rest], own_lo[rest], vertices, renamed[at[hits]], side)
            found.append(part)
        return found


@dataclass(frozen=True)
class _Changed:
    """Vertices to be written: the number of their old component, and their old side."""

    hi: UInt64Array
    lo: UInt64Array
    vertices: pa.Array
    label: Int64Array
    side: Int64Array


@dataclass(frozen=True)
class _Joined:
    """What became of components: the one that each is part of, and how sides relate."""

    labels: Grouped
    names: pa.Array
    root: Int64Array
    across: BoolArray
    is_odd: BoolArray

    def columns(self, label: Int64Array, side: Int64Array, sides: bool) -> list[pa.Array]:
        """The columns of vertices that were in some components, on some sides."""
        root = self.root[label]
        columns = [self.names.take(pa.array(root))]
        if sides:
            new = (side ^ self.across[label]).astype(np.int32)
            columns.append(pa.array(new, mask=self.is_odd[label]))
        return [*columns, pa.array(self.labels.hi[root]), pa.array(self.labels.lo[root])]
