"""Sketches: columns of bytes in the formats of Apache DataSketches, and frequent items.

What needs the kernels or the library is imported when a result is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.operators.aggregate.kept import Asked, Kept, Layout, State
from millrace.operators.arrays import int64s, validity
from millrace.operators.lists import list_type, make_lists, same_lists


def _approx_distinct(asked: Asked) -> Kept:
    return Kept([pa.field(asked.name, pa.binary())], pa.int64(), _hll_estimates)


def _distinct_sketch(asked: Asked) -> Kept:
    return Kept([pa.field(asked.name, pa.binary())], pa.binary())


def _quantile(asked: Asked) -> Kept:
    ranks, single = asked.options["ranks"], asked.options["single"]
    result = pa.float64() if single else list_type(pa.float64())
    quantiles = partial(_quantiles, ranks, bool(single))
    return Kept([pa.field(asked.name, pa.binary())], result, quantiles)


def _heavy_hitters(asked: Asked) -> Kept:
    name = asked.name
    fields = [
        pa.field(f"{name}.items", list_type(asked.type)),
        pa.field(f"{name}.counts", list_type(pa.int64())),
        pa.field(f"{name}.error", pa.int64()),
    ]
    item = pa.field("item", asked.type, nullable=False)
    shown = list_type(pa.struct([item, pa.field("count", pa.int64(), nullable=False)]))
    return Kept(fields, shown, partial(_most_frequent, int(asked.options["k"]), shown))


LAYOUTS: dict[str, Layout] = {
    "approx_distinct": _approx_distinct,
    "distinct_sketch": _distinct_sketch,
    "quantile": _quantile,
    "heavy_hitters": _heavy_hitters,
}


def _hll_estimates(state: State) -> pa.Array:
    from millrace.operators.aggregate.sketches import hll

    return pa.array(hll.estimates(state[0]), pa.int64())


def _quantiles(ranks: Sequence[float], single: bool, state: State) -> pa.Array:
    from millrace.operators.aggregate.sketches import kll

    values, known = kll.quantiles(state[0], ranks)
    if single:
        return pa.array(values[:, 0], pa.float64(), mask=~known)
    offsets = np.concatenate(([0], np.cumsum(np.where(known, len(ranks), 0)))).astype(np.int32)
    flat = pa.array(values[known].ravel(), pa.float64())
    lists = list_type(pa.float64())
    return pa.ListArray.from_arrays(pa.array(offsets), flat, lists, mask=pa.array(~known))


def _most_frequent(k: int, shown: pa.DataType, state: State) -> pa.Array:
    """The `k` items with the highest counts, highest first; equal ones in order of their items."""
    items, numbers, lengths = same_lists(state[0], state[1])
    counts = np.asarray(numbers, np.int64)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    by_item = np.empty(len(items), np.int64)
    by_item[np.asarray(pa.compute.sort_indices(items), np.int64)] = np.arange(len(items))
    order = np.lexsort((by_item, -counts, owner))
    place = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    order = order[place < k]
    error = np.where(validity(state[2]), int64s(state[2]), 0)
    estimates = counts[order] + error[owner[order]]
    rows = pa.StructArray.from_arrays(
        [items.take(pa.array(order)), pa.array(estimates, pa.int64())],
        fields=list(shown.value_type),
    )
    return make_lists(rows, np.minimum(lengths, k), shown)
