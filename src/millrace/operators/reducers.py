"""Reducers: what each aggregate keeps, how epochs add to it, and what it shows.

A reducer has state columns; Spark's JVM reduces each input partition to one row per key with
`partials`, `merge` adds such rows to the state, and `result` turns state into the value shown.
Each equals Spark's own function over the same rows: NULLs are skipped, a sum of nothing is NULL,
NaN is larger than any number, decimals round half up, and in ANSI mode an overflow is an error.

Where a result depends on the order of rows (`first`, `last`), earlier epochs come first, and within
an epoch lower input partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import types
from millrace.errors import AggregateOverflowError, UnsupportedTypeError
from millrace.operators import _kernels as kernels
from millrace.operators._arrays import (
    build,
    decimal_words,
    flags,
    float64s,
    int64s,
    validity,
)

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Incoming rows sorted by key: where each key begins, and each row's input partition."""

    starts: Int64Array
    part: Int64Array

    def __len__(self) -> int:
        return len(self.starts) - 1


class Reducer:
    """One aggregate of one operator, with its types resolved."""

    def __init__(self, name: str, input_type: T.DataType, options: dict[str, Any]) -> None:
        self.name = name
        self.input_type = input_type
        self.options = options
        self.ansi = bool(options.get("ansi", True))

    @property
    def fields(self) -> list[pa.Field]:
        """State columns."""
        raise NotImplementedError

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
        return state[0]


class Count(Reducer):
    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self.name, pa.int64())]

    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.count(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        return [_add_int64(current[0], rows[0], groups)[0]]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        # NULL only where the aggregate was added later and the key has not been seen since.
        return state[0].fill_null(0) if state[0].null_count else state[0]


class SumLong(Reducer):
    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self.name, pa.int64())]

    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        total, overflow = _add_int64(current[0], rows[0], groups)
        if overflow >= 0 and self.ansi:
            raise _overflow(self.name, "bigint")
        return [total]


class SumDouble(Reducer):
    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self.name, pa.float64())]

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
    def _type(self) -> T.DecimalType:
        assert isinstance(self.input_type, T.DecimalType)
        return T.DecimalType(min(self.input_type.precision + 10, 38), self.input_type.scale)

    @property
    def fields(self) -> list[pa.Field]:
        return [
            pa.field(self.name, types.arrow_type(self._type, self.name)),
            pa.field(f"{self.name}.overflow", pa.bool_()),
        ]

    @property
    def result_type(self) -> T.DataType:
        return self._type

    def partials(self, column: Column) -> list[Column]:
        return [F.sum(column), F.count(column)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        total, lost = _add_decimal(current[0], rows[0], groups, self._type.precision)
        # A NULL sum of some values is one that overflowed inside Spark.
        lost_there = (~validity(rows[0])) & (int64s(rows[1]) > 0)
        if lost_there.any():
            lost |= np.logical_or.reduceat(lost_there, groups.starts[:-1])
        if current[1].null_count < len(current[1]):
            lost |= current[1].fill_null(False).to_numpy(zero_copy_only=False)
        if lost.any() and self.ansi:
            raise _overflow(self.name, self._type.simpleString())
        return [total, flags(lost)]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        lost = state[1].fill_null(False).to_numpy(zero_copy_only=False)
        if not lost.any():
            return state[0]
        return build(decimal_words(state[0]), validity(state[0]) & ~lost, state[0].type)


class MeanDouble(Reducer):
    @property
    def fields(self) -> list[pa.Field]:
        return [
            pa.field(f"{self.name}.sum", pa.float64()),
            pa.field(f"{self.name}.count", pa.int64()),
        ]

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

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        count = np.where(validity(state[1]), int64s(state[1]), 0)
        known = count > 0
        mean = np.divide(float64s(state[0]), count, out=np.zeros(len(count)), where=known)
        return build(mean, known, pa.float64())


class MeanDecimal(Reducer):
    def __init__(self, name: str, input_type: T.DataType, options: dict[str, Any]) -> None:
        super().__init__(name, input_type, options)
        self._sum = SumDecimal(f"{name}.sum", input_type, options)

    @property
    def fields(self) -> list[pa.Field]:
        return [*self._sum.fields, pa.field(f"{self.name}.count", pa.int64())]

    @property
    def result_type(self) -> T.DataType:
        assert isinstance(self.input_type, T.DecimalType)
        precision, scale = self.input_type.precision, self.input_type.scale
        return T.DecimalType(min(precision + 4, 38), min(scale + 4, 38))

    def partials(self, column: Column) -> list[Column]:
        return self._sum.partials(column)

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        count, _ = _add_int64(current[2], rows[1], groups)
        return [*self._sum.merge(current[:2], rows, groups), count]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        target = self.result_type
        assert isinstance(target, T.DecimalType)
        assert isinstance(self.input_type, T.DecimalType)
        # Exact integer arithmetic: decimals have no vectorised division that rounds half up.
        shift = 10 ** (target.scale - self.input_type.scale)
        limit = 10**target.precision
        sums = _unscaled(self._sum.result(state[:2]))
        counts = state[2].to_pylist()
        means: list[int | None] = []
        for total, count in zip(sums, counts, strict=True):
            if total is None or not count:
                means.append(None)
                continue
            quotient = (2 * abs(total) * shift + count) // (2 * count)
            mean = quotient if total >= 0 else -quotient
            if quotient >= limit:
                if self.ansi:
                    raise _overflow(self.name, target.simpleString())
                means.append(None)
            else:
                means.append(mean)
        return _scaled(means, types.arrow_type(target, self.name))


class Moments(Reducer):
    """Variance and standard deviation, of a sample or of the population."""

    @property
    def fields(self) -> list[pa.Field]:
        return [
            pa.field(f"{self.name}.count", pa.int64()),
            pa.field(f"{self.name}.mean", pa.float64()),
            pa.field(f"{self.name}.m2", pa.float64()),
        ]

    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        value = column.cast("double")
        return [F.count(value), F.avg(value), F.var_pop(value) * F.count(value)]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        count, mean, m2 = kernels.merge_moments(
            np.where(validity(current[0]), int64s(current[0]), 0),
            float64s(current[1]),
            float64s(current[2]),
            int64s(rows[0]),
            float64s(rows[1]),
            float64s(rows[2]),
            groups.starts,
        )
        every = np.ones(len(groups), np.bool_)
        return [
            build(count, every, pa.int64()),
            build(mean, every, pa.float64()),
            build(m2, every, pa.float64()),
        ]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        count = np.where(validity(state[0]), int64s(state[0]), 0)
        degrees = count - (1 if self.options["sample"] else 0)
        known = (count > 0) & (degrees > 0)
        value = np.divide(float64s(state[2]), degrees, out=np.zeros(len(count)), where=known)
        if self.options["root"]:
            value = np.sqrt(value, out=value, where=known)
        return build(value, known, pa.float64())


class Pick(Reducer):
    """An aggregate whose value is one of its inputs."""

    @property
    def _arrow(self) -> pa.DataType:
        return types.arrow_type(self.input_type, self.name)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self.name, self._arrow)]

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
        now_valid, new_valid = validity(now), validity(new)
        arrow = self._arrow
        if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
            both = pa.concat_arrays([now, new])
            _, offsets, data = both.buffers()
            return kernels.best_bytes(
                np.frombuffer(offsets, np.int32)[both.offset : both.offset + len(both) + 1],
                np.frombuffer(data or b"", np.uint8),
                np.concatenate([now_valid, new_valid]),
                groups.starts,
                largest,
            )
        if pa.types.is_decimal(arrow):
            return kernels.best_decimal(
                decimal_words(now), now_valid, decimal_words(new), new_valid, groups.starts, largest
            )
        order = _float_order if pa.types.is_floating(arrow) else int64s
        return kernels.best_int64(
            order(now), now_valid, order(new), new_valid, groups.starts, largest
        )


