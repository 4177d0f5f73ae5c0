"""Joins without Spark: every kind, as-of joins and look-ups, late rows, restarts and readers."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.errors import (
    DuplicateNameError,
    EventTimeError,
    JoinError,
    UnknownColumnError,
    UsageError,
)
from millrace.testing import AsOfHarness, JoinHarness, LookupHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
LEFT = "ad string, clicked timestamp, click long"
RIGHT = "ad string, shown timestamp, page string"


def at(minute: float | None) -> dt.datetime | None:
    return None if minute is None else NOON + mr.minutes(minute)


def click(ad: str | None, minute: float | None, number: int) -> dict[str, Any]:
    return {"ad": ad, "clicked": at(minute), "click": number}


def show(ad: str | None, minute: float | None, page: str) -> dict[str, Any]:
    return {"ad": ad, "shown": at(minute), "page": page}


def joined(how: str = "inner", **options: Any) -> JoinHarness:
    given: dict[str, Any] = {"on": "ad", "left": LEFT, "right": RIGHT}
    given |= {"left_time": "clicked", "right_time": "shown", "within": ("-1 hour", "0 seconds")}
    return JoinHarness(**(given | {"how": how} | options))


def brief(emitted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as (key, number of the click, page)."""
    return sorted((tuple(row[i] for i in (0, 2, 4) if i < len(row)) for row in emitted), key=repr)


def test_pairs_come_with_their_second_row() -> None:
    tested = joined(shards=2)
    assert brief(tested.send([click("a", 10, 1)], [show("a", 5, "p"), show("b", 1, "q")])) == [
        ("a", 1, "p")
    ]
    tested.rescale(3)
    tested.reopen()
    emitted = tested.send([click("b", 61, 2), click("b", 62, 3)], [show("a", 10, "r")])
    assert brief(emitted) == [("a", 1, "r"), ("b", 2, "q")]
    # Rows that are equal in every column are rows of their own.
    twice = [click("a", 15, 4)] * 2
    assert brief(tested.send(twice)) == [("a", 4, "p")] * 2 + [("a", 4, "r")] * 2


@pytest.mark.parametrize(
    ("how", "at_once", "later"),
    [
        ("inner", [], []),
        ("left", [(None, 3, None)], [("a", 1, None)]),
        ("right", [(None, None, "n")], [("b", None, "q")]),
        ("full", [(None, 3, None), (None, None, "n")], [("a", 1, None), ("b", None, "q")]),
        ("semi", [], []),
        ("anti", [(None, 3)], [("a", 1)]),
    ],
)
def test_rows_without_a_partner(how: str, at_once: list[Any], later: list[Any]) -> None:
    tested = joined(how)
    emitted = tested.send([click("a", 10, 1), click(None, 5, 3)], [show(None, 5, "n")])
    assert brief(emitted) == at_once
    assert tested.send([], [show("b", 11, "q"), show("a", 10.5, "after")]) == []
    with_time = [row for row in later if row[:2] == ("a", 1)]
    # A click waits for rows up to its own time; a show for clicks of an hour after.
    assert tested.advance_watermark(NOON + mr.minutes(9)) == []
    assert brief(tested.advance_watermark(NOON + mr.minutes(10))) == with_time
    rest = tested.advance_watermark(NOON + mr.minutes(70.9))
    expected = [("a", None, "after")] if how in ("right", "full") else []
    assert brief(rest) == expected
    rest = tested.advance_watermark(NOON + mr.minutes(71))
    assert brief(rest) == [row for row in later if row not in with_time]
    assert tested.counters["evicted"] == 3
    for table in tested._operator.tables:
        assert tested._shards.trail.operator(f"tested/{table}" if table else "tested").rows == 0


def test_a_row_with_a_partner_is_not_alone_later() -> None:
    for how in ("left", "full"):
        tested = joined(how)
        tested.send([click("a", 10, 1), click("b", 10, 2)], [show("a", 9, "p")])
        tested.reopen()
        assert brief(tested.send([], [show("b", 8, "q"), show("b", 9, "r")])) == [
            ("b", 2, "q"),
            ("b", 2, "r"),
        ]
        assert brief(tested.advance_watermark(NOON + mr.hours(5))) == []


