"""`max_by` and `min_by`: a value of the row that is largest or smallest by another.

Of rows that are equal, the last counts, as in Spark. A row whose order is NULL does not count; a
row whose value is NULL does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.extremes import best
from millrace.operators.aggregate.kept import State


def _combine(
    largest: bool, states: State, starts: Int64Array, options: Mapping[str, Any]
) -> list[pa.Array]:
    values, orders = states
    nothing = pa.nulls(len(starts) - 1, orders.type)
    winner = best(nothing, orders, starts, largest=largest, last=True) - len(nothing)
    chosen = pa.array(winner, mask=winner < 0)
    return [values.take(chosen), orders.take(chosen)]


COMBINERS = {"max_by": partial(_combine, True), "min_by": partial(_combine, False)}
