"""Common neighbours of the ends of changed edges, in the graph as the edges before have left it.

All edges are looked at together, in rounds that bound the memory: the neighbours of one end, from
state and from the epoch's own edges, are candidates; those that the other end has too are found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.log.segment import HI, LO
from millrace.operators.arrays import whole_numbers
from millrace.operators.graph.changes import Grouped, grouped
from millrace.operators.graph.fingerprints import of_edges
from millrace.operators.graph.layout import (
    COLOUR,
    DEGREE,
    NEIGHBOUR,
    NEIGHBOURS,
    OTHER_HI,
    OTHER_LO,
    VERTICES,
)
from millrace.operators.window.assembling import positions
from millrace.state.replica import Replica
from millrace.state.sorting import sort_order

ROUND = 1 << 20
"""Candidates that are looked at together; one edge may have more."""

Words = tuple[UInt64Array, UInt64Array]


@dataclass(frozen=True)
class Ends:
    """One end of each of some edges: the vertex, its fingerprint and its colour."""

    hi: UInt64Array
    lo: UInt64Array
    values: pa.Array
    colours: Int64Array

    def take(self, at: Int64Array) -> Ends:
        return Ends(self.hi[at], self.lo[at], self.values.take(pa.array(at)), self.colours[at])

    def mixed(self, others: Ends, where: BoolArray) -> Ends:
        """These ends, but the others where a mask says so."""
        source = np.arange(len(where)) + np.where(where, len(where), 0)
        both = pa.concat_arrays([self.values, others.values])
        return Ends(
            np.where(where, others.hi, self.hi),
            np.where(where, others.lo, self.lo),
            both.take(pa.array(source)),
            np.where(where, others.colours, self.colours),
        )


@dataclass(frozen=True)
class Epoch:
    """The edges that an epoch adds and removes."""

    parts: Int64Array
    added: BoolArray
    ends: tuple[Ends, Ends]
    owners: tuple[Words, Words]
    """The fingerprints of both ends within the part."""
    edges: tuple[Words, Words]
    """The fingerprints of the edges, from each end."""

    def __len__(self) -> int:
        return len(self.parts)


@dataclass(frozen=True)
class Found:
    """Triangles that were made or broken: the number of the edge, and the third vertex."""

    edge: Int64Array
    hi: UInt64Array
    lo: UInt64Array
    values: pa.Array

    @staticmethod
    def none(vertex: pa.DataType) -> Found:
        nothing = np.empty(0, np.uint64)
        return Found(np.empty(0, np.int64), nothing, nothing, pa.array([], vertex))


def common_neighbours(replicas: dict[str, Replica], epoch: Epoch, colours: int) -> Found:
    """The triangles that each edge makes or breaks, each in the part of its colours."""
    none = Found.none(replicas[NEIGHBOURS].schema.field(NEIGHBOUR).type)
    if not len(epoch):
        return none
    search = _Search(replicas, epoch, colours)
    ends = np.searchsorted(search.ends, np.arange(ROUND, search.ends[-1] + ROUND, ROUND), "right")
    rounds = np.unique(np.clip(ends, 1, len(epoch)))
    starts = np.concatenate(([0], rounds[:-1]))
    found = [search.round(int(a), int(b)) for a, b in zip(starts, rounds, strict=True)]
    edge, hi, lo = (
        np.concatenate([getattr(f, name) for f in found]) for name in ("edge", "hi", "lo")
    )
    return Found(edge, hi, lo, pa.concat_arrays([f.values for f in found]))


class _Search:
    """The epoch's edges by fingerprint and by vertex, over the edges in state."""

    def __init__(self, replicas: dict[str, Replica], epoch: Epoch, colours: int) -> None:
        self._table = replicas[NEIGHBOURS]
        self._epoch = epoch
        count = len(epoch)
        lowest, rest = epoch.parts // colours**2, epoch.parts % colours**2
        self._sum = lowest + rest // colours + rest % colours
        hi, lo = (np.concatenate(words) for words in zip(*epoch.edges, strict=True))
        order = sort_order(hi, lo)
        self._hi, self._lo = hi[order], lo[order]
        self._edge = order % count
        owners: Grouped = grouped(*(np.concatenate(w) for w in zip(*epoch.owners, strict=True)))
        self._owners = owners
        vertices = replicas[VERTICES]
        stored = vertices.gather(vertices.find(owners.hi, owners.lo), [DEGREE])
        degree, _ = whole_numbers(stored[0])
        # Of each vertex, the edges that the epoch adds, in their order.
        new = np.flatnonzero(np.tile(epoch.added, 2))
        self._new = new[np.argsort(owners.number[new], kind="stable")]
        self._bounds = np.searchsorted(owners.number[self._new], np.arange(len(owners) + 1))
        degree = degree + np.diff(self._bounds)
        one, other = owners.number[:count], owners.number[count:]
        self._far = degree[other] < degree[one]
        """Whether the second end has fewer neighbours."""
        self._from = np.where(self._far, other, one)
        self.ends = np.cumsum(degree[self._from] + 1)
        """How many candidates there are up to each edge, about."""

    def round(self, first: int, last: int) -> Found:
        """The triangles of some edges."""
        edges = np.arange(first, last)
        near = [self._stored(edges), self._added(edges)]
        edge = np.concatenate([part.edge for part in near])
        hi, lo, colour = (
            np.concatenate([getattr(part, name) for part in near])
            for name in ("hi", "lo", "colours")
        )
        epoch = self._epoch
        colours = epoch.ends[0].colours[edge] + epoch.ends[1].colours[edge] + colour
        right = np.flatnonzero(colours == self._sum[edge])
        hits = right[self._has_other_end(edge[right], hi[right], lo[right])]
        stored = hits[hits < len(near[0].edge)]
        added = hits[hits >= len(near[0].edge)] - len(near[0].edge)
        (values,) = self._table.gather(near[0].source[stored].astype(np.uint64), [NEIGHBOUR])
        values = pa.concat_arrays([values, self._values(near[1].source[added])])
        return Found(edge[hits], hi[hits], lo[hits], values)

    def _values(self, numbers: Int64Array) -> pa.Array:
        """The vertices that edges, numbered from both ends, lead to."""
        one, other = self._epoch.ends
        return pa.concat_arrays([other.values, one.values]).take(pa.array(numbers))

    def _stored(self, edges: Int64Array) -> _Candidates:
        """Neighbours in state of the ends that have fewer."""
        owners, number = np.unique(self._from[edges], return_inverse=True)
        addresses, offsets = self._table.entries(self._owners.hi[owners], self._owners.lo[owners])
        names = [OTHER_HI, OTHER_LO, COLOUR, HI, LO]
        columns = self._table.gather(addresses, names)
        hi, lo, entry_hi, entry_lo = (columns[i].to_numpy() for i in (0, 1, 3, 4))
        colours, _ = whole_numbers(columns[2])
        changed = self._changed(entry_hi, entry_lo)
        which, at = _ranges(offsets[number], offsets[number + 1])
        edge = edges[which]
        # A neighbour that an edge before this one has taken away does not count.
        gone = (changed[at] >= 0) & (changed[at] < edge)
        edge, at = edge[~gone], at[~gone]
        return _Candidates(edge, hi[at], lo[at], colours[at], addresses[at].astype(np.int64))

    def _added(self, edges: Int64Array) -> _Candidates:
        """Neighbours that edges before each one have added."""
        number = self._from[edges]
        which, at = _ranges(self._bounds[number], self._bounds[number + 1])
        edge, end = edges[which], self._new[at]
        count = len(self._epoch)
        before = np.flatnonzero(end % count < edge)
        edge, end = edge[before], end[before]
        one, other = self._epoch.ends
        hi, lo, colours = (
            np.concatenate((getattr(other, name), getattr(one, name)))[end]
            for name in ("hi", "lo", "colours")
        )
        return _Candidates(edge, hi, lo, colours, end)

    def _has_other_end(self, edge: Int64Array, hi: UInt64Array, lo: UInt64Array) -> BoolArray:
        """Whether the ends with more neighbours have these too, when it is the edge's turn."""
        count = len(self._epoch)
        far = np.where(
            self._far[edge], self._owners.number[edge], self._owners.number[count + edge]
        )
        one_way = np.zeros(len(edge), np.bool_)
        words = of_edges(self._owners.hi[far], self._owners.lo[far], hi, lo, one_way)
        changed = self._changed(*words)
        added = self._epoch.added
        # As the edge before has left it, or as it was.
        is_there = np.where(changed < edge, added[changed], ~added[changed])
        rest = np.flatnonzero(changed < 0)
        is_there[rest] = self._table.find(words[0][rest], words[1][rest]) != 0
        return is_there

    def _changed(self, hi: UInt64Array, lo: UInt64Array) -> Int64Array:
        """The numbers of edges among those of the epoch; -1 for others."""
        at = positions(hi, lo, self._hi, self._lo)
        return np.where(at >= 0, self._edge[at], -1)


@dataclass(frozen=True)
class _Candidates:
    """Neighbours of one end of edges."""

    edge: Int64Array
    hi: UInt64Array
    lo: UInt64Array
    colours: Int64Array
    source: Int64Array
    """Where they are: an address in state, or the number of an edge of the epoch."""


def _ranges(first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """All numbers of some ranges, and the number of the range of each."""
    lengths = last - first
    which = np.repeat(np.arange(len(lengths)), lengths)
    start = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return which, np.arange(len(which)) - start + first[which]
