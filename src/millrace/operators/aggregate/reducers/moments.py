"""Central moments: variance and standard deviation, skewness, kurtosis, covariance, correlation.

The JVM gives the moments of an input partition by way of its own functions: a sum of squared
differences is a variance times a count, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.operators.aggregate import kernels
from millrace.operators.aggregate.reducers.base import (
    Combined,
    Finder,
    Found,
    Groups,
    Reducer,
    check_numbers,
    wrong_type,
)
from millrace.operators.aggregate.reducers.order import pair
from millrace.operators.arrays import build, float64s, int64s, validity


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


class Skewness(Combined):
    function = "skewness"

    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        value = column.cast("double")
        count = F.count(value)
        m2 = F.var_pop(value) * count
        # Without variance there is no skewness, and the third moment is 0.
        m3 = F.coalesce(F.skewness(value) * F.sqrt(m2 * m2 * m2) / F.sqrt(count), F.lit(0.0))
        return [count, F.avg(value), m2, m3]


class Kurtosis(Skewness):
    function = "kurtosis"

    def partials(self, column: Column) -> list[Column]:
        value = column.cast("double")
        count = F.count(value)
        m2 = F.var_pop(value) * count
        # try_divide: there may be no value at all.
        m4 = F.try_divide((F.kurtosis(value) + 3.0) * m2 * m2, count)
        return [*super().partials(column), F.coalesce(m4, F.lit(0.0))]


class Covariance(Combined):
    function = "covar"

    @property
    def result_type(self) -> T.DataType:
        return T.DoubleType()

    def partials(self, column: Column) -> list[Column]:
        x, y = self._pairs(column)
        count = F.count(x)
        return [count, F.avg(x), F.avg(y), F.covar_pop(x, y) * count]

    def _pairs(self, column: Column) -> tuple[Column, Column]:
        """Both as doubles, NULL unless both are there."""
        x, y = (side.cast("double") for side in pair(column, self.input_type))
        return F.when(y.isNotNull(), x), F.when(x.isNotNull(), y)


class Correlation(Covariance):
    function = "corr"

    def partials(self, column: Column) -> list[Column]:
        x, y = self._pairs(column)
        count = F.count(x)
        return [*super().partials(column), F.var_pop(x) * count, F.var_pop(y) * count]


_OF_ONE: dict[str, type[Reducer]] = {
    "variance": Moments,
    "stddev": Moments,
    "skewness": Skewness,
    "kurtosis": Kurtosis,
}
_OF_TWO: dict[str, type[Reducer]] = {"covar": Covariance, "corr": Correlation}


def _of_one(function: str, name: str, data_type: T.DataType) -> Found:
    check_numbers(function, name, data_type)
    return _OF_ONE[function], {}


def _of_two(function: str, name: str, data_type: T.DataType) -> Found:
    assert isinstance(data_type, T.StructType)
    for field in data_type.fields:
        if not isinstance(field.dataType, T.NumericType):
            raise wrong_type(function, name, field.dataType, "two columns of numbers")
    return _OF_TWO[function], {}


FINDERS: dict[str, Finder] = {
    **dict.fromkeys(_OF_ONE, _of_one),
    **dict.fromkeys(_OF_TWO, _of_two),
}
