"""Values chosen among rows: extremes, first and last, and values of extreme rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.arrays import Int64Array
from millrace.operators.aggregate import kernels
from millrace.operators.aggregate.extremes import best
from millrace.operators.aggregate.reducers.base import (
    Combined,
    Finder,
    Found,
    Groups,
    Reducer,
    wrong_type,
)
from millrace.operators.arrays import flags, validity


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
        return best(current[0], rows[0], groups.starts, largest=largest)


class FirstLast(Pick):
    """The first or last value; unless NULLs are ignored, a NULL counts as one."""

    ordered = True

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


class MaxBy(Combined):
    function = "max_by"
    ordered = True

    @property
    def result_type(self) -> T.DataType:
        assert isinstance(self.input_type, T.StructType)
        return self.input_type[0].dataType

    def partials(self, column: Column) -> list[Column]:
        value, by = pair(column, self.input_type)
        return [F.max_by(value, by), F.max(by)]


class MinBy(MaxBy):
    function = "min_by"

    def partials(self, column: Column) -> list[Column]:
        value, by = pair(column, self.input_type)
        return [F.min_by(value, by), F.min(by)]


class BitFold(Combined):
    @property
    def result_type(self) -> T.DataType:
        return self.input_type


class BitAnd(BitFold):
    function = "bit_and"

    def partials(self, column: Column) -> list[Column]:
        return [F.bit_and(column)]


class BitOr(BitFold):
    function = "bit_or"

    def partials(self, column: Column) -> list[Column]:
        return [F.bit_or(column)]


class BitXor(BitFold):
    function = "bit_xor"

    def partials(self, column: Column) -> list[Column]:
        return [F.bit_xor(column)]


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


def pair(column: Column, data_type: T.DataType) -> tuple[Column, Column]:
    """The two columns of a function that takes two."""
    assert isinstance(data_type, T.StructType)
    first, second = data_type.names
    return column.getField(first), column.getField(second)


def is_orderable(data_type: T.DataType) -> bool:
    """Whether shards know the order of a type's values."""
    collated = isinstance(data_type, T.StringType) and not data_type.isUTF8BinaryCollation()
    return isinstance(data_type, _EXTREME_TYPES) and not collated


_ORDERABLE = "numbers, strings, binaries, dates and times"


def _extreme(function: str, name: str, data_type: T.DataType) -> Found:
    if not is_orderable(data_type):
        raise wrong_type(function, name, data_type, _ORDERABLE)
    return Extreme, {"largest": function == "max"}


def _first_last(function: str, name: str, data_type: T.DataType) -> Found:
    return FirstLast, {"last": function == "last"}


def _by(function: str, name: str, data_type: T.DataType) -> Found:
    assert isinstance(data_type, T.StructType)
    by = data_type[1].dataType
    if not is_orderable(by):
        raise wrong_type(function, name, by, f"{_ORDERABLE} to order by")
    return (MaxBy if function == "max_by" else MinBy), {}


def _boolean(function: str, name: str, data_type: T.DataType) -> Found:
    if not isinstance(data_type, T.BooleanType):
        raise wrong_type(function, name, data_type, "booleans")
    # True is above False: some are true if the largest is.
    return Extreme, {"largest": function == "bool_or"}


_BITS: dict[str, type[Reducer]] = {"bit_and": BitAnd, "bit_or": BitOr, "bit_xor": BitXor}


def _bits(function: str, name: str, data_type: T.DataType) -> Found:
    if not isinstance(data_type, T.IntegralType):
        raise wrong_type(function, name, data_type, "integers")
    return _BITS[function], {}


FINDERS: dict[str, Finder] = {
    "min": _extreme,
    "max": _extreme,
    "first": _first_last,
    "last": _first_last,
    "max_by": _by,
    "min_by": _by,
    "bool_and": _boolean,
    "bool_or": _boolean,
    **dict.fromkeys(_BITS, _bits),
}
