"""What Spark's JVM would hand to a reducer, in plain Python, and folding it epoch by epoch.

`partial_rows` mirrors `Reducer.partials`: one row per key and input partition. `Folding` keeps the
state of all keys as Python values, so every epoch goes through Arrow and back, as in a location.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import reduce
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.reducers import Groups, Reducer, resolve
from millrace.operators.lists import list_type
from millrace.operators.operator import Moment
from millrace.reading.description import Description

Values = Sequence[Any]
Epoch = Mapping[Any, Mapping[int, Values]]
"""Key -> input partition -> its rows' values."""


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def precise_sum(values: Sequence[Decimal]) -> Decimal:
    with localcontext() as context:
        context.prec = 200
        return sum(values, Decimal(0))


def spark_order(value: Any) -> Any:
    """A sort key in Spark's order: NaN above all, -0.0 and 0.0 equal, strings by their bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


BITS = {"bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor}


def best_pair(function: str, pairs: Values) -> Any:
    """The row that is the largest or smallest by its second column; of equal ones the last."""
    best = None
    for pair in pairs:
        order = spark_order(pair["second"])
        if order is None:
            continue
        now = best and spark_order(best["second"])
        if best is None or (order >= now if function == "max_by" else order <= now):
            best = pair
    return best


def central(values: Values) -> list[Any]:
    """The count, the mean, and the sums of the second to fourth powers of differences from it."""
    if not values:
        return [0, None, None, 0.0, 0.0]
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    return [
        len(exact),
        float(mean),
        *(float(sum((v - mean) ** p for v in exact)) for p in (2, 3, 4)),
    ]


def co_moments(pairs: Values) -> list[Any]:
    """Of pairs without NULLs: count, means, and sums of products of differences from them."""
    known = [p for p in pairs if p["first"] is not None and p["second"] is not None]
    if not known:
        return [0, *[None] * 5]
    xs, ys = ([Fraction(p[side]) for p in known] for side in ("first", "second"))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    co = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    squares = (float(sum((v - m) ** 2 for v in vs)) for vs, m in ((xs, x), (ys, y)))
    return [len(known), float(x), float(y), float(co), *squares]


def same(value: Any) -> Any:
    """Something hashable that is equal where Spark groups values together."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return tuple(map(same, value)) if isinstance(value, list) else value


def distinct(values: Values) -> list[Any]:
    """Each value once, in the order of first sight."""
    found: dict[Any, Any] = {}
    for value in values:
        found.setdefault(same(value), value)
    return list(found.values())


def _hll(values: Values, options: Mapping[str, Any]) -> bytes:
    sketch = datasketches.hll_sketch(options["lg_k"], datasketches.HLL_8)
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize_updatable())


def _theta(values: Values, options: Mapping[str, Any]) -> bytes:
    sketch = datasketches.update_theta_sketch(options["lg_k"])
    for value in values:
        sketch.update(value)
    return bytes(sketch.compact().serialize())


def _kll(values: Values, options: Mapping[str, Any]) -> bytes:
    sketch = datasketches.kll_doubles_sketch(options["accuracy"])
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize())


def _frequent(values: Values, options: Mapping[str, Any]) -> bytes:
    size = max(3, math.ceil(math.log2(options["track"] / 0.75)))
    if any(isinstance(value, str) for value in values):
        sketch = datasketches.frequent_strings_sketch(size)
        for value in values:
            sketch.update(value)
        return bytes(sketch.serialize())
    numbers = datasketches.frequent_items_sketch(size)
    for value in values:
        numbers.update(value)
    return bytes(numbers.serialize(datasketches.PyLongsSerDe()))


SKETCHES = {
    "approx_distinct": _hll,
    "distinct_sketch": _theta,
    "quantile": _kll,
    "heavy_hitters": _frequent,
}
"""What Spark's JVM gives for a key's values of one input partition."""


def partial_types(reducer: Reducer, function: str) -> list[pa.DataType]:
    """The types of the columns of `Reducer.partials`."""
    fields = reducer.fields
    if function in ("sum", "mean") and isinstance(reducer.input_type, T.DecimalType):
        return [fields[0].type, pa.int64()]
    if function in ("count_distinct", "mode"):
        return [list_type(types.arrow_type(reducer.input_type, "x"))]
    if function == "heavy_hitters":
        return [pa.binary()]
    if function in ("first", "last"):
        return [fields[0].type]
    return [f.type for f in fields]


