"""Values go into a state and come out as they do in Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row

from millrace.ddl import parse_schema
from millrace.errors import StateTypeError
from millrace.operators.spark_processor.values import Shape


def back(schema: str, *value: Any) -> tuple[Any, ...]:
    shape = Shape(parse_schema(schema))
    return shape.show(shape.store(value))


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("type_", "given", "expected"),
    [
        ("long", 7, 7),
        ("long", 1.5, None),
        ("long", True, None),
        ("long", 2**70, None),
        ("long", np.int32(5), 5),
        ("int", 2**33 + 5, 5),
        ("byte", 200, -56),
        ("short", -40000, 25536),
        ("double", 3, None),
        ("double", np.float64(0.5), 0.5),
        ("float", 0.1, 0.10000000149011612),
        ("boolean", 1, None),
        ("boolean", np.bool_(True), True),
        ("string", 12, "12"),
        ("string", True, "true"),
        ("binary", "é", "é".encode()),
        ("binary", bytearray(b"x"), b"x"),
        ("binary", 5, None),
        ("decimal(10,2)", decimal.Decimal("1.005"), decimal.Decimal("1.01")),
        ("decimal(10,2)", 5, None),
        ("date", dt.datetime(2024, 2, 29, 12), dt.date(2024, 2, 29)),
        ("array<int>", (1, None, "x"), [1, None, None]),
        ("array<int>", {1}, None),
        ("map<string,long>", {"a": 1, "b": 1.5}, {"a": 1, "b": None}),
        ("map<string,long>", [("a", 1)], None),
        ("struct<p:int,q:string>", {"q": "x"}, Row(p=None, q="x")),
        ("struct<p:int,q:string>", [1, "x"], Row(p=1, q="x")),
        ("timestamp_ntz", dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1)),
        ("timestamp", None, None),
    ],
)
def test_each_type(type_: str, given: Any, expected: Any) -> None:
    (shown,) = back(f"x {type_}", given)
    assert shown == expected
    assert type(shown) is type(expected)


def test_a_naive_time_is_one_of_the_process(tokyo: None) -> None:
    shape = Shape(parse_schema("t timestamp, x struct<t:timestamp>"))
    noon = dt.datetime(2024, 1, 1, 12)
    aware = dt.datetime(2024, 1, 1, 3, tzinfo=dt.UTC)
    stored = shape.store((noon, (pd.Timestamp(aware),)))
    assert stored == {"t": aware, "x": {"t": aware}}
    assert shape.show(stored) == (noon, Row(t=noon))


def test_what_is_shown_is_a_copy() -> None:
    shape = Shape(parse_schema("a array<int>, m map<string,int>"))
    given = [1]
    stored = shape.store((given, {"x": 1}))
    given.append(2)
    shown = shape.show(stored)
    shown[0].append(3)
    shown[1]["y"] = 2
    assert shape.show(stored) == ([1], {"x": 1})


def test_the_number_of_fields_must_agree() -> None:
    with pytest.raises(StateTypeError, match="has 2 fields"):
        back("n long", 1, 2)
    with pytest.raises(TypeError):
        Shape(parse_schema("n long")).store(None)
    with pytest.raises(StateTypeError, match="does not fit"):
        back("c decimal(3,2)", decimal.Decimal("100"))
