"""States of one aggregate, put together: the panes of a window, for example.

`Reducer.merge` adds partial results of rows to a state; this adds states to each other. It needs
the kernels, but neither PySpark nor a reducer, so that readers can do it as well as shards. Where
the order matters (`first`, `last`), states come in the order in which their rows count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.operators.aggregate import kernels
from millrace.operators.aggregate.combiners import COMBINERS
from millrace.operators.aggregate.extremes import best, nullable
from millrace.operators.aggregate.kept import overflow
from millrace.operators.arrays import build, decimal_words, flags, float64s, int64s, validity

States: TypeAlias = Sequence[pa.Array]
"""The columns of one aggregate's states, in order of group."""


def combine(
    function: str,
    name: str,
    states: States,
    starts: Int64Array,
    options: Mapping[str, Any],
    *,
    ansi: bool = True,
) -> list[pa.Array]:
    """One state for each group: group `g` has the states from `starts[g]` to `starts[g + 1]`."""
    if function in COMBINERS:
        return COMBINERS[function](states, starts, options)
    if function in ("variance", "stddev"):
        return _moments(states, starts)
    if function in ("min", "max", "bool_and", "bool_or"):
        return [_extreme(states[0], starts, function in ("max", "bool_or"))]
    if function in ("first", "last"):
        return _first_or_last(states, starts, function == "last")
    decimal = pa.types.is_decimal(states[0].type)
    if decimal and function in ("sum", "mean"):
        total = _decimal_sum(name, states[:2], starts, ansi)
        return [*total, _counts(states[2], starts)] if function == "mean" else total
    if function == "mean":
        return [_doubles(states[0], starts), _counts(states[1], starts)]
    if function == "count":
        return [_counts(states[0], starts)]
    if pa.types.is_floating(states[0].type):
        return [_doubles(states[0], starts)]
    total, lost = _add_int64(states[0], starts)
    if lost >= 0 and ansi:
        raise overflow(name, "bigint")
    return [total]


def taken(values: pa.Array, winner: Int64Array) -> pa.Array:
    """The values at some positions; NULL for `NONE`."""
    return values.take(pa.array(winner, mask=winner < 0))


def _nothing(like: pa.Array, starts: Int64Array) -> pa.Array:
    return pa.nulls(len(starts) - 1, like.type)


def _add_int64(states: pa.Array, starts: Int64Array) -> tuple[pa.Array, int]:
    total, valid, lost = kernels.add_int64(
        nullable(_nothing(states, starts), int64s), nullable(states, int64s), starts
    )
    return build(total, valid, pa.int64()), lost


def _counts(states: pa.Array, starts: Int64Array) -> pa.Array:
    return _add_int64(states, starts)[0]


def _doubles(states: pa.Array, starts: Int64Array) -> pa.Array:
    total, valid = kernels.add_float64(
        nullable(_nothing(states, starts), float64s), nullable(states, float64s), starts
    )
    return build(total, valid, pa.float64())


def _decimal_sum(name: str, states: States, starts: Int64Array, ansi: bool) -> list[pa.Array]:
    total, overflown = states
    limit = 10**total.type.precision
    added, valid, lost = kernels.add_decimal(
        nullable(_nothing(total, starts), decimal_words),
        nullable(total, decimal_words),
        starts,
        (np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)),
    )
    lost_before: BoolArray = overflown.fill_null(False).to_numpy(zero_copy_only=False)
    if lost_before.any():
        lost |= np.logical_or.reduceat(lost_before, starts[:-1])
    if lost.any() and ansi:
        raise overflow(name, f"decimal({total.type.precision},{total.type.scale})")
    return [build(added, valid, total.type), flags(lost)]


def _moments(states: States, starts: Int64Array) -> list[pa.Array]:
    groups = len(starts) - 1
    counts = np.where(validity(states[0]), int64s(states[0]), 0)
    none = np.zeros(groups, np.int64), np.zeros(groups), np.zeros(groups)
    count, mean, m2 = kernels.merge_moments(
        none, (counts, float64s(states[1]), float64s(states[2])), starts
    )
    every = np.ones(groups, np.bool_)
    types = (pa.int64(), pa.float64(), pa.float64())
    return [build(v, every, t) for v, t in zip((count, mean, m2), types, strict=True)]


def _extreme(values: pa.Array, starts: Int64Array, largest: bool) -> pa.Array:
    nothing = _nothing(values, starts)
    winner = best(nothing, values, starts, largest=largest)
    return taken(pa.concat_arrays([nothing, values]), winner)


def _first_or_last(states: States, starts: Int64Array, last: bool) -> list[pa.Array]:
    groups = len(starts) - 1
    if len(states) > 1:
        is_set = states[1].fill_null(False).to_numpy(zero_copy_only=False)
    else:
        is_set = validity(states[0])
    winner = kernels.first_or_last(
        np.zeros(groups, np.bool_), is_set, np.zeros(len(is_set), np.int64), starts, last
    )
    values = taken(pa.concat_arrays([_nothing(states[0], starts), states[0]]), winner)
    return [values, flags(winner >= 0)] if len(states) > 1 else [values]
