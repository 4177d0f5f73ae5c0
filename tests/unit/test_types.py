"""Spark's JSON descriptions of types as Arrow types, against PySpark's own conversion."""

import json
from typing import Any

import pytest
from pyspark.sql import types as T

from millrace import types
from millrace.errors import UnhashableKeyError, UnsupportedTypeError
from millrace.keygroups.keys import check_computable, is_computable

STORED: list[T.DataType] = [
    T.BooleanType(),
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.FloatType(),
    T.DoubleType(),
    T.DecimalType(1, 0),
    T.DecimalType(18, 18),
    T.DecimalType(38, 6),
    T.StringType(),
    T.StringType("UTF8_BINARY"),
    T.StringType("UNICODE_CI"),
    T.BinaryType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
    T.TimeType(0),
    T.TimeType(6),
    T.VariantType(),
    T.GeometryType(4326),
    T.GeometryType("ANY"),
    T.GeographyType(4326),
    *[T.DayTimeIntervalType(i, j) for i in range(4) for j in range(i, 4)],
]
REFUSED: list[T.DataType] = [
    T.CharType(3),
    T.VarcharType(20),
    T.CalendarIntervalType(),
    T.YearMonthIntervalType(),
    T.YearMonthIntervalType(0),
    T.YearMonthIntervalType(1),
]


def nested(inner: T.DataType) -> list[T.DataType]:
    field = T.StructField("b c", inner, False, {"comment": "ü", "n": 1})
    return [
        inner,
        T.ArrayType(inner),
        T.ArrayType(inner, containsNull=False),
        T.MapType(T.StringType(), inner),
        T.MapType(T.LongType(), inner, valueContainsNull=False),
        T.StructType([T.StructField("a", inner), field]),
        T.ArrayType(T.StructType([T.StructField("m", T.MapType(T.DateType(), inner))])),
    ]


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_every_type_is_what_pyspark_makes_of_it(stored: T.DataType) -> None:
    for data_type in nested(stored):
        description = json.loads(data_type.json())
        expected = types.arrow_type(data_type, "x")
        # Arrow compares the metadata of fields only if it is asked to. Of a geometry's it would be
        # the SRID, which is in Spark's own table of reference systems.
        strict = not isinstance(stored, T.GeometryType | T.GeographyType)
        assert types.arrow_of(description, "x").equals(expected, check_metadata=strict)
        assert types.from_json(description) == data_type


@pytest.mark.parametrize("data_type", [T.StructType([]), T.NullType(), T.ArrayType(T.NullType())])
def test_types_of_nothing(data_type: T.DataType) -> None:
    assert types.arrow_of(data_type.jsonValue(), "x") == types.arrow_type(data_type, "x")


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_what_pyspark_refuses_is_refused(refused: T.DataType) -> None:
    for data_type in nested(refused):
        with pytest.raises(UnsupportedTypeError) as theirs:
            types.arrow_type(data_type, "column 'x'")
        with pytest.raises(UnsupportedTypeError, match="column 'x' has type") as ours:
            types.arrow_of(data_type.jsonValue(), "column 'x'")
        if data_type is refused:
            assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "unknown",
    ["quaternion", "decimal(3)", "interval day to year", {"type": "tensor"}, {}, 7, None, ["long"]],
    ids=str,
)
def test_unknown_types_are_refused(unknown: Any) -> None:
    for description in (unknown, {"type": "array", "elementType": unknown, "containsNull": True}):
        with pytest.raises(UnsupportedTypeError, match="column 'x' has type"):
            types.arrow_of(description, "column 'x'")


UDT = {
    "type": "udt",
    "class": "org.example.Point",
    "pyClass": "millrace_no_such_module.Point",
    "sqlType": "double",
}


@pytest.mark.parametrize(
    "description",
    [
        UDT,
        {"type": "array", "elementType": UDT, "containsNull": True},
        {"type": "map", "keyType": "long", "valueType": UDT, "valueContainsNull": True},
        {"type": "map", "keyType": UDT, "valueType": "long", "valueContainsNull": True},
        {"type": "struct", "fields": [{"name": "a", "type": UDT, "nullable": True}]},
    ],
    ids=types.simple_string,
)
def test_no_description_makes_us_import_a_module(description: Any) -> None:
    # PySpark would fail with ModuleNotFoundError: it imports what the description names.
    with pytest.raises(UnsupportedTypeError, match="user-defined type, millrace_no_such"):
        types.arrow_of(description, "column 'x'")
    with pytest.raises(UnsupportedTypeError, match="user-defined type, millrace_no_such"):
        types.from_json(description)


@pytest.mark.parametrize("stored", [t for t in STORED + REFUSED if "geo" not in t.typeName()])
def test_names_are_those_of_sql(stored: T.DataType) -> None:
    for data_type in (stored, T.ArrayType(stored), T.MapType(T.LongType(), stored)):
        assert types.simple_string(data_type.jsonValue()) == data_type.simpleString()


def test_the_name_of_a_struct() -> None:
    struct = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.DateType())])
    assert types.simple_string(struct.jsonValue()) == struct.simpleString()


LOWER = T.StringType("UTF8_LCASE")


@pytest.mark.parametrize(
    ("data_type", "part"),
    [
        (LOWER, "'k'"),
        (T.ArrayType(LOWER), r"'k\[\]'"),
        (T.StructType([T.StructField("a", LOWER)]), r"'k\.a'"),
        (T.StructType([T.StructField("a", T.ArrayType(LOWER))]), r"'k\.a\[\]'"),
        (T.ArrayType(T.StructType([T.StructField("a", LOWER)])), r"'k\[\]\.a'"),
        (T.StructType([T.StructField("a", T.StructType([T.StructField("b", LOWER)]))]), r"k\.a\.b"),
    ],
    ids=str,
)
def test_keys_with_a_collation_need_spark(data_type: T.DataType, part: str) -> None:
    description = data_type.jsonValue()
    assert not is_computable(description)
    with pytest.raises(UnhashableKeyError, match=f"{part}.* has type string collate UTF8_LCASE"):
        check_computable("k", description)


@pytest.mark.parametrize(
    "data_type",
    [
        T.StringType(),
        T.StringType("UTF8_BINARY"),
        T.LongType(),
        T.ArrayType(T.StringType()),
        T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.DateType())]),
    ],
    ids=str,
)
def test_other_keys_do_not(data_type: T.DataType) -> None:
    check_computable("k", data_type.jsonValue())
    assert is_computable(data_type.jsonValue())
