"""Reducers: what each aggregate keeps, how epochs add to it, and what it shows.

A reducer has state columns; Spark's JVM reduces each input partition to one row per key with
`partials`, `merge` adds such rows to the state, and `result` turns state into the value shown.
Each equals Spark's own function over the same rows: NULLs are skipped, a sum of nothing is NULL,
NaN is larger than any number, decimals round half up, and in ANSI mode an overflow is an error.

Where a result depends on the order of rows (`first`, `last`), earlier epochs come first, and within
an epoch lower input partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array
from millrace.errors import UnsupportedTypeError
from millrace.operators.aggregate import kernels
from millrace.operators.aggregate.layout import Kept, kept, overflow
from millrace.operators.arrays import (
    build,
    decimal_words,
    flags,
    float64s,
    int64s,
    validity,
)


@dataclass(frozen=True)
class Groups:
    """Incoming rows sorted by key: where each key begins, and each row's input partition."""

    starts: Int64Array
    part: Int64Array

    def __len__(self) -> int:
        return len(self.starts) - 1


class Reducer:
    """One aggregate of one operator, with its types resolved."""

    def __init__(
        self, name: str, input_type: T.DataType, options: dict[str, Any], kept: Kept
    ) -> None:
        self.name = name
        self.input_type = input_type
        self.options = options
        self.ansi = bool(options.get("ansi", True))
        self.kept = kept

    @property
    def fields(self) -> list[pa.Field]:
        """State columns."""
        return self.kept.fields

    @property
    def result_type(self) -> T.DataType:
        raise NotImplementedError

    def partials(self, column: Column) -> list[Column]:
        """What the JVM computes per key and input partition."""
        raise NotImplementedError

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        """The new state; `current` is NULL for keys without one."""
        raise NotImplementedError

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return self.kept.result(state)


class Count(Reducer):
    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.count(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        return [_add_int64(current[0], rows[0], groups)[0]]


class SumLong(Reducer):
    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        total, lost = _add_int64(current[0], rows[0], groups)
        if lost >= 0 and self.ansi:
            raise overflow(self.name, "bigint")
        return [total]


class SumDouble(Reducer):
    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column.cast("double"))]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        return [_add_float64(current[0], rows[0], groups)]


