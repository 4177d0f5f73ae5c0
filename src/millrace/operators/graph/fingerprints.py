"""Fingerprints of edges: of a row that belongs to a vertex and says who its neighbour is.

It is the vertex's own with some bits flipped that the neighbour alone decides: of `hi` only low
ones, so that all edges of a vertex are in its key group and neighbours in its base. Two edges of a
vertex have the same fingerprint only if 88 mixed bits of their neighbours' do.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import BoolArray, UInt64Array
from millrace.jit import kernel
from millrace.operators.window.fingerprints import mixed
from millrace.state.owners import ENTRY_MASK

Words = tuple[UInt64Array, UInt64Array]

GROUP_BITS = 12
"""At most this many of the highest bits are the key group's."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_GROUP_SHIFT = np.uint64(64 - GROUP_BITS)


@kernel
def of_edges(
    hi: UInt64Array,
    lo: UInt64Array,
    other_hi: UInt64Array,
    other_lo: UInt64Array,
    outgoing: BoolArray,
) -> tuple[UInt64Array, UInt64Array]:
    """Fingerprints of edges from vertices to their neighbours, of one direction or the other."""
    out_hi = np.empty(len(hi), np.uint64)
    out_lo = np.empty(len(hi), np.uint64)
    for i in range(len(hi)):
        salt = _GOLDEN if outgoing[i] else np.uint64(0)
        flipped = mixed(other_hi[i] + salt)
        out_hi[i] = hi[i] ^ (flipped & ENTRY_MASK)
        out_lo[i] = lo[i] ^ mixed(flipped ^ mixed(other_lo[i] + _GOLDEN))
    return out_hi, out_lo


@kernel
def in_parts(
    part_hi: UInt64Array, part_lo: UInt64Array, hi: UInt64Array, lo: UInt64Array
) -> tuple[UInt64Array, UInt64Array]:
    """Fingerprints of vertices within parts of a graph: in the key group of the part."""
    out_hi = np.empty(len(hi), np.uint64)
    out_lo = np.empty(len(hi), np.uint64)
    for i in range(len(hi)):
        group = part_hi[i] >> _GROUP_SHIFT << _GROUP_SHIFT
        out_hi[i] = group | (mixed(hi[i] + mixed(part_lo[i])) >> np.uint64(GROUP_BITS))
        out_lo[i] = mixed(lo[i] ^ mixed(part_hi[i]))
    return out_hi, out_lo
