"""The aggregate functions of the public API: `mr.count()`, `mr.sum("value")` and so on."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column

from millrace.errors import AggregateParameterError, UsageError
from millrace.operators.aggregate.limits import (
    ACCURACY,
    LG_K_HLL,
    LG_K_THETA,
    MOST_HITTERS,
    MOST_TOP,
    MOST_TRACKED,
)


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user wrote it, before it is resolved against a stream's columns."""

    function: str
    column: str | Column | None = None
    options: dict[str, Any] = field(default_factory=dict)
    second: str | Column | None = None
    """The other column of a function of two. Its input is a struct of both."""
    others: tuple[str | Column, ...] | None = None
    """The other columns of a function of rows. Its input is a struct of all."""

    def describe(self) -> str:
        """The input as text, kept in the location to recognise a change."""
        if self.column is None:
            return "*"
        second = () if self.second is None else (self.second,)
        return ", ".join(map(str, (self.column, *second, *(self.others or ()))))


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


def avg(column: str | Column) -> Aggregate:
    """The arithmetic mean, by Spark's other name for it."""
    return Aggregate("mean", _given("avg", column))


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


def max_by(column: str | Column, by: str | Column) -> Aggregate:
    """The value of `column` in the row with the largest `by`; of several, in the last."""
    return _of_two("max_by", column, by)


def min_by(column: str | Column, by: str | Column) -> Aggregate:
    """The value of `column` in the row with the smallest `by`; of several, in the last."""
    return _of_two("min_by", column, by)


def bool_and(column: str | Column) -> Aggregate:
    """Whether all values are true."""
    return Aggregate("bool_and", _given("bool_and", column))


def bool_or(column: str | Column) -> Aggregate:
    """Whether any value is true."""
    return Aggregate("bool_or", _given("bool_or", column))


def bit_and(column: str | Column) -> Aggregate:
    """The bitwise and of integers."""
    return Aggregate("bit_and", _given("bit_and", column))


def bit_or(column: str | Column) -> Aggregate:
    """The bitwise or of integers."""
    return Aggregate("bit_or", _given("bit_or", column))


def bit_xor(column: str | Column) -> Aggregate:
    """The bitwise exclusive or of integers."""
    return Aggregate("bit_xor", _given("bit_xor", column))


def skewness(column: str | Column) -> Aggregate:
    """The skewness; NULL without variance."""
    return Aggregate("skewness", _given("skewness", column))


def kurtosis(column: str | Column) -> Aggregate:
    """The excess kurtosis; NULL without variance."""
    return Aggregate("kurtosis", _given("kurtosis", column))


def covar_pop(x: str | Column, y: str | Column) -> Aggregate:
    """The covariance of the population, over rows where neither is NULL."""
    return _of_two("covar", x, y, sample=False)


def covar_samp(x: str | Column, y: str | Column) -> Aggregate:
    """The covariance of a sample, over rows where neither is NULL."""
    return _of_two("covar", x, y, sample=True)


def covar(x: str | Column, y: str | Column) -> Aggregate:
    """The covariance of a sample, by its short name."""
    return covar_samp(x, y)


def corr(x: str | Column, y: str | Column) -> Aggregate:
    """Pearson's correlation, over rows where neither is NULL."""
    return _of_two("corr", x, y)


def collect_list(column: str | Column) -> Aggregate:
    """All values that are not NULL, in order of epoch, input partition and row."""
    return Aggregate("collect_list", _given("collect_list", column))


def collect_set(column: str | Column) -> Aggregate:
    """The distinct values that are not NULL, in the order in which they were first seen."""
    return Aggregate("collect_set", _given("collect_set", column))


def count_distinct(column: str | Column) -> Aggregate:
    """The exact number of distinct values that are not NULL; see also `approx_distinct`."""
    return Aggregate("count_distinct", _given("count_distinct", column))


