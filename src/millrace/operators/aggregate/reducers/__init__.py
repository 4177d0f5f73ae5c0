"""Reducers: what each aggregate keeps, how epochs add to it, and what it shows.

A reducer has state columns; Spark's JVM reduces each input partition to one row per key with
`partials`, `merge` adds such rows to the state, and `result` turns state into the value shown.
Each equals Spark's own function over the same rows: NULLs are skipped, a sum of nothing is NULL,
NaN is larger than any number, decimals round half up, and in ANSI mode an overflow is an error.

Where a result depends on the order of rows (`Reducer.ordered`), earlier epochs come first, and
within an epoch lower input partitions.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from millrace import types
from millrace.errors import UnsupportedTypeError
from millrace.operators.aggregate.layout import kept
from millrace.operators.aggregate.reducers import collected, moments, numeric, order, sketches
from millrace.operators.aggregate.reducers.base import Finder, Groups, Reducer

__all__ = ["Groups", "Reducer", "resolve"]

FINDERS: dict[str, Finder] = {
    **numeric.FINDERS,
    **order.FINDERS,
    **moments.FINDERS,
    **collected.FINDERS,
    **sketches.FINDERS,
}
"""By the name of the function."""


def resolve(function: str, name: str, input_type: T.DataType, options: dict[str, Any]) -> Reducer:
    """The reducer for a function over a type, or an error that says what would work."""
    finder = FINDERS.get(function)
    if finder is None:
        raise UnsupportedTypeError(f"there is no aggregate function {function!r}.")
    arrow = types.arrow_type(input_type, f"the input of {function}() for {name!r}")
    reducer, more = finder(function, name, input_type)
    known = kept(function, name, arrow, options, ansi=bool(options.get("ansi", True)))
    return reducer(name, input_type, options | more, known)
