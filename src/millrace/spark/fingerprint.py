"""Fingerprints: 128 bits that stand for a key, as Spark SQL expressions.

Invariant: two keys have the same fingerprint exactly when Spark's `groupBy` puts their rows in one
group. In scheme 2 that holds for chosen keys too: short keys are only permuted, and for others it
would take a collision of SHA-256 cut to 127 bits. The work is done by `Fingerprints.java`, which
Spark's generated code calls; `millrace.keygroups.hashing` does the same for Arrow arrays.

Scheme 1, for locations of format 1, is two of Spark's `xxhash64`. That function skips NULLs, at
the top and inside structs and arrays, and does not know collations. So each value is first turned
into parts that `xxhash64` sees completely: a null flag, then the value; structs field by field;
arrays as their length and one hash per element. Floating point needs no care: `xxhash64` hashes
-0.0 as 0.0 and every NaN alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn

from millrace.errors import UnhashableKeyError
from millrace.keygroups.groups import group_shift
from millrace.keygroups.keys import HI_SALT, LO_SALT
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import HI, LO
from millrace.spark import jvm

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
EXPRESSION_UTILS = "org.apache.spark.sql.classic.ExpressionUtils"

TypedColumns = Sequence[tuple[Column, T.DataType]]
"""Expressions and their types."""

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


_NUMBERS = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.TimeType,
)
"""Types that are whole numbers in Spark's rows."""

_BOTH = "_fingerprint"
_PAIR = T.StructType(
    [T.StructField("hi", T.LongType(), False), T.StructField("lo", T.LongType(), False)]
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


def with_fingerprint(
    df: DataFrame, keys: TypedColumns, columns: Mapping[str, Column], scheme: Scheme
) -> DataFrame:
    """Columns of a frame by their new names, and in front the fingerprint of a key, `_hi` and
    `_lo`, as signed numbers."""
    pair = _pair(df.sparkSession, keys, scheme)
    named = [column.alias(name) for name, column in columns.items()]
    # Two steps: what both halves are taken from is then computed once, wherever Spark puts it.
    both = df.select(pair.alias(_BOTH), *named)
    halves = [F.col(f"{_BOTH}.hi").alias(HI), F.col(f"{_BOTH}.lo").alias(LO)]
    return both.select(*halves, *map(quoted, columns))


def quoted(name: str) -> Column:
    """A column of this very name, whatever characters it has."""
    return F.col(f"`{name.replace('`', '``')}`")


def key_group(hi: Column, key_groups: int) -> Column:
    """The key group of a fingerprint, as a Spark column of type int."""
    return F.shiftrightunsigned(hi, group_shift(key_groups)).cast("int")


def _pair(spark: SparkSession, columns: TypedColumns, scheme: Scheme) -> Column:
    """Both halves as a struct."""
    if scheme.version == 1:
        halves = (_half(spark, columns, salt) for salt in (HI_SALT, LO_SALT))
        return F.struct(*(h.alias(name) for h, name in zip(halves, _PAIR.names, strict=True)))
    return _call(spark, columns, scheme.salt)


def _call(spark: SparkSession, columns: TypedColumns, salt: int) -> Column:
    """A call of `Fingerprints.java`: the method that takes what the key consists of."""
    package = jvm.load(spark)
    fields = [T.StructField(f"k{i}", kind) for i, (_, kind) in enumerate(columns)]
    signed = salt - (1 << 64) if salt >> 63 else salt
    computer = package.Fingerprints(_java_type(spark, T.StructType(fields)), signed)
    column, kind = columns[0]
    if len(columns) == 1 and isinstance(kind, _NUMBERS):
        zero = jvm.java_class(spark, f"{EXPRESSIONS}.Literal").default(_java_type(spark, kind))
        value = F.coalesce(column, _to_column(spark, zero))
        method, arguments = "ofNumber", [value, column.isNull()]
    elif len(columns) == 1 and isinstance(kind, T.StringType) and kind.isUTF8BinaryCollation():
        method, arguments = "ofString", [column]
    else:
        named = [c.alias(f"k{i}") for i, (c, _) in enumerate(columns)]
        method, arguments = "ofRow", [F.struct(*named)]
    return invoke(spark, computer, method, _PAIR, arguments)


def invoke(
    spark: SparkSession,
    target: Any,
    method: str,
    data_type: T.DataType,
    arguments: Sequence[Column],
) -> Column:
    """A call of a method of a Java object, which no plan contains but refers to."""
    new_list = jvm.java_class(spark, "java.util.ArrayList")
    utils = jvm.java_class(spark, "org.apache.spark.api.python.PythonUtils")
    listed = new_list()
    for argument in arguments:
        listed.add(_to_expression(spark, argument))
    nil = utils.toSeq(new_list())
    call = jvm.java_class(spark, f"{EXPRESSIONS}.objects.Invoke")(
        jvm.java_class(spark, f"{EXPRESSIONS}.Literal").fromObject(target),
        method,
        _java_type(spark, data_type),
        utils.toSeq(listed),
        nil,
        False,
        False,
        True,
    )
    return _to_column(spark, call)


def _java_type(spark: SparkSession, data_type: T.DataType) -> Any:
    return jvm.java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(data_type.json())


def _to_expression(spark: SparkSession, column: Column) -> Any:
    classic: Any = column
    return jvm.java_class(spark, EXPRESSION_UTILS).expression(classic._jc)


def _to_column(spark: SparkSession, expression: Any) -> Column:
    return ClassicColumn(jvm.java_class(spark, EXPRESSION_UTILS).column(expression))


def _half(spark: SparkSession, columns: TypedColumns, salt: int) -> Column:
    # The salt goes first: xxhash64(k, salt) is a function of xxhash64(k), xxhash64(salt, k) is not.
    parts: list[Column] = [F.lit(salt)]
    for column, data_type in columns:
        parts.extend(_parts(spark, column, data_type, salt))
    return F.xxhash64(*parts)


def _parts(spark: SparkSession, column: Column, data_type: T.DataType, salt: int) -> list[Column]:
    null_flag = column.isNull()
    if isinstance(data_type, T.StructType):
        parts = [null_flag]
        for field in data_type.fields:
            parts.extend(_parts(spark, column.getField(field.name), field.dataType, salt))
        return parts
    if isinstance(data_type, T.ArrayType):
        element_type = data_type.elementType
        hashes = F.transform(
            column, lambda e: F.xxhash64(F.lit(salt), *_parts(spark, e, element_type, salt))
        )
        # Not size(): of NULL, it is -1 or NULL, depending on ANSI mode.
        return [null_flag, F.array_size(column), hashes]
    if isinstance(data_type, T.StringType) and not data_type.isUTF8BinaryCollation():
        return [null_flag, _collation_key(spark, column)]
    return [null_flag, column]


def _collation_key(spark: SparkSession, column: Column) -> Column:
    """Bytes that are equal exactly when the strings are. Spark has no function for it."""
    key = jvm.java_class(spark, f"{EXPRESSIONS}.CollationKey")(_to_expression(spark, column))
    return _to_column(spark, key)
