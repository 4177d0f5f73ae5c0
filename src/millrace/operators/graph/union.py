"""Union-find with sides: which things an edge joins, and whether two sides are enough.

A thing is a number. An edge says that two things are in one set, and whether they are on different
sides of it. Of each set the thing with the lowest rank is the root. Edges that contradict each
other make their set odd: it has a cycle of odd length, and no sides.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import BoolArray, Int64Array
from millrace.jit import kernel


@kernel
def _root(thing: int, parent: Int64Array, across: BoolArray) -> int:
    """The root of a thing, which becomes its parent; `across` says whether sides differ."""
    root = thing
    crosses = False
    while parent[root] != root:
        crosses ^= across[root]
        root = parent[root]
    while parent[thing] != root and thing != root:
        above = parent[thing]
        before = across[thing]
        parent[thing] = root
        across[thing] = crosses
        crosses ^= before
        thing = above
    return root


@kernel
def unite(
    rank: Int64Array,
    first: Int64Array,
    second: Int64Array,
    differs: BoolArray,
    is_odd: BoolArray,
    keeps: BoolArray,
) -> tuple[Int64Array, BoolArray]:
    """The root of each thing, and whether it is on the other side of it than the root.

    `is_odd` says which sets are odd, and has what all are in the end at their roots. `keeps` is set
    for the edges that matter: without the others the result is the same.
    """
    count = len(rank)
    parent = np.arange(count)
    across = np.zeros(count, np.bool_)
    for edge in range(len(first)):
        a = _root(first[edge], parent, across)
        b = _root(second[edge], parent, across)
        crosses = differs[edge] ^ across[first[edge]] ^ across[second[edge]]
        if a == b:
            if crosses and not is_odd[a]:
                is_odd[a] = True
                keeps[edge] = True
            continue
        if rank[b] < rank[a]:
            a, b = b, a
        parent[b] = a
        across[b] = crosses
        is_odd[a] |= is_odd[b]
        keeps[edge] = True
    for thing in range(count):
        parent[thing] = _root(thing, parent, across)
    return parent, across