def partial_rows(reducer: Reducer, function: str, values: Values) -> list[Any]:
    """The columns of `Reducer.partials` over one input partition's rows of one key."""
    known = [v for v in values if v is not None]
    decimal = isinstance(reducer.input_type, T.DecimalType)
    if function == "count":
        return [len(known)]
    if function in ("sum", "mean") and decimal:
        total = precise_sum(known) if known else None
        kept = reducer.fields[0].type
        if total is not None and abs(Fraction(total)) >= Fraction(10) ** (
            kept.precision - kept.scale
        ):
            total = None
        return [total, len(known)]
    if function == "sum":
        if isinstance(reducer.input_type, T.IntegralType):
            return [wrapped(sum(known)) if known else None]
        return [math.fsum(known) if _finite(known) else sum(known) if known else None]
    if function == "mean":
        return [sum(map(float, known)) if known else None, len(known)]
    if function in ("variance", "stddev"):
        if not known:
            return [0, None, None]
        exact = [Fraction(v) for v in known]
        mean = sum(exact) / len(exact)
        return [len(known), float(mean), float(sum((v - mean) ** 2 for v in exact))]
    if function in ("min", "max", "bool_and", "bool_or"):
        choose = max if function in ("max", "bool_or") else min
        return [choose(known, key=spark_order) if known else None]
    if function in BITS:
        return [reduce(BITS[function], known) if known else None]
    if function in ("max_by", "min_by"):
        best = best_pair(function, known)
        return [best["first"], best["second"]] if best else [None, None]
    if function in ("skewness", "kurtosis"):
        return central(known)[: len(reducer.fields)]
    if function in ("covar", "corr"):
        return co_moments(known)[: len(reducer.fields)]
    if function in ("collect_list", "mode"):
        return [known]
    if function in ("collect_set", "count_distinct"):
        return [distinct(known)]
    if function in SKETCHES:
        return [SKETCHES[function](known, reducer.options)]
    ignore = reducer.options["ignore_nulls"]
    candidates = known if ignore else list(values)
    if not candidates:
        return [None]
    return [candidates[-1 if function == "last" else 0]]


def _finite(known: Values) -> bool:
    return bool(known) and all(math.isfinite(v) for v in known)


class Folding:
    """One aggregate over all keys."""

    def __init__(self, function: str, data_type: T.DataType, **options: Any) -> None:
        self.function = function
        self.reducer = resolve(function, "x", data_type, {"ansi": True, **options})
        self.state: dict[Any, tuple[Any, ...]] = {}
        self.empty = (None,) * len(self.reducer.fields)

    def epoch(self, rows: Epoch) -> dict[Any, Any]:
        """Add an epoch's rows; the new results of its keys."""
        keys = list(rows)
        incoming = [
            (partial_rows(self.reducer, self.function, values), part)
            for key in keys
            for part, values in rows[key].items()
        ]
        starts = np.cumsum([0, *(len(rows[key]) for key in keys)])
        groups = Groups(starts.astype(np.int64), np.asarray([part for _, part in incoming]))
        columns = [
            pa.array([row[i] for row, _ in incoming], data_type)
            for i, data_type in enumerate(partial_types(self.reducer, self.function))
        ]
        current = self._arrays([self.state.get(key, self.empty) for key in keys])
        merged = self.reducer.merge(current, columns, groups)
        for array, field in zip(merged, self.reducer.fields, strict=True):
            array.validate(full=True)
            assert array.type == field.type
        self.state |= dict(
            zip(keys, zip(*(a.to_pylist() for a in merged), strict=True), strict=True)
        )
        return dict(zip(keys, self._result(merged), strict=True))

    def _arrays(self, rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        return [
            pa.array([row[i] for row in rows], field.type)
            for i, field in enumerate(self.reducer.fields)
        ]

    def _result(self, state: list[pa.Array]) -> list[Any]:
        result = self.reducer.result(state)
        result.validate(full=True)
        assert result.type == types.arrow_type(self.reducer.result_type, "x")
        values: list[Any] = result.to_pylist()
        return values

    def results(self) -> dict[Any, Any]:
        """The value of every key, from the kept state alone."""
        shown = self._result(self._arrays(list(self.state.values())))
        return dict(zip(self.state, shown, strict=True))


def fold(
    function: str, data_type: T.DataType, *epochs: Values, ansi: bool = True, **options: Any
) -> Any:
    """The value after some epochs of one key and one input partition each."""
    folding = Folding(function, data_type, ansi=ansi, **options)
    shown = None
    for values in epochs:
        shown = folding.epoch({"k": {0: values}})["k"]
        assert repr(shown) == repr(folding.results()["k"])
    return shown


def results(aggregate: AggregateOperator, state: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of state as a reader shows them: keys and results."""
    columns = Description(aggregate.name, aggregate.spec()).shown(Moment(1, 0, None))
    shown = [column.make([state.column(name) for name in column.needs]) for column in columns]
    return pa.RecordBatch.from_arrays(shown, names=[column.name for column in columns])
