"""The aggregate functions of the public API: `mr.count()`, `mr.sum("value")` and so on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column

from millrace.errors import UsageError


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user wrote it, before it is resolved against a stream's columns."""

    function: str
    column: str | Column | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """The input as text, kept in the location to recognise a change."""
        return "*" if self.column is None else str(self.column)


def count(column: str | Column | None = None) -> Aggregate:
    """The number of rows, or of rows where `column` is not NULL."""
    return Aggregate("count", column)


def sum(column: str | Column) -> Aggregate:
    """The sum, in Spark's result type; NULL while there is no value."""
    return Aggregate("sum", _given("sum", column))


def min(column: str | Column) -> Aggregate:
    """The smallest value of numbers, strings, binaries, dates or times."""
    return Aggregate("min", _given("min", column))


def max(column: str | Column) -> Aggregate:
    """The largest value of numbers, strings, binaries, dates or times. NaN is above all."""
    return Aggregate("max", _given("max", column))


def mean(column: str | Column) -> Aggregate:
    """The arithmetic mean: a double, or for decimals a decimal with four more digits."""
    return Aggregate("mean", _given("mean", column))


def variance(column: str | Column, *, sample: bool = True) -> Aggregate:
    """The variance of a sample, or with `sample=False` of the population."""
    return Aggregate("variance", _given("variance", column), {"sample": sample})


def stddev(column: str | Column, *, sample: bool = True) -> Aggregate:
    """The standard deviation of a sample, or with `sample=False` of the population."""
    return Aggregate("stddev", _given("stddev", column), {"sample": sample})


def first(column: str | Column, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of the first row; with `ignore_nulls`, the first that is not NULL."""
    return Aggregate("first", _given("first", column), {"ignore_nulls": ignore_nulls})


def last(column: str | Column, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of the last row; with `ignore_nulls`, the last that is not NULL."""
    return Aggregate("last", _given("last", column), {"ignore_nulls": ignore_nulls})


def _given(function: str, column: str | Column) -> str | Column:
    if not isinstance(column, str | Column):
        raise UsageError(
            f"{function}() takes the name of a column or a Spark Column, not {column!r}."
        )
    return column
