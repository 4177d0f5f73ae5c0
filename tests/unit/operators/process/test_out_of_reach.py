"""Values that Spark has and Python has not: they come in, and text goes out as it was."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import StateTypeError
from millrace.operators.process.convert import from_us, to_arrow, to_python

FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)


def text(values: list[bytes | None]) -> pa.Array:
    """Strings of any bytes, as Spark sends them."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)


@given(st.lists(st.none() | st.binary()))
def test_bytes_that_are_no_text_come_back_as_they_were(values: list[bytes | None]) -> None:
    objects = to_python(text(values))
    assert [None if o is None else o.encode("utf-8", "surrogateescape") for o in objects] == values
    assert to_arrow(objects, pa.string(), "it").cast(pa.binary()).to_pylist() == values


@given(st.lists(st.none() | st.lists(st.none() | st.binary())))
def test_also_within_lists_structs_and_maps(values: list[list[bytes | None] | None]) -> None:
    flat = text([v for value in values for v in value or []])
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or []))
    nulls = pa.array([value is None for value in values], pa.bool_())
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, mask=nulls)
    objects = to_python(lists)
    assert [o is None for o in objects] == [v is None for v in values]
    again = to_arrow(objects, pa.list_(pa.string()), "it")
    assert again.flatten().cast(pa.binary()).to_pylist() == flat.cast(pa.binary()).to_pylist()
    structs = pa.StructArray.from_arrays([flat], ["s"])
    inner = to_arrow(to_python(structs), structs.type, "it").field("s").cast(pa.binary())
    assert inner.to_pylist() == flat.cast(pa.binary()).to_pylist()


def test_a_surrogate_that_stands_for_no_byte_is_refused_and_named() -> None:
    with pytest.raises(StateTypeError, match="surrogates") as caught:
        to_arrow(["fine", "\udcff", "\ud800"], pa.string(), "it")
    assert caught.value.position == 2


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_times_beyond_pythons_are_its_first_and_last(micros: list[int | None]) -> None:
    numbers = pa.array(micros, pa.int64())
    for data_type in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        found = to_python(numbers.cast(data_type))
        for us, moment in zip(micros, found, strict=True):
            assert (us is None) is (moment is None)
            if us is not None:
                assert moment.replace(tzinfo=dt.UTC) == from_us(us)
                assert FIRST <= from_us(us) <= LAST


def test_dates_beyond_pythons() -> None:
    days = pa.array([None, -(2**31), 0, 2**31 - 1], pa.int32()).cast(pa.date32())
    assert to_python(days) == [None, dt.date.min, dt.date(1970, 1, 1), dt.date.max]