def test_a_semi_join_emits_a_row_once_and_an_anti_join_never_both() -> None:
    semi, anti = joined("semi"), joined("anti")
    clicks = [click("a", 10, 1), click("b", 10, 2)]
    shows = [show("a", 9, "p"), show("a", 8, "q")]
    assert brief(semi.send(clicks, shows)) == [("a", 1)]
    assert anti.send(clicks, shows) == []
    assert brief(semi.send([], [show("a", 7, "r"), show("b", 7, "r")])) == [("b", 2)]
    assert anti.send([], [show("a", 7, "r")]) == []
    assert semi.send([], [show("b", 6, "s")]) == []
    assert brief(semi.advance_watermark(NOON + mr.hours(2))) == []
    assert brief(anti.advance_watermark(NOON + mr.hours(2))) == [("b", 2)]


def test_late_rows_are_set_aside() -> None:
    tested = joined("full")
    tested.advance_watermark(NOON)
    emitted = tested.send(
        [click("a", 0, 1), click("a", 1, 2), click("a", None, 3)], [show("a", -1, "late")]
    )
    assert brief(emitted) == [("a", 3, None)]
    assert [row[2] for row in emitted.late()] == [1]
    assert [row[2] for row in emitted.side("late right rows")] == ["late"]
    assert tested.counters == {"late": 2, "without_time": 1}


def test_waiting_rows_can_be_read() -> None:
    tested = joined("left", shards=2)
    tested.send(
        [click("a", 10, 1), click("b", 11, 2), click("b", 12, 3)],
        [show("b", 11.5, "p"), show("c", 9, "q")],
    )
    tested.send([], [show("a", 9, "r")])
    with mr.open(tested.location) as state:
        rows = state.sql("select ad, click, matched from tested order by click").to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("a", 1, True),
            ("b", 2, False),
            ("b", 3, True),
        ]
        rows = state.sql("select page from tested.right where ad = 'b'").to_pylist()
        assert rows == [{"page": "p"}]
        found = state.get(["b", "c"]).to_pylist()
        assert [(row["ad"], row["click"], row["_found"]) for row in found] == [
            ("b", 3, True),
            ("c", None, False),
        ]
        with pytest.raises(UsageError, match="when time passes"):
            state.changes(0)
    tested.advance_watermark(NOON + mr.minutes(11))
    with mr.open(tested.location) as state:
        assert state.sql("select click from tested").to_pylist() == [{"click": 3}]
        assert state.sql("select count(*) n from tested.right").to_pylist() == [{"n": 3}]


def test_semi_join_rows_that_are_done_with_are_not_shown() -> None:
    tested = joined("semi")
    tested.send([click("a", 10, 1), click("b", 10, 2)])
    tested.send([], [show("a", 9, "p")])
    with mr.open(tested.location) as state:
        assert state.sql("select click from tested").to_pylist() == [{"click": 2}]
        assert state.get(["a", "b"]).column("_found").to_pylist() == [False, True]


def as_of(**options: Any) -> AsOfHarness:
    given: dict[str, Any] = {"on": "ad", "left": LEFT, "right": RIGHT}
    return AsOfHarness(**(given | {"left_time": "clicked", "right_time": "shown"} | options))


def test_as_of_takes_the_newest_row_whatever_the_order() -> None:
    tested = as_of(shards=2)
    assert tested.send([click("a", 10, 1), click("b", 5, 2)], [show("a", 3, "old")]) == []
    # Of rows of the same time, the last one counts.
    tested.send([], [show("a", 9, "p"), show("a", 11, "after")])
    tested.send([], [show("a", 9, "q")])
    assert tested.advance_watermark(NOON + mr.minutes(4)) == []
    tested.rescale(3)
    assert brief(tested.advance_watermark(NOON + mr.minutes(10))) == [
        ("a", 1, "q"),
        ("b", 2, None),
    ]
    tested.send([click("a", 10.5, 3), click("a", 30, 4), click(None, 1, 5)])
    assert brief(tested.advance_watermark(NOON + mr.hours(1))) == [("a", 3, "q"), ("a", 4, "after")]
    with mr.open(tested.location) as state:
        assert state.sql("select ad, page from tested").to_pylist() == [
            {"ad": "a", "page": "after"}
        ]
        assert state.get(["a"]).column("page").to_pylist() == ["after"]
        assert state.sql("select * from tested.left").to_pylist() == []


