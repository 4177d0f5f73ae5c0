from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import MalformedError
from millrace.keygroups import format_ranges, listed_ranges, parse_ranges


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([], ""),
        ([0], "0"),
        ([7], "7"),
        ([0, 1, 2, 5], "0-2,5"),
        ([0, 2, 4], "0,2,4"),
        (list(range(4096)), "0-4095"),
        ([0, 1, 3, 4, 4095], "0-1,3-4,4095"),
    ],
)
def test_examples(groups: list[int], text: str) -> None:
    assert format_ranges(groups) == text
    assert parse_ranges(text).tolist() == groups


@given(st.sets(st.integers(0, 300)))
def test_round_trip(groups: set[int]) -> None:
    assert parse_ranges(format_ranges(sorted(groups))).tolist() == sorted(groups)


@pytest.mark.parametrize(
    "text", ["a", "1-b", "1,,2", "-", "3-1", "2,1", "1,1", "\u00b2", "4096", "0-99999999999"]
)
def test_text_that_is_not_ranges_is_not_guessed_at(text: str) -> None:
    with pytest.raises(MalformedError, match="ranges of key groups"):
        parse_ranges(text)


def test_people_may_write_ranges_in_any_order() -> None:
    assert listed_ranges("7,0-2,1").tolist() == [0, 1, 2, 7]
    assert listed_ranges("").tolist() == []
    for wrong in ("2-", "1,,2", ",", "1,"):
        with pytest.raises(MalformedError):
            listed_ranges(wrong)
