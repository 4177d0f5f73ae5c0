"""What a match says of its rows: columns over the rows of a variable, for all matches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import BoolArray, Int64Array
from millrace.errors import PatternLimitError
from millrace.operators.arrays import build, float64s, int64s, validity
from millrace.operators.lists import make_lists
from millrace.operators.pattern.spec import Measure
from millrace.operators.window.panes import counted

_SAFE = 9.2e18


def measured(
    matches: Int64Array,
    paths: Int64Array,
    columns: Mapping[str, pa.Array],
    measures: Sequence[tuple[Measure, int, pa.DataType]],
) -> list[pa.Array]:
    """The columns of matches: for each measure, with the number of its variable and its type.

    A number below zero stands for all variables.
    """
    which, number = counted(matches[:, 2] - matches[:, 1])
    taken = paths[matches[:, 1][which] + number]
    found = []
    for measure, variable, data_type in measures:
        chosen = slice(None) if variable < 0 else taken[:, 0] == variable
        of, rows = which[chosen], taken[chosen, 1]
        column = None if measure.column is None else columns[measure.column]
        found.append(_measure(measure, of, rows, column, len(matches), data_type))
    return found


def _measure(
    measure: Measure,
    of: Int64Array,
    rows: Int64Array,
    column: pa.Array | None,
    matches: int,
    data_type: pa.DataType,
) -> pa.Array:
    """One column. `of` says, in ascending order, to which match each row belongs."""
    function = measure.function
    if column is None:
        return pa.array(np.bincount(of, minlength=matches))
    if function in ("first", "last"):
        return _picked(column, of, rows, matches, is_last=function == "last")
    values = column.take(pa.array(rows))
    if function == "list":
        return make_lists(values, np.bincount(of, minlength=matches), data_type)
    known = validity(values)
    of, rows = of[known], rows[known]
    counts = np.bincount(of, minlength=matches)
    if function == "count":
        return pa.array(counts)
    values = values.filter(pa.array(known))
    if function in ("min", "max"):
        order = _ordered(values, of)
        return _picked(column, of[order], rows[order], matches, is_last=function == "max")
    present: BoolArray = counts > 0
    if pa.types.is_floating(values.type):
        total = np.bincount(of, float64s(values), matches)
        mean = total / np.maximum(counts, 1)
        return build(total if function == "sum" else mean, present, data_type)
    whole: Int64Array = np.zeros(matches, np.int64)
    numbers = int64s(values)
    rough = np.bincount(of, numbers.astype(np.float64), matches)
    if function == "mean":
        return build(rough / np.maximum(counts, 1), present, data_type)
    if (np.abs(rough) > _SAFE).any():
        raise PatternLimitError(
            f"sum({measure.column!r}) of a match has over 64 bits. Cast the column to double."
        )
    np.add.at(whole, of, numbers)
    return build(whole, present, data_type)


def _picked(
    column: pa.Array, of: Int64Array, rows: Int64Array, matches: int, *, is_last: bool
) -> pa.Array:
    """The value in the first or the last row of each match; NULL where there is none."""
    at: Int64Array = np.full(matches, -1, np.int64)
    # The last of several values is the one that stays.
    if is_last:
        at[of] = rows
    else:
        at[of[::-1]] = rows[::-1]
    return column.take(pa.array(at, mask=at < 0))


def _ordered(values: pa.Array, of: Int64Array) -> Int64Array:
    """The order by match, and then by value; NaN is the largest number."""
    if pa.types.is_floating(values.type):
        return np.lexsort((float64s(values), of))
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    table = pa.table({"of": pa.array(of), "value": values})
    order = pc.sort_indices(table, sort_keys=[("of", "ascending"), ("value", "ascending")])
    return np.asarray(order.to_numpy(), np.int64)