class SumDecimal(Reducer):
    """A sum that left its type's range stays NULL for good when ANSI mode is off."""

    @property
    def result_type(self) -> T.DataType:
        return T.DecimalType(self.kept.type.precision, self.kept.type.scale)

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column), F.count(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        total, lost = _add_decimal(current[0], rows[0], groups, self.kept.type.precision)
        # A NULL sum of some values is one that overflowed inside Spark.
        lost_there = (~validity(rows[0])) & (int64s(rows[1]) > 0)
        if lost_there.any():
            lost |= np.logical_or.reduceat(lost_there, groups.starts[:-1])
        if current[1].null_count < len(current[1]):
            lost |= current[1].fill_null(False).to_numpy(zero_copy_only=False)
        if lost.any() and self.ansi:
            raise overflow(self.name, self.result_type.simpleString())
        return [total, flags(lost)]


class MeanDouble(Reducer):
    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column.cast("double")), F.count(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        count, _ = _add_int64(current[1], rows[1], groups)
        return [_add_float64(current[0], rows[0], groups), count]


class MeanDecimal(Reducer):
    def __init__(
        self, name: str, input_type: T.DataType, options: dict[str, Any], kept: Kept
    ) -> None:
        super().__init__(name, input_type, options, kept)
        self._sum = resolve("sum", f"{name}.sum", input_type, options)

    @property
    def result_type(self) -> T.DataType:
        return T.DecimalType(self.kept.type.precision, self.kept.type.scale)

    def partials(self, column: Column) -> list[Column]:
        return self._sum.partials(column)

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        count, _ = _add_int64(current[2], rows[1], groups)
        return [*self._sum.merge(current[:2], rows, groups), count]


class Moments(Reducer):
    """Variance and standard deviation, of a sample or of the population."""

    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        value = column.cast("double")
        return [F.count(value), F.avg(value), F.var_pop(value) * F.count(value)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        before = np.where(validity(current[0]), int64s(current[0]), 0)
        count, mean, m2 = kernels.merge_moments(
            (before, float64s(current[1]), float64s(current[2])),
            (int64s(rows[0]), float64s(rows[1]), float64s(rows[2])),
            groups.starts,
        )
        every = np.ones(len(groups), np.bool_)
        return [
            build(count, every, pa.int64()),
            build(mean, every, pa.float64()),
            build(m2, every, pa.float64()),
        ]


class Pick(Reducer):
    """An aggregate whose value is one of its inputs."""

    @property
    def result_type(self) -> T.DataType:
        return self.input_type

    def _winner(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> Int64Array:
        raise NotImplementedError

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        winner = self._winner(current, rows, groups)
        both = pa.concat_arrays([current[0], rows[0]])
        return [both.take(pa.array(winner, mask=winner < 0))]


class Extreme(Pick):
    """Minimum or maximum."""

    def partials(self, column: Column) -> list[Column]:
        return [F.max(column) if self.options["largest"] else F.min(column)]

    def _winner(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> Int64Array:
        largest = bool(self.options["largest"])
        now, new = current[0], rows[0]
        arrow = self.kept.type
        if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
            both = pa.concat_arrays([now, new])
            _, offsets, data = both.buffers()
            strings = (
                np.frombuffer(offsets, np.int32)[both.offset : both.offset + len(both) + 1],
                np.frombuffer(data or b"", np.uint8),
            )
            valid = np.concatenate([validity(now), validity(new)])
            return kernels.best_bytes(strings, valid, groups.starts, largest)
        if pa.types.is_decimal(arrow):
            pair = _nullable(now, decimal_words), _nullable(new, decimal_words)
            return kernels.best_decimal(*pair, groups.starts, largest)
        order = _float_order if pa.types.is_floating(arrow) else int64s
        return kernels.best_int64(
            _nullable(now, order), _nullable(new, order), groups.starts, largest
        )


class FirstLast(Pick):
    """The first or last value; unless NULLs are ignored, a NULL counts as one."""

    @property
    def _ignore_nulls(self) -> bool:
        return bool(self.options["ignore_nulls"])

    def partials(self, column: Column) -> list[Column]:
        choose = F.last if self.options["last"] else F.first
        return [choose(column, ignorenulls=self._ignore_nulls)]

    def _winner(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> Int64Array:
        if self._ignore_nulls:
            now_set, new_set = validity(current[0]), validity(rows[0])
        else:
            now_set = current[1].fill_null(False).to_numpy(zero_copy_only=False)
            new_set = np.ones(len(rows[0]), np.bool_)
        return kernels.first_or_last(
            now_set, new_set, groups.part, groups.starts, bool(self.options["last"])
        )

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        merged = super().merge(current, rows, groups)
        if not self._ignore_nulls:
            merged.append(flags(np.ones(len(groups), np.bool_)))
        return merged


_EXTREME_TYPES = (
    T.NumericType,
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.TimeType,
)


def resolve(function: str, name: str, input_type: T.DataType, options: dict[str, Any]) -> Reducer:
    """The reducer for a function over a type, or an error that says what would work."""
    arrow = types.arrow_type(input_type, f"the input of {function}() for {name!r}")
    reducer, more = _reducer(function, name, input_type)
    known = kept(function, name, arrow, options, ansi=bool(options.get("ansi", True)))
    return reducer(name, input_type, options | more, known)


def _reducer(
    function: str, name: str, input_type: T.DataType
) -> tuple[type[Reducer], dict[str, Any]]:
    """The reducer of a function over a type, and the options that say which of two it is."""
    decimal = isinstance(input_type, T.DecimalType)
    if function == "count":
        return Count, {}
    if function in ("min", "max"):
        collated = isinstance(input_type, T.StringType) and not input_type.isUTF8BinaryCollation()
        if isinstance(input_type, _EXTREME_TYPES) and not collated:
            return Extreme, {"largest": function == "max"}
        raise _wrong_type(function, name, input_type, "numbers, strings, binaries, dates and times")
    if function in ("first", "last"):
        return FirstLast, {"last": function == "last"}
    if not isinstance(input_type, T.NumericType):
        raise _wrong_type(function, name, input_type, "numbers")
    if function == "sum":
        if decimal:
            return SumDecimal, {}
        return SumLong if isinstance(input_type, T.IntegralType) else SumDouble, {}
    if function == "mean":
        return MeanDecimal if decimal else MeanDouble, {}
    if function in ("variance", "stddev"):
        return Moments, {}
    raise UnsupportedTypeError(f"there is no aggregate function {function!r}.")


def _wrong_type(
    function: str, name: str, data_type: T.DataType, wanted: str
) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{function}() for {name!r} is over a column of type {data_type.simpleString()}; it takes "
        f"{wanted}. Cast the column, for example in transform()."
    )


def _nullable(array: pa.Array, values: Callable[[pa.Array], npt.NDArray[Any]]) -> kernels.Nullable:
    return values(array), validity(array)


def _add_int64(current: pa.Array, rows: pa.Array, groups: Groups) -> tuple[pa.Array, int]:
    total, valid, overflow = kernels.add_int64(
        _nullable(current, int64s), _nullable(rows, int64s), groups.starts
    )
    return build(total, valid, pa.int64()), overflow


def _add_float64(current: pa.Array, rows: pa.Array, groups: Groups) -> pa.Array:
    total, valid = kernels.add_float64(
        _nullable(current, float64s), _nullable(rows, float64s), groups.starts
    )
    return build(total, valid, pa.float64())


def _add_decimal(
    current: pa.Array, rows: pa.Array, groups: Groups, precision: int
) -> tuple[pa.Array, BoolArray]:
    limit = 10**precision
    total, valid, lost = kernels.add_decimal(
        _nullable(current, decimal_words),
        _nullable(rows, decimal_words),
        groups.starts,
        (np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)),
    )
    return build(total, valid, current.type), lost


def _float_order(array: pa.Array) -> Int64Array:
    """Integers in the order Spark gives floating point: -0.0 = 0.0, NaN above all."""
    values = float64s(array) + 0.0
    bits = values.view(np.int64)
    order = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return np.where(np.isnan(values), np.int64(2**63 - 1), order)
