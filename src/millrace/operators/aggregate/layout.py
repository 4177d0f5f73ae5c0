"""Which columns an aggregate keeps in state, and what it shows of them. Pure Arrow.

A reader knows an aggregate from its spec alone, so this needs neither PySpark nor the kernels. The
reducers, which add epochs to the columns, take their columns and results from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.errors import AggregateOverflowError, UnsupportedTypeError
from millrace.operators.arrays import build, decimal_words, float64s, int64s, validity
from millrace.operators.operator import MAIN, ResultColumn, StateLayout, TableLayout

State = Sequence[pa.Array]


def _stored(state: State) -> pa.Array:
    return state[0]


@dataclass(frozen=True)
class Kept:
    """The state columns of one aggregate, and how to compute the result from them."""

    fields: list[pa.Field]
    type: pa.DataType
    """Of the result."""
    result: Callable[[State], pa.Array] = _stored


def kept(
    function: str,
    name: str,
    input_type: pa.DataType,
    options: Mapping[str, Any],
    *,
    ansi: bool = True,
) -> Kept:
    """What an aggregate function over a type keeps; the types fit, or the query had not started."""
    decimal = pa.types.is_decimal(input_type)
    if function == "count":
        return Kept([pa.field(name, pa.int64())], pa.int64(), _count)
    if function in ("min", "max"):
        return Kept([pa.field(name, input_type)], input_type)
    if function in ("first", "last"):
        is_set = [] if options["ignore_nulls"] else [pa.field(f"{name}.set", pa.bool_())]
        return Kept([pa.field(name, input_type), *is_set], input_type)
    if function == "sum" and decimal:
        total = pa.decimal128(min(input_type.precision + 10, 38), input_type.scale)
        fields = [pa.field(name, total), pa.field(f"{name}.overflow", pa.bool_())]
        return Kept(fields, total, _sum_decimal)
    if function == "sum":
        total = pa.int64() if pa.types.is_integer(input_type) else pa.float64()
        return Kept([pa.field(name, total)], total)
    if function == "mean" and decimal:
        fields = [
            *kept("sum", f"{name}.sum", input_type, options).fields,
            pa.field(f"{name}.count", pa.int64()),
        ]
        mean = pa.decimal128(min(input_type.precision + 4, 38), min(input_type.scale + 4, 38))
        return Kept(fields, mean, partial(_mean_decimal, name, mean, ansi))
    if function == "mean":
        fields = [pa.field(f"{name}.sum", pa.float64()), pa.field(f"{name}.count", pa.int64())]
        return Kept(fields, pa.float64(), _mean_double)
    if function in ("variance", "stddev"):
        fields = [
            pa.field(f"{name}.count", pa.int64()),
            pa.field(f"{name}.mean", pa.float64()),
            pa.field(f"{name}.m2", pa.float64()),
        ]
        spread = partial(_spread, bool(options["sample"]), function == "stddev")
        return Kept(fields, pa.float64(), spread)
    raise UnsupportedTypeError(f"there is no aggregate function {function!r}.")


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


def overflow(name: str, type_name: str) -> AggregateOverflowError:
    return AggregateOverflowError(
        f"the aggregate {name!r} left the range of {type_name}. The epoch was not committed. Use a "
        "wider type (cast the column to decimal or double), or set spark.sql.ansi.enabled=false to "
        "get Spark's non-ANSI behaviour."
    )


def _count(state: State) -> pa.Array:
    # NULL only where the aggregate was added later and the key has not been seen since.
    return state[0].fill_null(0) if state[0].null_count else state[0]


def _sum_decimal(state: State) -> pa.Array:
    lost = state[1].fill_null(False).to_numpy(zero_copy_only=False)
    if not lost.any():
        return state[0]
    return build(decimal_words(state[0]), validity(state[0]) & ~lost, state[0].type)


def _mean_double(state: State) -> pa.Array:
    count = np.where(validity(state[1]), int64s(state[1]), 0)
    known = count > 0
    mean = np.divide(float64s(state[0]), count, out=np.zeros(len(count)), where=known)
    return build(mean, known, pa.float64())


def _mean_decimal(name: str, target: pa.DataType, ansi: bool, state: State) -> pa.Array:
    # Exact integer arithmetic: decimals have no vectorised division that rounds half up.
    total = _sum_decimal(state[:2])
    shift = 10 ** (target.scale - total.type.scale)
    limit = 10**target.precision
    counts = state[2].to_pylist()
    means: list[int | None] = []
    for unscaled, count in zip(_unscaled(total), counts, strict=True):
        if unscaled is None or not count:
            means.append(None)
            continue
        quotient = (2 * abs(unscaled) * shift + count) // (2 * count)
        mean = quotient if unscaled >= 0 else -quotient
        if quotient >= limit:
            if ansi:
                raise overflow(name, f"decimal({target.precision},{target.scale})")
            means.append(None)
        else:
            means.append(mean)
    return _scaled(means, target)


def _spread(sample: bool, root: bool, state: State) -> pa.Array:
    """Variance or standard deviation."""
    count = np.where(validity(state[0]), int64s(state[0]), 0)
    degrees = count - (1 if sample else 0)
    known = (count > 0) & (degrees > 0)
    value = np.divide(float64s(state[2]), degrees, out=np.zeros(len(count)), where=known)
    if root:
        value = np.sqrt(value, out=value, where=known)
    return build(value, known, pa.float64())


def _unscaled(array: pa.Array) -> list[int | None]:
    words = decimal_words(array)
    low, high = words[0::2], words[1::2].view(np.int64)
    valid = validity(array)
    return [
        (int(h) << 64) + int(w) if ok else None for w, h, ok in zip(low, high, valid, strict=True)
    ]


def _scaled(values: list[int | None], data_type: pa.DataType) -> pa.Array:
    words = np.zeros(2 * len(values), np.uint64)
    valid = np.zeros(len(values), np.bool_)
    for i, value in enumerate(values):
        if value is not None:
            words[2 * i] = value & (2**64 - 1)
            words[2 * i + 1] = (value >> 64) & (2**64 - 1)
            valid[i] = True
    return build(words, valid, data_type)