def test_as_of_with_a_tolerance_keeps_no_longer_than_it() -> None:
    tested = as_of(tolerance="5 minutes")
    tested.send([click("a", 10, 1), click("a", 8, 2)], [show("a", 4, "p"), show("b", 4, "q")])
    assert brief(tested.advance_watermark(NOON + mr.minutes(5))) == []
    with mr.open(tested.location) as state:
        assert state.get(["a", "b"]).column("page").to_pylist() == ["p", "q"]
    assert brief(tested.advance_watermark(NOON + mr.minutes(20))) == [
        ("a", 1, None),
        ("a", 2, "p"),
    ]
    with mr.open(tested.location) as state:
        assert state.get(["a"]).column("_found").to_pylist() == [False]
    for table in ("tested", "tested/left", "tested/right"):
        assert tested._shards.trail.operator(table).rows == 0


def test_lookup_answers_at_once() -> None:
    tested = LookupHarness(
        on="ad", left="ad string, n long", right=RIGHT, right_time="shown", shards=2
    )
    asked = [{"ad": "a", "n": 1}, {"ad": "b", "n": 2}, {"ad": None, "n": 3}]
    rows = [show("a", 5, "p"), show("a", 4, "older"), show(None, 4, "x")]
    assert brief_lookup(tested.send(asked, rows)) == [
        ("a", 1, "p"),
        ("b", 2, None),
        (None, 3, None),
    ]
    tested.rescale(1)
    assert tested.send([], [show("a", 4, "older"), show("b", None, "q")]) == []
    tested.reopen()
    rows = [show("b", None, "r"), show("b", None, "s")]
    assert brief_lookup(tested.send(asked[:2], rows)) == [("a", 1, "p"), ("b", 2, "s")]
    with mr.open(tested.location) as state:
        assert state.get(["a", "b"]).column("page").to_pylist() == ["p", "s"]
        assert state.changes(1).num_rows == 1


def brief_lookup(emitted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(((row[0], row[1], row[3]) for row in emitted), key=repr)


def test_an_inner_lookup_drops_rows_without_a_partner() -> None:
    tested = LookupHarness(on="ad", left="ad string, n long", right=RIGHT, how="inner")
    asked = [{"ad": "a", "n": 1}, {"ad": "b", "n": 2}, {"ad": None, "n": 3}]
    assert brief_lookup(tested.send(asked, [show("a", 5, "p"), show("a", 4, "q")])) == [
        ("a", 1, "q")
    ]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"how": "outer"}, JoinError, "'inner', 'left'"),
        ({"within": None}, JoinError, "kept forever"),
        ({"within": "1 hour"}, JoinError, "two lengths"),
        ({"within": ("1 hour", "0 seconds")}, JoinError, "Swap them"),
        ({"within": ("-1 month", "0 seconds")}, JoinError, "differ in length"),
        ({"within": ("soon", "0 seconds")}, JoinError, "not a duration"),
        ({"within": (1, 2)}, JoinError, "is not a duration"),
        ({"within": ("-400000 days", "0 seconds")}, JoinError, "thousand years"),
        ({"on": "page"}, UnknownColumnError, "no column 'page'"),
        ({"left_time": "click"}, EventTimeError, "timestamp"),
        ({"right": "ad long, shown timestamp"}, JoinError, "of type string on the left"),
        ({"right": "ad string, shown timestamp, click long"}, DuplicateNameError, "'click'"),
    ],
)
def test_bad_joins_are_refused(options: dict[str, Any], error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        joined(**options)


def test_bad_tolerances_are_refused() -> None:
    for tolerance in ("-1 minute", 5, "a year"):
        with pytest.raises(JoinError, match="tolerance="):
            as_of(tolerance=tolerance)
