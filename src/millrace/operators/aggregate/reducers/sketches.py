"""Sketches: Spark's JVM builds one per key and input partition, a shard merges their bytes.

Spark has the sketches of Apache DataSketches for integers, strings and binaries. Values of other
types are sketched by Spark's `xxhash64` of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.operators.aggregate.reducers.base import (
    Combined,
    Finder,
    Found,
    Reducer,
    check_numbers,
    wrong_type,
)
from millrace.operators.aggregate.reducers.order import is_orderable
from millrace.operators.aggregate.sketches import frequent


class ApproxDistinct(Combined):
    function = "approx_distinct"

    @property
    def result_type(self) -> T.DataType:
        return T.LongType()

    def partials(self, column: Column) -> list[Column]:
        return [F.hll_sketch_agg(sketched(column, self.input_type), self.options["lg_k"])]


class DistinctSketch(Combined):
    function = "distinct_sketch"

    @property
    def result_type(self) -> T.DataType:
        return T.BinaryType()

    def partials(self, column: Column) -> list[Column]:
        return [F.theta_sketch_agg(sketched(column, self.input_type), self.options["lg_k"])]


class Quantile(Combined):
    function = "quantile"
    ordered = True

    @property
    def result_type(self) -> T.DataType:
        if self.options["single"]:
            return T.DoubleType()
        return T.ArrayType(T.DoubleType(), containsNull=False)

    def partials(self, column: Column) -> list[Column]:
        return [F.kll_sketch_agg_double(column.cast("double"), self.options["accuracy"])]


class HeavyHitters(Combined):
    function = "heavy_hitters"
    ordered = True

    @property
    def result_type(self) -> T.DataType:
        item = T.StructField("item", self.input_type, nullable=False)
        count = T.StructField("count", T.LongType(), nullable=False)
        return T.ArrayType(T.StructType([item, count]), containsNull=False)

    def partials(self, column: Column) -> list[Column]:
        tracked = F.lit(self.options["track"])
        sketch = F.call_function("approx_top_k_accumulate", _item(column, self.input_type), tracked)
        return [sketch.getField("sketch")]

    def lift(self, rows: Sequence[pa.Array]) -> list[pa.Array]:
        return frequent.taken_apart(rows[0], self.fields[0].type.value_type)


def sketched(column: Column, data_type: T.DataType) -> Column:
    """What Spark's sketches take for a value: equal ones exactly where values are equal."""
    if isinstance(data_type, T.IntegralType):
        return column.cast("bigint")
    plain = isinstance(data_type, T.StringType) and data_type.isUTF8BinaryCollation()
    if plain or isinstance(data_type, T.BinaryType):
        return column
    # Of NULL, this hash is not NULL. It takes -0.0 for 0.0, and every NaN for the same.
    return F.when(column.isNotNull(), F.xxhash64(column))


def _item(column: Column, data_type: T.DataType) -> Column:
    """An item as a string or a bigint."""
    if isinstance(data_type, T.StringType):
        return column
    if isinstance(data_type, T.DateType):
        return F.unix_date(column).cast("bigint")
    if isinstance(data_type, T.TimestampType):
        return F.unix_micros(column)
    return column.cast("bigint")


_DISTINCT: dict[str, type[Reducer]] = {
    "approx_distinct": ApproxDistinct,
    "distinct_sketch": DistinctSketch,
}


def _distinct(function: str, name: str, data_type: T.DataType) -> Found:
    if not is_orderable(data_type):
        # Spark's hash skips NULLs inside structs and arrays, and does not know collations.
        wanted = "numbers, booleans, strings without a collation, binaries, dates and times"
        raise wrong_type(function, name, data_type, wanted)
    return _DISTINCT[function], {}


def _quantile(function: str, name: str, data_type: T.DataType) -> Found:
    check_numbers(function, name, data_type)
    return Quantile, {}


def _frequent(function: str, name: str, data_type: T.DataType) -> Found:
    collated = isinstance(data_type, T.StringType) and not data_type.isUTF8BinaryCollation()
    takes = T.IntegralType | T.StringType | T.DateType | T.TimestampType
    if collated or not isinstance(data_type, takes):
        wanted = "integers, strings without a collation, dates and timestamps"
        raise wrong_type(function, name, data_type, wanted)
    return HeavyHitters, {}


FINDERS: dict[str, Finder] = {
    **dict.fromkeys(_DISTINCT, _distinct),
    "quantile": _quantile,
    "heavy_hitters": _frequent,
}
