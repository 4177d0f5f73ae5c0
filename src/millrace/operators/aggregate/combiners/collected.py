"""Lists, sets, distinct counts and the mode: the values of all keys at once, without a copy of
what is only put one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.operators.aggregate.distinct import first_equal, summed, words
from millrace.operators.aggregate.kept import State
from millrace.operators.lists import list_parts, lists_at, same_lists


def grouped(lengths: Int64Array, starts: Int64Array) -> Int64Array:
    """Where the elements of each group's lists begin and end."""
    ends: Int64Array = np.concatenate(([0], np.cumsum(lengths)))
    return ends[starts]


def kept_cuts(kept: BoolArray, cuts: Int64Array) -> Int64Array:
    """Cuts after all but some elements are gone."""
    before: Int64Array = np.concatenate(([0], np.cumsum(kept)))
    return before[cuts]


def _list(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    values, lengths = list_parts(states[0])
    return [lists_at(values, grouped(lengths, starts), states[0].type)]


def _set(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    values, lengths = list_parts(states[0])
    cuts = grouped(lengths, starts)
    first = first_equal(cuts, *words(values))
    kept = first == np.arange(len(first))
    return [lists_at(values.filter(pa.array(kept)), kept_cuts(kept, cuts), states[0].type)]


def _distinct(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    hi, lo, lengths = same_lists(states[0], states[1])
    cuts = grouped(lengths, starts)
    first = first_equal(cuts, hi.to_numpy(), lo.to_numpy())
    kept = first == np.arange(len(first))
    after, mask = kept_cuts(kept, cuts), pa.array(kept)
    return [lists_at(half.filter(mask), after, states[0].type) for half in (hi, lo)]


def _mode(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    values, counts, cuts = counted(states[0], states[1], starts)
    return [
        lists_at(values, cuts, states[0].type),
        lists_at(pa.array(counts), cuts, states[1].type),
    ]


def counted(
    lists: pa.Array, counts: pa.Array, starts: Int64Array
) -> tuple[pa.Array, Int64Array, Int64Array]:
    """The distinct values of each group with their counts, and where those of each group are."""
    values, numbers, lengths = same_lists(lists, counts)
    cuts = grouped(lengths, starts)
    first = first_equal(cuts, *words(values))
    kept = first == np.arange(len(first))
    total = summed(first, numbers.to_numpy())
    return values.filter(pa.array(kept)), total[kept], kept_cuts(kept, cuts)


COMBINERS = {"collect_list": _list, "collect_set": _set, "count_distinct": _distinct, "mode": _mode}
