"""What every reducer is: see the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from millrace.arrays import Int64Array
from millrace.errors import UnsupportedTypeError
from millrace.operators.aggregate.combiners import COMBINERS
from millrace.operators.aggregate.kept import Kept


@dataclass(frozen=True)
class Groups:
    """Incoming rows sorted by key: where each key begins, and each row's input partition."""

    starts: Int64Array
    part: Int64Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def states(self) -> tuple[Int64Array, pa.Array]:
        """Where the states of each key begin, and which they are in current + incoming.

        A key's current state comes first, then its rows by input partition.
        """
        keys = len(self)
        owner = np.repeat(np.arange(keys), np.diff(self.starts))
        rows = np.lexsort((self.part, owner))
        starts = self.starts + np.arange(keys + 1)
        order = np.empty(keys + len(rows), np.int64)
        order[starts[:-1]] = np.arange(keys)
        order[np.arange(len(rows)) + owner + 1] = keys + rows
        return starts, pa.array(order)


class Reducer:
    """One aggregate of one operator, with its types resolved."""

    ordered = False
    """Whether the order of rows matters, so that input partitions must be known."""

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


class Combined(Reducer):
    """A reducer that makes a state of each partial result and combines it with the current one."""

    function: str

    def lift(self, rows: Sequence[pa.Array]) -> list[pa.Array]:
        """Partial results as states."""
        fields = zip(rows, self.fields, strict=True)
        return [a if a.type == f.type else a.cast(f.type) for a, f in fields]

    def merge(
        self, current: Sequence[pa.Array], rows: Sequence[pa.Array], groups: Groups
    ) -> list[pa.Array]:
        starts, order = groups.states
        both = zip(current, self.lift(rows), strict=True)
        states = [pa.concat_arrays(pair).take(order) for pair in both]
        return COMBINERS[self.function](states, starts, self.options)


Found: TypeAlias = tuple[type[Reducer], dict[str, Any]]
"""A reducer, and the options that say which of two it is."""

Finder: TypeAlias = Callable[[str, str, T.DataType], Found]
"""Finds the reducer of a function, for a name, over a type; or raises."""


def wrong_type(
    function: str, name: str, data_type: T.DataType, wanted: str
) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{function}() for {name!r} is over a column of type {data_type.simpleString()}; it takes "
        f"{wanted}. Cast the column, for example in transform()."
    )


def check_numbers(function: str, name: str, data_type: T.DataType) -> None:
    if not isinstance(data_type, T.NumericType):
        raise wrong_type(function, name, data_type, "numbers")
