"""Nested values are converted column by column: what comes out is what went in, slices included."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import StateTypeError
from millrace.operators.process.convert import to_arrow, to_python

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
MAP = pa.map_(pa.int64(), pa.int64())
DEEP = pa.struct(
    [
        ("tags", pa.list_(pa.string())),
        ("limits", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("times", pa.list_(pa.map_(pa.int64(), pa.timestamp("us", "UTC")))),
    ]
)
VALUES: list[Any] = [
    {"tags": ["a", None], "limits": {"x": [1.0, None], "y": None}, "times": [{1: NOON}, None, {}]},
    None,
    {"tags": None, "limits": None, "times": None},
    {"tags": [], "limits": {}, "times": []},
    {"tags": ["b"], "limits": {"x": []}, "times": [{2: None, 3: NOON}]},
]


def test_nested_values_come_back() -> None:
    array = to_arrow(VALUES, DEEP, "it")
    array.validate(full=True)
    assert array.equals(pa.array(VALUES, DEEP))
    for first in range(len(VALUES)):
        for last in range(first, len(VALUES) + 1):
            assert to_python(array.slice(first, last - first)) == VALUES[first:last]


@pytest.mark.parametrize(
    "moments",
    [
        [NOON, NOON + dt.timedelta(microseconds=1)],
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)],
        [NOON, None],
        [],
    ],
)
def test_timestamps_come_back_in_utc(moments: list[Any]) -> None:
    found = to_python(pa.array(moments, pa.timestamp("us", "UTC")))
    assert found == moments
    assert all(moment is None or moment.tzinfo is dt.UTC for moment in found)


def test_times_without_a_zone_come_back() -> None:
    moments = [NOON.replace(tzinfo=None), None]
    assert to_python(pa.array(moments, pa.timestamp("us"))) == moments


def test_a_key_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(KeyError, match="duplicate"):
        to_python(pa.array([[(1, 2), (1, 3)]], MAP))


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (MAP, {"a": 1}),
        (MAP, {1: "x"}),
        (MAP, {None: 1}),
        (MAP, [1]),
        (pa.list_(pa.int64()), [1, "x"]),
        (pa.list_(pa.int64()), {1: 2}),
        (pa.list_(MAP), [{1: 1.5}]),
    ],
)
def test_the_value_that_does_not_fit_is_named(data_type: pa.DataType, value: Any) -> None:
    with pytest.raises(StateTypeError, match="does not fit") as raised:
        to_arrow([None, value, None], data_type, "it")
    assert raised.value.position == 1
    assert repr(value) in str(raised.value)


RAW = b"a\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.string(), RAW),
        (pa.list_(pa.string()), ["b", RAW, None]),
        (pa.map_(pa.string(), pa.string()), {RAW: "b", "c": RAW}),
        (pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]), {"a": RAW, "b": [RAW]}),
    ],
)
def test_text_that_is_not_utf_8_comes_back_from_anywhere(
    data_type: pa.DataType, value: Any
) -> None:
    assert to_python(to_arrow([value, None], data_type, "it")) == [value, None]
