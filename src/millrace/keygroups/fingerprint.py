"""Fingerprints: 128 bits that stand for a key, as Spark SQL expressions.

Invariant: two keys have the same fingerprint exactly when Spark's `groupBy` puts their rows in one
group (up to collisions of 128-bit hashes). Spark's `xxhash64` alone does not give that: it skips
NULLs, at the top and inside structs and arrays, and it does not know collations. So each value is
first turned into parts that `xxhash64` sees completely: a null flag, then the value; structs field
by field; arrays as their length and one hash per element.

Floating point needs no care here: `xxhash64` already hashes -0.0 as 0.0 and every NaN alike, which
is how Spark groups them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.utils import get_active_spark_context

from millrace.errors import UnhashableKeyError
from millrace.keygroups.groups import group_shift
from millrace.keygroups.keys import HI_SALT, LO_SALT

_ATOMIC = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.CharType,
    T.VarcharType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.TimeType,
)


def leaves(name: str, data_type: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """The parts of a column that are neither structs nor arrays, with the way to each."""
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            yield from leaves(f"{name}.{field.name}", field.dataType)
    elif isinstance(data_type, T.ArrayType):
        yield from leaves(f"{name}[]", data_type.elementType)
    else:
        yield name, data_type


def check_hashable(name: str, data_type: T.DataType) -> None:
    """Raise if a column of this type cannot be (part of) a key."""
    for part, kind in leaves(name, data_type):
        if isinstance(kind, _ATOMIC):
            continue
        raise UnhashableKeyError(
            f"column {part!r} has type {kind.simpleString()} and cannot be a key. Use a "
            "column that can be compared for equality: for a map, for example, "
            "array_sort(map_entries(m)); for a variant, a field of it cast to a plain type."
        )


def fingerprint(columns: Sequence[tuple[Column, T.DataType]]) -> tuple[Column, Column]:
    """The two halves (hi, lo) of the fingerprint of a key, as signed 64-bit Spark columns."""
    return _half(columns, HI_SALT), _half(columns, LO_SALT)


def key_group(hi: Column, key_groups: int) -> Column:
    """The key group of a fingerprint, as a Spark column of type int."""
    return F.shiftrightunsigned(hi, group_shift(key_groups)).cast("int")


def _half(columns: Sequence[tuple[Column, T.DataType]], salt: int) -> Column:
    # The salt goes first: xxhash64(k, salt) is a function of xxhash64(k), xxhash64(salt, k) is not.
    parts: list[Column] = [F.lit(salt)]
    for column, data_type in columns:
        parts.extend(_parts(column, data_type, salt))
    return F.xxhash64(*parts)


def _parts(column: Column, data_type: T.DataType, salt: int) -> list[Column]:
    null_flag = column.isNull()
    if isinstance(data_type, T.StructType):
        parts = [null_flag]
        for field in data_type.fields:
            parts.extend(_parts(column.getField(field.name), field.dataType, salt))
        return parts
    if isinstance(data_type, T.ArrayType):
        element_type = data_type.elementType
        hashes = F.transform(
            column, lambda e: F.xxhash64(F.lit(salt), *_parts(e, element_type, salt))
        )
        # Not size(): of NULL, it is -1 or NULL, depending on ANSI mode.
        return [null_flag, F.array_size(column), hashes]
    if isinstance(data_type, T.StringType) and not data_type.isUTF8BinaryCollation():
        return [null_flag, _collation_key(column)]
    return [null_flag, column]


def _collation_key(column: Column) -> Column:
    """Bytes that are equal exactly when the strings are. Spark has no function for it."""
    jvm: Any = get_active_spark_context()._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    classic: Any = column
    inner = expressions.expression(classic._jc)
    key = jvm.org.apache.spark.sql.catalyst.expressions.CollationKey(inner)
    return ClassicColumn(expressions.column(key))
