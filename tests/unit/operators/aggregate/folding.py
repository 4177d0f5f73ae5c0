"""What Spark's JVM would hand to a reducer, in plain Python, and folding it epoch by epoch.

`partial_rows` mirrors `Reducer.partials`: one row per key and input partition. `Folding` keeps the
state of all keys as Python values, so every epoch goes through Arrow and back, as in a location.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.reducers import Groups, Reducer, resolve
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
    if function in ("min", "max"):
        choose = max if function == "max" else min
        return [choose(known, key=spark_order) if known else None]
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

    def _partial_types(self) -> list[pa.DataType]:
        fields = self.reducer.fields
        if self.function in ("sum", "mean") and isinstance(self.reducer.input_type, T.DecimalType):
            return [fields[0].type, pa.int64()]
        return [f.type for f in fields[: len(partial_rows(self.reducer, self.function, []))]]

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
            for i, data_type in enumerate(self._partial_types())
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


def results(operator: AggregateOperator, state: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of state as a reader shows them: keys and results."""
    columns = Description(operator.name, operator.spec()).shown(Moment(1, 0, None))
    shown = [column.make([state.column(name) for name in column.needs]) for column in columns]
    return pa.RecordBatch.from_arrays(shown, names=[column.name for column in columns])
