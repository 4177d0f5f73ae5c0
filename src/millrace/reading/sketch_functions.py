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
from functools import partial

import duckdb
import numpy as np
import pyarrow as pa

from millrace.errors import NotASketchError


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to a connection."""
    pairs = {"theta_union": 0, "theta_intersection": 1, "theta_difference": 2}
    functions: dict[str, tuple[Callable[..., pa.Array], list[str], str]] = {
        "theta_sketch_estimate": (_estimate, ["BLOB"], "BIGINT"),
        "theta_union_list": (_union_list, ["BLOB[]"], "BLOB"),
        **{name: (partial(_pair, n), ["BLOB", "BLOB"], "BLOB") for name, n in pairs.items()},
    }
    for name, (function, takes, gives) in functions.items():
        connection.create_function(name, function, takes, gives, type="arrow")


def _sketches(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of sketches; raises if something else is among them."""
    from millrace.operators.aggregate.sketches import theta

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = column.cast(pa.binary())
    bad = theta.first_bad(column)
    if bad >= 0:
        raise NotASketchError(
            f"a value that begins with {column[bad].as_py()[:8].hex()} is not a theta sketch. "
            "distinct_sketch() makes them, and so does Spark's theta_sketch_agg()."
        )
    return column


def _estimate(sketches: pa.Array | pa.ChunkedArray) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta

    given = _sketches(sketches)
    return pa.array(np.rint(theta.estimates(given)), mask=~np.asarray(given.is_valid())).cast(
        pa.int64()
    )


def _pair(
    operation: int, left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray
) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta

    return theta.combined(_sketches(left), _sketches(right), operation)


def _union_list(lists: pa.Array | pa.ChunkedArray) -> pa.Array:
    from millrace.operators.aggregate.sketches import theta
    from millrace.operators.lists import list_parts

    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    sketches, lengths = list_parts(lists)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return theta.merge(_sketches(sketches), starts, theta.WIDEST)
