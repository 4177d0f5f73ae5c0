"""Counts, sums and means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.arrays import BoolArray
from millrace.operators.aggregate import kernels
from millrace.operators.aggregate.extremes import nullable
from millrace.operators.aggregate.kept import Kept, overflow
from millrace.operators.aggregate.reducers.base import (
    Finder,
    Found,
    Groups,
    Reducer,
    check_numbers,
)
from millrace.operators.arrays import build, decimal_words, flags, float64s, int64s, validity


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
        total = self.fields[0].type
        self._sum = SumDecimal(f"{name}.sum", input_type, options, Kept(self.fields[:2], total))

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


def _add_int64(current: pa.Array, rows: pa.Array, groups: Groups) -> tuple[pa.Array, int]:
    total, valid, overflow = kernels.add_int64(
        nullable(current, int64s), nullable(rows, int64s), groups.starts
    )
    return build(total, valid, pa.int64()), overflow


def _add_float64(current: pa.Array, rows: pa.Array, groups: Groups) -> pa.Array:
    total, valid = kernels.add_float64(
        nullable(current, float64s), nullable(rows, float64s), groups.starts
    )
    return build(total, valid, pa.float64())


def _add_decimal(
    current: pa.Array, rows: pa.Array, groups: Groups, precision: int
) -> tuple[pa.Array, BoolArray]:
    limit = 10**precision
    total, valid, lost = kernels.add_decimal(
        nullable(current, decimal_words),
        nullable(rows, decimal_words),
        groups.starts,
        (np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)),
    )
    return build(total, valid, current.type), lost


def _count(function: str, name: str, data_type: T.DataType) -> Found:
    return Count, {}


def _sum(function: str, name: str, data_type: T.DataType) -> Found:
    check_numbers(function, name, data_type)
    if isinstance(data_type, T.DecimalType):
        return SumDecimal, {}
    return SumLong if isinstance(data_type, T.IntegralType) else SumDouble, {}


def _mean(function: str, name: str, data_type: T.DataType) -> Found:
    check_numbers(function, name, data_type)
    return MeanDecimal if isinstance(data_type, T.DecimalType) else MeanDouble, {}


FINDERS: dict[str, Finder] = {"count": _count, "sum": _sum, "mean": _mean}