class FirstLast(Pick):
    """The first or last value; unless NULLs are ignored, a NULL counts as one."""

    @property
    def _ignore_nulls(self) -> bool:
        return bool(self.options["ignore_nulls"])

    @property
    def fields(self) -> list[pa.Field]:
        if self._ignore_nulls:
            return super().fields
        return [*super().fields, pa.field(f"{self.name}.set", pa.bool_())]

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
    types.arrow_type(input_type, f"the input of {function}() for {name!r}")
    decimal = isinstance(input_type, T.DecimalType)
    if function == "count":
        return Count(name, input_type, options)
    if function in ("min", "max"):
        collated = isinstance(input_type, T.StringType) and not input_type.isUTF8BinaryCollation()
        if isinstance(input_type, _EXTREME_TYPES) and not collated:
            return Extreme(name, input_type, options | {"largest": function == "max"})
        raise _wrong_type(function, name, input_type, "numbers, strings, binaries, dates and times")
    if function in ("first", "last"):
        return FirstLast(name, input_type, options | {"last": function == "last"})
    if not isinstance(input_type, T.NumericType):
        raise _wrong_type(function, name, input_type, "numbers")
    if function == "sum":
        if decimal:
            return SumDecimal(name, input_type, options)
        integral = isinstance(input_type, T.IntegralType)
        return (SumLong if integral else SumDouble)(name, input_type, options)
    if function == "mean":
        return (MeanDecimal if decimal else MeanDouble)(name, input_type, options)
    if function in ("variance", "stddev"):
        return Moments(name, input_type, options | {"root": function == "stddev"})
    raise UnsupportedTypeError(f"there is no aggregate function {function!r}.")


def _wrong_type(
    function: str, name: str, data_type: T.DataType, wanted: str
) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{function}() for {name!r} is over a column of type {data_type.simpleString()}; it takes "
        f"{wanted}. Cast the column, for example in transform()."
    )


def _overflow(name: str, type_name: str) -> AggregateOverflowError:
    return AggregateOverflowError(
        f"the aggregate {name!r} left the range of {type_name}. The epoch was not committed. Use a "
        "wider type (cast the column to decimal or double), or set spark.sql.ansi.enabled=false to "
        "get Spark's non-ANSI behaviour."
    )


def _add_int64(current: pa.Array, rows: pa.Array, groups: Groups) -> tuple[pa.Array, int]:
    total, valid, overflow = kernels.add_int64(
        int64s(current), validity(current), int64s(rows), validity(rows), groups.starts
    )
    return build(total, valid, pa.int64()), overflow


def _add_float64(current: pa.Array, rows: pa.Array, groups: Groups) -> pa.Array:
    total, valid = kernels.add_float64(
        float64s(current), validity(current), float64s(rows), validity(rows), groups.starts
    )
    return build(total, valid, pa.float64())


def _add_decimal(
    current: pa.Array, rows: pa.Array, groups: Groups, precision: int
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    limit = 10**precision
    total, valid, lost = kernels.add_decimal(
        decimal_words(current),
        validity(current),
        decimal_words(rows),
        validity(rows),
        groups.starts,
        np.uint64(limit & (2**64 - 1)),
        np.uint64(limit >> 64),
    )
    return build(total, valid, current.type), lost


def _float_order(array: pa.Array) -> Int64Array:
    """Integers in the order Spark gives floating point: -0.0 = 0.0, NaN above all."""
    values = float64s(array) + 0.0
    bits = values.view(np.int64)
    order = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return np.where(np.isnan(values), np.int64(2**63 - 1), order)


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
