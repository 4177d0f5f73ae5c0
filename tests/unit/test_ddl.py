"""Type strings: what Spark's own types print is read back; anything else is refused."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark.sql import types as T

from millrace.ddl import parse_schema, parse_type
from millrace.errors import UnsupportedTypeError

simple = st.sampled_from(
    [
        T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
        T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(),
        T.TimestampNTZType(),
    ]
)  # fmt: skip
decimal_types = st.integers(1, 38).flatmap(
    lambda p: st.builds(T.DecimalType, st.just(p), st.integers(0, p))
)
names = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,8}\Z")


def structs(children: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.StructType]:
    fields = st.dictionaries(names, children, min_size=1, max_size=4)
    return fields.map(lambda f: T.StructType([T.StructField(n, t) for n, t in f.items()]))


any_type = st.recursive(
    simple | decimal_types,
    lambda inner: st.one_of(
        inner.map(T.ArrayType), st.builds(T.MapType, inner, inner), structs(inner)
    ),
    max_leaves=8,
)


@given(any_type)
def test_what_a_type_prints_is_read_back(data_type: T.DataType) -> None:
    assert parse_type(data_type.simpleString()) == data_type
    assert parse_type(data_type) is data_type


@given(structs(any_type))
def test_a_schema_is_read_back(schema: T.StructType) -> None:
    for separator in (" ", ": "):
        text = ", ".join(f"{f.name}{separator}{f.dataType.simpleString()}" for f in schema.fields)
        assert parse_schema(text) == schema


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("BIGINT", T.LongType()),
        (" array < struct < a : int , b : string > > ", T.ArrayType(
            T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.StringType())])
        )),
        ("decimal", T.DecimalType(10, 0)),
        ("numeric(5)", T.DecimalType(5, 0)),
        ("struct<`a b`:int>", T.StructType([T.StructField("a b", T.IntegerType())])),
        ("struct<`a``b```:int>", T.StructType([T.StructField("a`b`", T.IntegerType())])),
        ("struct<a:int not null>", T.StructType([T.StructField("a", T.IntegerType(), False)])),
    ],
)  # fmt: skip
def test_spellings(text: str, data_type: T.DataType) -> None:
    assert parse_type(text) == data_type


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "lang", "long long", "array", "array<>", "array<long", "array<long>>", "map<long>",
        "map<long,long,long>", "struct<a>", "struct<a long>", "struct<a:int,>",
        "struct<a:int,a:int>", "struct<,:int>", "decimal(x)", "decimal(10,-2)", "decimal(39)",
        "decimal(5,6)", "decimal(0)", "decimal(5", "struct<a:int not>", "struct<a:int not nil>",
        "long;", "void", "variant", "interval day", "varchar(5)", 5, None,
    ],
)  # fmt: skip
def test_what_is_no_type_is_refused_and_shown(text: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        parse_type(text)
    assert repr(text) in str(caught.value)
    assert "Write it as in Spark" in str(caught.value)


@pytest.mark.parametrize("text", ["", "a", "a long b long", "a long,", "a long, a int", "long"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedTypeError):
        parse_schema(text)
