"""The edges of an input partition that matter: a spanning forest, before anything is sent.

All shards of `components` get all edges of an epoch. So each input partition first leaves out the
edges whose ends are joined by others already; of `bipartite` it keeps the first edge that closes
an odd cycle in each component. What is left are fewer edges than the partition has vertices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, UInt64Array
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import Scheme
from millrace.operators.graph.changes import grouped
from millrace.operators.graph.union import unite


def forest(
    first: tuple[UInt64Array, UInt64Array],
    second: tuple[UInt64Array, UInt64Array],
    sides: bool,
) -> BoolArray:
    """Which edges, given by the fingerprints of their ends, are enough."""
    count = len(first[0])
    ends = grouped(*(np.concatenate(both) for both in zip(first, second, strict=True)))
    keeps = np.zeros(count, np.bool_)
    one, other = ends.number[:count], ends.number[count:]
    # A vertex that has nothing but a loop is a vertex, which its edge alone says.
    met = np.zeros(len(ends), np.bool_)
    is_loop = one == other
    met[one[~is_loop]] = met[other[~is_loop]] = True
    loops = np.flatnonzero(is_loop & ~met[one])
    is_odd = np.full(len(ends), not sides)
    unite(np.arange(len(ends)), one, other, np.ones(count, np.bool_), is_odd, keeps)
    _, where = np.unique(one[loops], return_index=True)
    keeps[loops[where]] = True
    return keeps


def reduced(
    batches: Iterator[pa.RecordBatch],
    vertex: pa.DataType,
    sides: bool,
    scheme: Scheme,
    names: list[str],
) -> Iterator[pa.RecordBatch]:
    """The rows of an input partition that matter, with the fingerprints of both ends.

    Rows come with two columns, the ends; they leave with six of the given names: the first end's
    fingerprint, the ends, and the second end's fingerprint.
    """
    tables = [batch for batch in batches if batch.num_rows]
    if not tables:
        return
    rows = pa.Table.from_batches(tables)
    ends = [types.conform(rows.column(i), vertex) for i in (0, 1)]
    first, second = (fingerprints([end], scheme) for end in ends)
    kept = np.flatnonzero(forest(first, second, sides))
    chosen = pa.array(kept)
    words = [pa.array(word[kept].view(np.int64)) for word in (*first, *second)]
    values = [end.take(chosen) for end in ends]
    yield pa.RecordBatch.from_arrays([*words[:2], *values, *words[2:]], names=names)
