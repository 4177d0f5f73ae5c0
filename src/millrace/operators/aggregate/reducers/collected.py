"""Aggregates that keep the values themselves: lists, sets, distinct counts, the mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.operators.aggregate.distinct import words
from millrace.operators.aggregate.reducers.base import Combined, Finder, Found, Reducer, wrong_type
from millrace.operators.aggregate.reducers.order import is_orderable
from millrace.operators.lists import list_parts, make_lists


class CollectList(Combined):
    function = "collect_list"
    ordered = True

    @property
    def result_type(self) -> T.DataType:
        return T.ArrayType(self.input_type, containsNull=False)

    def partials(self, column: Column) -> list[Column]:
        return [F.collect_list(column)]


class CollectSet(CollectList):
    function = "collect_set"

    def partials(self, column: Column) -> list[Column]:
        return [F.collect_set(column)]


class CountDistinct(Combined):
    function = "count_distinct"

    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.collect_set(column)]

    def lift(self, rows: Sequence[pa.Array]) -> list[pa.Array]:
        values, lengths = list_parts(rows[0])
        kinds = (field.type for field in self.fields)
        halves = zip(words(values), kinds, strict=True)
        return [make_lists(pa.array(half), lengths, kind) for half, kind in halves]


class Mode(Combined):
    function = "mode"
    ordered = True

    @property
    def result_type(self) -> T.DataType:
        return self.input_type

    def partials(self, column: Column) -> list[Column]:
        return [F.collect_list(column)]

    def lift(self, rows: Sequence[pa.Array]) -> list[pa.Array]:
        values, lengths = list_parts(rows[0])
        ones = pa.array(np.ones(len(values), np.int64))
        parts = zip((values, ones), self.fields, strict=True)
        return [make_lists(part, lengths, field.type) for part, field in parts]


class Top(Combined):
    """The largest rows, whose first field says how large."""

    function = "top"

    @property
    def result_type(self) -> T.DataType:
        return T.ArrayType(self.input_type, containsNull=False)

    def partials(self, column: Column) -> list[Column]:
        assert isinstance(self.input_type, T.StructType)
        fields = [f for f in self.input_type.fields if is_orderable(f.dataType)]
        order = F.struct(*(column.getField(field.name) for field in fields))
        by = column.getField(self.input_type.names[0])
        return [F.max_by(column, F.when(by.isNotNull(), order), self.options["k"])]


def _top(function: str, name: str, data_type: T.DataType) -> Found:
    assert isinstance(data_type, T.StructType)
    by, *others = (field.dataType for field in data_type.fields)
    if not is_orderable(by):
        raise wrong_type(function, name, by, "numbers, strings, binaries, dates and times as by=")
    for other in others:
        check_comparable(function, name, other)
    return Top, {}


def _any(function: str, name: str, data_type: T.DataType) -> Found:
    return CollectList, {}


_COMPARING: dict[str, type[Reducer]] = {
    "collect_set": CollectSet,
    "count_distinct": CountDistinct,
    "mode": Mode,
}


def _comparing(function: str, name: str, data_type: T.DataType) -> Found:
    check_comparable(function, name, data_type)
    return _COMPARING[function], {}


def check_comparable(function: str, name: str, data_type: T.DataType) -> None:
    """Raise unless a shard can tell which values of a type are equal."""
    if not all(map(is_orderable, _leaves(data_type))):
        wanted = "types that can be keys, without maps and strings with a collation"
        raise wrong_type(function, name, data_type, wanted)


def _leaves(data_type: T.DataType) -> Iterator[T.DataType]:
    """The parts of a type that are neither structs nor arrays."""
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            yield from _leaves(field.dataType)
    elif isinstance(data_type, T.ArrayType):
        yield from _leaves(data_type.elementType)
    else:
        yield data_type


FINDERS: dict[str, Finder] = {
    "collect_list": _any,
    "top": _top,
    **dict.fromkeys(_COMPARING, _comparing),
}
