"""Sketches: unions of all keys' sketches, and counts of frequent items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.combiners.collected import counted, kept_cuts
from millrace.operators.aggregate.kept import State
from millrace.operators.aggregate.sketches import frequent, hll, kll, theta
from millrace.operators.arrays import int64s, validity
from millrace.operators.lists import lists_at


def _hll(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    return [hll.merge(states[0], starts, options["lg_k"])]


def _theta(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    return [theta.merge(states[0], starts, options["lg_k"])]


def _kll(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    return [kll.merge(states[0], starts, options["accuracy"])]


def _frequent(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    items, counts, cuts = counted(states[0], states[1], starts)
    errors = frequent.Errors(int64s(states[2]), validity(states[2]))
    kept, error = frequent.cut(counts, cuts, errors, starts, options["track"])
    after = kept_cuts(kept, cuts)
    return [
        lists_at(items.filter(pa.array(kept)), after, states[0].type),
        lists_at(pa.array(counts[kept]), after, states[1].type),
        pa.array(error, pa.int64()),
    ]


COMBINERS = {
    "approx_distinct": _hll,
    "distinct_sketch": _theta,
    "quantile": _kll,
    "heavy_hitters": _frequent,
}
