"""Aggregates that keep the values themselves: lists, sets, distinct counts, the mode."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.kept import Asked, Kept, Layout, State
from millrace.operators.lists import list_parts, list_type, make_lists, same_lists


def _collected(asked: Asked) -> Kept:
    values = list_type(asked.type)
    return Kept([pa.field(asked.name, values)], values, _filled)


def _distinct(asked: Asked) -> Kept:
    """128 bits stand for each value, as they do for keys, whatever its type."""
    words = list_type(pa.uint64())
    fields = [pa.field(f"{asked.name}.hi", words), pa.field(f"{asked.name}.lo", words)]
    return Kept(fields, pa.int64(), _number)


def _counted_values(asked: Asked) -> Kept:
    fields = [
        pa.field(f"{asked.name}.values", list_type(asked.type)),
        pa.field(f"{asked.name}.counts", list_type(pa.int64())),
    ]
    return Kept(fields, asked.type, partial(_most_frequent, asked.type))


LAYOUTS: dict[str, Layout] = {
    "collect_list": _collected,
    "collect_set": _collected,
    "top": _collected,
    "count_distinct": _distinct,
    "mode": _counted_values,
}


def _filled(state: State) -> pa.Array:
    """The lists; an empty one where there is none."""
    lists = state[0]
    return make_lists(*list_parts(lists), lists.type) if lists.null_count else lists


def _number(state: State) -> pa.Array:
    return pa.array(list_parts(state[0])[1], pa.int64())


def _most_frequent(data_type: pa.DataType, state: State) -> pa.Array:
    """Of several values that are equally frequent, the one that was seen first."""
    values, numbers, lengths = same_lists(state[0], state[1])
    counts = np.asarray(numbers, np.int64)
    winner = first_largest(counts, lengths)
    return values.take(pa.array(winner, mask=winner < 0)).cast(data_type)


def first_largest(counts: Int64Array, lengths: Int64Array) -> Int64Array:
    """The position of the first largest count of each list; -1 for an empty one."""
    winner = np.full(len(lengths), -1, np.int64)
    some = np.flatnonzero(lengths)
    if not len(some):
        return winner
    starts = (np.cumsum(lengths) - lengths)[some]
    largest = np.repeat(np.maximum.reduceat(counts, starts), lengths[some])
    # Positions of the largest, in order: the first of each list is where the list changes.
    at = np.flatnonzero(counts == largest)
    owner = np.repeat(some, lengths[some])[at]
    first = np.concatenate(([True], owner[1:] != owner[:-1]))
    winner[owner[first]] = at[first]
    return winner
