"""Functions for theta sketches in SQL on state: `distinct_sketch` gives them.

    theta_sketch_estimate(sketch)     the number of distinct values, rounded
    theta_union(a, b)                 the values in either
    theta_intersection(a, b)          the values in both
    theta_difference(a, b)            the values in the first and not in the second
    theta_union_list(sketches)        the values in any of a list: list(sketch) collects a column

The first four are called as in Spark, and give what Spark's give. NULL gives NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from millrace.errors import MillraceError, NotASketchError

Column: TypeAlias = Any
"""An Arrow array, in one piece or in chunks."""

_PAIRS = {"theta_union": 0, "theta_intersection": 1, "theta_difference": 2}


def register(
    connection: duckdb.DuckDBPyConnection, failed: Callable[[MillraceError], None]
) -> None:
    """Make the functions known to a connection; `failed` is told of an error that DuckDB wraps."""
    # By its name: the module of the enumeration differs between versions of DuckDB.
    arrow: Any = "arrow"

    def sketches(column: Column) -> pa.Array:
        try:
            return _checked(column)
        except NotASketchError as error:
            failed(error)
            raise

    def define(
        name: str, function: Callable[..., pa.Array], takes: list[Any], gives: str = "BLOB"
    ) -> None:
        connection.create_function(name, function, takes, gives, type=arrow)

    def pair(operation: int) -> Callable[[Column, Column], pa.Array]:
        return lambda left, right: _combined(sketches(left), sketches(right), operation)

    define("theta_sketch_estimate", lambda c: _estimates(sketches(c)), ["BLOB"], "BIGINT")
    for name, operation in _PAIRS.items():
        define(name, pair(operation), ["BLOB", "BLOB"])
    define("theta_union_list", lambda lists: _united(lists, sketches), ["BLOB[]"])


# The kernels are loaded when a query first calls one of the functions.


def _checked(column: Column) -> pa.Array:
    """One array of sketches; raises if something else is among them."""
    from millrace.operators.aggregate.sketches import theta

    found = _whole(column).cast(pa.binary())
    bad = theta.first_bad(found)
    if bad >= 0:
        raise NotASketchError(
            f"a value that begins with {found[bad].as_py()[:8]!r} is not a theta sketch. "
            "distinct_sketch() makes them, and so does Spark's theta_sketch_agg()."
        )
    return found


def _estimates(sketches: pa.Array) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta

    known = np.asarray(sketches.is_valid())
    rounded = np.rint(np.where(known, theta.estimates(sketches), 0)).astype(np.int64)
    return pa.array(rounded, mask=~known)


def _combined(left: pa.Array, right: pa.Array, operation: int) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta

    return theta.combined(left, right, operation)


def _united(lists: Column, sketches: Callable[[Column], pa.Array]) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta
    from millrace.operators.lists import list_parts

    given, lengths = list_parts(_whole(lists))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return theta.merge(sketches(given), starts, theta.WIDEST)


def _whole(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