def mode(column: str | Column) -> Aggregate:
    """The most frequent value that is not NULL; of several, the one that was seen first."""
    return Aggregate("mode", _given("mode", column))


def approx_distinct(column: str | Column, *, lg_k: int = 12) -> Aggregate:
    """About how many distinct values there are: a HyperLogLog sketch with 2^lg_k registers.

    The standard error is about 1.04 / sqrt(2^lg_k): 1.6 % by default.
    """
    options = {"lg_k": _between("approx_distinct", "lg_k", lg_k, *LG_K_HLL)}
    return Aggregate("approx_distinct", _given("approx_distinct", column), options)


def distinct_sketch(column: str | Column, *, lg_k: int = 12) -> Aggregate:
    """A theta sketch of the distinct values, for unions, intersections and differences.

    It keeps up to 2^lg_k hashes; the standard error of a sketch or a union is about
    1 / sqrt(2^lg_k): 1.6 % by default.
    """
    options = {"lg_k": _between("distinct_sketch", "lg_k", lg_k, *LG_K_THETA)}
    return Aggregate("distinct_sketch", _given("distinct_sketch", column), options)


def quantile(
    column: str | Column, ranks: float | Sequence[float], *, accuracy: int = 200
) -> Aggregate:
    """The value at a rank between 0 and 1, or an array of the values at several: a KLL sketch.

    `accuracy` is the `k` of the sketch: the error of a rank is about 1.3 % for 200, and halves as
    it doubles. Up to that many values, the result is exact.
    """
    single = isinstance(ranks, int | float)
    wanted: list[Any] = [ranks] if isinstance(ranks, int | float) else list(ranks)
    if not wanted:
        raise AggregateParameterError("quantile() needs at least one rank, such as 0.5.")
    for rank in wanted:
        if type(rank) not in (int, float) or not 0 <= rank <= 1:
            raise AggregateParameterError(
                f"quantile() got the rank {rank!r}; a rank is a number from 0 to 1, such as 0.99."
            )
    options = {
        "ranks": [float(rank) for rank in wanted],
        "single": single,
        "accuracy": _between("quantile", "accuracy", accuracy, *ACCURACY),
    }
    return Aggregate("quantile", _given("quantile", column), options)


def heavy_hitters(column: str | Column, k: int = 10, *, track: int | None = None) -> Aggregate:
    """The `k` most frequent values with their counts, most frequent first, approximately.

    A key keeps counts of `track` values, by default the larger of 100 and ten times `k`. While it
    has no more than that, the counts are exact; after that they are too high, by at most about
    3.5 / `track` of the number of rows.
    """
    chosen = _between("heavy_hitters", "k", k, 1, MOST_HITTERS)
    tracked = builtins.max(100, 10 * chosen) if track is None else track
    options = {
        "k": chosen,
        "track": _between("heavy_hitters", "track", tracked, chosen, MOST_TRACKED),
    }
    return Aggregate("heavy_hitters", _given("heavy_hitters", column), options)


def top(k: int, by: str | Column, *columns: str | Column) -> Aggregate:
    """The `k` rows with the largest `by`, largest first: an array of structs of `by` and `columns`.

    Rows where `by` is NULL do not count. Of rows with the same `by`, those with larger values in
    `columns` come first, in their order.
    """
    options = {"k": _between("top", "k", k, 1, MOST_TOP)}
    others = tuple(_given("top", column) for column in columns)
    return Aggregate("top", _given("top", by), options, others=others)


def _given(function: str, column: str | Column) -> str | Column:
    if not isinstance(column, str | Column):
        raise UsageError(
            f"{function}() takes the name of a column or a Spark Column, not {column!r}."
        )
    return column


def _of_two(function: str, first: str | Column, second: str | Column, **options: Any) -> Aggregate:
    return Aggregate(function, _given(function, first), options, _given(function, second))


def _between(function: str, name: str, value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise AggregateParameterError(
            f"{function}({name}={value!r}): it must be a whole number from {low} to {high}."
        )
    return value
