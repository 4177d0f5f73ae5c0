"""The harness of patterns, and with it what the page about patterns says, by example.

A row is a letter, one a minute; a match is written as its letters.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.errors import PatternError, PatternLimitError
from millrace.operators.pattern.builder import Pattern, one_of, pattern
from millrace.testing import PatternHarness, column, earlier

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "key string, letter string, x bigint, at timestamp"


def letter(name: str) -> Any:
    return column("letter") == name


def is_(name: str) -> Pattern:
    """A row of this letter, called so."""
    return pattern(name).where(letter(name))


def a_b(way: str) -> Pattern:
    begun: Pattern = getattr(is_("a"), way)("b")
    return begun.where(letter("b"))


def harness(of: Pattern, after: str = "skip past last", **options: Any) -> PatternHarness:
    return PatternHarness(
        of if of.within_us else of.within("1 hour"),
        key="key",
        schema=SCHEMA,
        event_time="at",
        select={"all": earlier().list("letter")},
        after=after,
        **options,
    )


def rows(letters: str, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"key": "k", "letter": each, "x": number, "at": NOON + mr.minutes(first + number)}
        for number, each in enumerate(letters)
    ]


def found(of: Pattern, letters: str, after: str = "skip past last") -> tuple[list[str], list[str]]:
    """Matches and time-outs."""
    tested = harness(of, after)
    tested.send(rows(letters))
    emitted = tested.advance_watermark(NOON + mr.hours(5))
    return (
        ["".join(row[1]) for row in emitted],
        ["".join(row[1]) for row in emitted.timeouts()],
    )


@pytest.mark.parametrize(
    ("way", "letters", "matches"),
    [
        ("next", "axb", []),
        ("next", "ab", ["ab"]),
        ("followed_by", "axbb", ["ab"]),
        ("followed_by_any", "axbb", ["ab"]),
    ],
)
def test_how_rows_follow_each_other(way: str, letters: str, matches: list[str]) -> None:
    assert found(a_b(way), letters)[0] == matches


def test_every_match_of_any_later_row() -> None:
    assert found(a_b("followed_by_any"), "abxb", "every match")[0] == ["ab", "ab"]
    assert found(a_b("followed_by"), "abxb", "every match")[0] == ["ab"]


@pytest.mark.parametrize(
    ("greedy", "each", "matches"),
    [
        (False, "followed_by", ["ab"]),
        (True, "followed_by", ["abbb"]),
        (True, "next", ["abb"]),
    ],
)
def test_repetitions(greedy: bool, each: str, matches: list[str]) -> None:
    of = a_b("followed_by").one_or_more(greedy=greedy, each=each)
    assert found(of, "abbxb")[0] == matches


def test_optional_absent_and_chosen_rows() -> None:
    optional = is_("a").next("b").where(letter("b")).optional(greedy=True).next("c")
    optional = optional.where(letter("c"))
    assert found(optional, "acabc")[0] == ["ac", "abc"]
    without = is_("a").not_followed_by("x").where(letter("x")).followed_by("b").where(letter("b"))
    assert found(without, "axbaybb")[0] == ["ab"]
    unpaid = is_("a").not_followed_by("b").where(letter("b"))
    assert found(unpaid, "ab")[0] == []
    assert found(unpaid, "ac")[0] == ["a"]
    alone = is_("a").not_next("b").where(letter("b"))
    assert found(alone, "abaca")[0] == ["a", "a"]
    either = is_("a").next(one_of(is_("b"), is_("c").next("d").where(letter("d"))))
    assert found(either, "abacd")[0] == ["ab", "acd"]
    group = one_of(is_("a").next("b").where(letter("b"))).times(2, each="next")
    assert found(group, "ababab")[0] == ["abab"]


@pytest.mark.parametrize(
    ("after", "matches"),
    [
        ("skip past last", ["abb"]),
        ("skip to next", ["abb", "abb"]),
        ("skip to last b", ["abb"]),
    ],
)
def test_where_the_next_match_begins(after: str, matches: list[str]) -> None:
    of = is_("a").followed_by("b").where(letter("b")).times(2)
    assert found(of, "aabb", after)[0] == matches


def test_a_match_is_less_than_its_time_long_and_others_time_out() -> None:
    of = a_b("followed_by").within("2 minutes")
    assert found(of, "axb") == ([], ["a"])
    assert found(of, "ab") == (["ab"], [])


def test_a_match_waits_for_its_last_row_and_for_earlier_ones() -> None:
    tested = harness(a_b("followed_by").one_or_more(greedy=True, each="next"))
    assert tested.send(rows("ab")) == []
    assert tested.advance_watermark(NOON + mr.minutes(1)) == []
    tested.reopen()
    assert tested.send(rows("x", 2)) == []
    assert tested.advance_watermark(NOON + mr.minutes(2)) == [("k", ["a", "b"])]
    late = tested.send(rows("b", 1))
    assert late.late() == [("k", "b", 0, NOON + mr.minutes(1))]
    assert tested.counters["late"] == 1


def test_rows_of_one_time_are_in_order_of_arrival() -> None:
    tested = harness(a_b("next"))
    same = [{**row, "at": NOON} for row in rows("ab")]
    tested.send(same)
    assert tested.advance_watermark(NOON) == [("k", ["a", "b"])]
    tested = harness(a_b("next"))
    tested.send(same[::-1])
    assert tested.advance_watermark(NOON) == []


def test_numbers_that_are_lost_and_too_many_partial_matches_are_reported() -> None:
    of = pattern("a").followed_by("b").where(column("x") + earlier("a").last("x") > 0)
    tested = harness(of)
    tested.send([{**row, "x": 2**63 - 1} for row in rows("ab")])
    with pytest.raises(PatternLimitError, match="over 64 bits"):
        tested.advance_watermark(NOON + mr.hours(1))
    every = pattern("a").one_or_more(each="followed_by_any").followed_by("b").where(letter("b"))
    tested = harness(every.where(earlier("a").count() > 0), "every match")
    tested.send(rows("a" * 22))
    with pytest.raises(PatternLimitError, match="partial matches"):
        tested.advance_watermark(NOON + mr.hours(1))


def test_readers_see_partial_matches() -> None:
    tested = harness(a_b("followed_by").followed_by("c").where(letter("c")), shards=2)
    tested.send(rows("abx"))
    tested.advance_watermark(NOON + mr.minutes(1))
    with mr.open(tested.location) as reader:
        partial = reader.sql("select * from tested.partial").to_pylist()
        matched = reader.sql("select letter from tested.matched order by letter").to_pylist()
        waiting = reader.sql("select letter from tested").to_pylist()
    assert partial == [
        {
            "key": "k",
            "started": NOON,
            "expires": NOON + mr.hours(1),
            "matched": ["a", "b"],
            "waits_for": ["c"],
        }
    ]
    assert [row["letter"] for row in matched] == ["a", "b"]
    assert [row["letter"] for row in waiting] == ["x"]


def test_refuses_what_takes_spark() -> None:
    with pytest.raises(PatternError, match="takes Spark"):
        harness(pattern("a").where("letter = 'a'"))
    with pytest.raises(PatternError, match="without bound"):
        PatternHarness(
            pattern("a"),
            key="key",
            schema=SCHEMA,
            event_time="at",
            select={"all": earlier().list("letter")},
        )
    with pytest.raises(PatternError, match="something of the rows"):
        PatternHarness(
            pattern("a").within("1 hour"),
            key="key",
            schema=SCHEMA,
            event_time="at",
            select={"x": column("x")},
        )
