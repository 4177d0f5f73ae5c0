"""Which columns an aggregate keeps in state, and what it shows of them. Pure Arrow.

A reader knows an aggregate from its spec alone, so this needs neither PySpark nor the kernels. The
reducers, which add epochs to the columns, take their columns and results from here. The functions
are in `layouts`, by family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace import types
from millrace.errors import UnsupportedTypeError
from millrace.operators.aggregate.kept import Asked, Kept
from millrace.operators.aggregate.layouts import collected, moments, numeric, sketches
from millrace.operators.operator import MAIN, ResultColumn, StateLayout, TableLayout

LAYOUTS = numeric.LAYOUTS | moments.LAYOUTS | collected.LAYOUTS | sketches.LAYOUTS
"""By the name of the function."""


def kept(
    function: str,
    name: str,
    input_type: pa.DataType,
    options: Mapping[str, Any],
    *,
    ansi: bool = True,
) -> Kept:
    """What an aggregate function over a type keeps; the types fit, or the query had not started."""
    layout = LAYOUTS.get(function)
    if layout is None:
        raise UnsupportedTypeError(
            f"this Millrace has no aggregate function {function!r}. If a newer one wrote the "
            "location, upgrade this one."
        )
    return layout(Asked(function, name, input_type, options, ansi))


def kept_of(spec: Mapping[str, Any]) -> list[tuple[str, Kept]]:
    """The aggregates of an operator's spec, by name, in order."""
    return [
        (a["name"], kept(a["function"], a["name"], _input(a), a["options"]))
        for a in spec["aggregates"]
    ]


def _input(aggregate: Mapping[str, Any]) -> pa.DataType:
    return types.arrow_of(aggregate["type"], f"the input of aggregate {aggregate['name']!r}")


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The one table of an aggregate, and its results."""
    fields = list(keys)
    results = [ResultColumn(key.name, key.type, (key.name,)) for key in keys]
    for name, kept in kept_of(spec):
        fields += kept.fields
        needs = tuple(field.name for field in kept.fields)
        results.append(ResultColumn(name, kept.type, needs, kept.result))
    return StateLayout({MAIN: TableLayout(pa.schema(fields))}, lambda moment: results)
