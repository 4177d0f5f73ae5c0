"""`top`: the k largest rows of each group, largest first, without sorting what is not kept.

The first field of a row is what it is ordered by. Rows that are equal in it are in order of their
other fields, larger ones first, so that the result does not depend on the order in which rows come;
arrays and structs play no part in this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import Int64Array
from millrace.jit import kernel
from millrace.operators.aggregate.combiners.collected import grouped
from millrace.operators.aggregate.extremes import float_order
from millrace.operators.aggregate.kept import State
from millrace.operators.arrays import int64s, validity
from millrace.operators.lists import list_parts, lists_at

_LEAST = np.iinfo(np.int64).min


def _top(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    rows, lengths = list_parts(states[0])
    cuts = grouped(lengths, starts)
    chosen, ends = _largest(_codes(rows), cuts, int(options["k"]))
    return [lists_at(rows.take(pa.array(chosen)), ends, states[0].type)]


def _codes(rows: pa.Array) -> Int64Array:
    """For each field that rows are ordered by, numbers in the order of its values."""
    fields = rows.flatten()
    ordered = [field for field in fields if not pa.types.is_nested(field.type)]
    codes = np.empty((len(ordered), len(rows)), np.int64)
    for i, field in enumerate(ordered):
        codes[i] = _order(field)
    return codes


def _order(values: pa.Array) -> Int64Array:
    """Numbers in Spark's order of some values; NULL comes before all."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = float_order(values)
    elif pa.types.is_decimal(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        encoded = values.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        where = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        numbers = rank[where] if len(rank) else np.zeros(len(values), np.int64)
    else:
        numbers = int64s(values)
    return np.where(validity(values), numbers, _LEAST)


@kernel
def _before(codes: Int64Array, a: int, b: int) -> bool:
    """Whether a row comes before another that is later in its group."""
    for i in range(codes.shape[0]):
        if codes[i, a] != codes[i, b]:
            return bool(codes[i, a] > codes[i, b])
    return False


@kernel
def _largest(codes: Int64Array, cuts: Int64Array, k: int) -> tuple[Int64Array, Int64Array]:
    """The positions of the largest rows of each group, and where those of each group begin."""
    groups = len(cuts) - 1
    ends = np.zeros(groups + 1, np.int64)
    for g in range(groups):
        ends[g + 1] = ends[g] + min(k, cuts[g + 1] - cuts[g])
    chosen = np.empty(ends[groups], np.int64)
    for g in range(groups):
        first = ends[g]
        size = 0
        most = ends[g + 1] - first
        for row in range(cuts[g], cuts[g + 1]):
            if size == most and not _before(codes, row, chosen[first + size - 1]):
                continue
            # Rows come mostly in order, so the place is looked for from the end.
            at = first + (size if size < most else size - 1)
            while at > first and _before(codes, row, chosen[at - 1]):
                chosen[at] = chosen[at - 1]
                at -= 1
            chosen[at] = row
            if size < most:
                size += 1
    return chosen, ends


COMBINERS = {"top": _top}
