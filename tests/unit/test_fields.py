from __future__ import annotations

from typing import Any

import pytest

from millrace import fields
from millrace.errors import MalformedError
from millrace.fields import Fields


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"NaN", b"[Infinity]", b'"\\ud800"', b"[" * 100_000, b"9" * 5000, b"\xff"],
    ids=["nothing", "half", "nan", "infinity", "half a pair", "deep", "long", "no text"],
)
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(MalformedError, match="it is not JSON"):
        fields.parse(data)


def test_pairs_of_surrogates_are_text() -> None:
    assert fields.parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    "value", [True, None, 1.0, "1", -1, 8, pytest.param(10**5000, id="long"), []]
)
def test_what_is_not_a_number_of_this_range(value: Any) -> None:
    with pytest.raises(MalformedError, match="a whole number from 0 to 7"):
        fields.integer(value, "it", 0, 7)
    assert fields.integer(7, "it", 0, 7) == 7


@pytest.mark.parametrize("value", [True, None, float("inf"), float("nan"), -0.5, 2**70, "1"])
def test_what_is_not_a_number(value: Any) -> None:
    with pytest.raises(MalformedError, match="a number that is not negative"):
        fields.number(value, "it")
    assert fields.number(1, "it") == 1.0


def test_fields_of_an_object() -> None:
    found = Fields({"n": 1, "t": "x", "l": [1], "m": {}, "none": None}, "it")
    assert (found.integer("n"), found.text("t"), found.items("l", 1)) == (1, "x", [1])
    assert (found.members("m"), found.maybe_integer("none"), found.has("none")) == ({}, None, False)
    for read in (found.integer, found.items, found.members):
        with pytest.raises(MalformedError, match="'t' of it is 'x'"):
            read("t")
    with pytest.raises(MalformedError, match="it has no 'z'"):
        found.text("z")
    with pytest.raises(MalformedError, match="a list of 2"):
        found.items("l", 2)
    with pytest.raises(MalformedError, match="not an object"):
        Fields([], "it")
