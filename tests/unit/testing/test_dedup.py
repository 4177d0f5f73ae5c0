"""Deduplication without Spark: within the watermark, for a time, forever."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.errors import EventTimeError, UnknownColumnError, UnknownOutputError, UsageError
from millrace.testing import DedupHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "id long, at timestamp, page string"


def view(number: int | None, minute: float | None = 0, page: str = "") -> dict[str, Any]:
    at = None if minute is None else NOON + mr.minutes(minute)
    return {"id": number, "at": at, "page": page}


def ids(emitted: list[tuple[Any, ...]]) -> list[Any]:
    return [row[0] for row in emitted]


def test_keys_are_remembered_within_the_watermark() -> None:
    tested = DedupHarness(
        key="id", schema=SCHEMA, event_time="at", watermark="10 minutes", shards=3
    )
    first = tested.send(
        [view(1, 0, "a"), view(2, 1), view(1, 2, "b"), view(None, 3), view(7, None)]
    )
    assert sorted((str(row[0]), row[2]) for row in first) == [
        ("1", "a"),
        ("2", ""),
        ("7", ""),
        ("None", ""),
    ]
    tested.rescale(2)
    tested.reopen()
    assert ids(tested.send([view(2, 5), view(None, 9), view(3, 4)])) == [3]
    # The key 1 is remembered until ten minutes after its row, and then it is not.
    assert tested.advance_watermark(NOON + mr.minutes(10)) == []
    again = tested.send([view(1, 11), view(2, 12), view(4, 10), view(5, 10.5)])
    assert sorted(ids(again)) == [1, 5]
    assert [(row[0], row[1]) for row in again.late()] == [(4, NOON + mr.minutes(10))]
    assert tested.counters["late"] == 1
    assert tested.counters["duplicates"] == 1 + 2 + 1
    with mr.open(tested.location) as state:
        left = {row["id"]: row["expires_at"] for row in state.to_arrow().to_pylist()}
        assert left == {
            2: NOON + mr.minutes(11),
            None: NOON + mr.minutes(13),
            3: NOON + mr.minutes(14),
            1: NOON + mr.minutes(21),
            5: NOON + mr.minutes(20.5),
        }
        found = state.get([2, 7]).to_pylist()
        assert [row["_found"] for row in found] == [True, False]
        assert state.sql("select count(*) as n from tested").to_pylist() == [{"n": 5}]
        with pytest.raises(UsageError, match="when time passes them"):
            state.changes(0)
    tested.advance_watermark(NOON + mr.hours(1))
    assert tested.counters["evicted"] == 1 + 1 + 5
    with mr.open(tested.location) as state:
        assert state.to_arrow().num_rows == 0
        assert state.sql("select rows from millrace_operators").to_pylist() == [{"rows": 0}]


def test_a_row_without_event_time_is_never_late() -> None:
    tested = DedupHarness(key="id", schema=SCHEMA, event_time="at", watermark="1 minute")
    tested.send([view(9, 0)])
    tested.advance_watermark(NOON)
    assert ids(tested.send([view(1, None), view(1, None)])) == [1]
    assert tested.send([view(1, None)]) == []
    tested.advance_watermark(NOON + mr.seconds(1))
    assert ids(tested.send([view(1, None)])) == [1]
    assert "late" not in tested.counters


def test_keys_are_remembered_for_a_time() -> None:
    tested = DedupHarness(key=["id", "page"], schema=SCHEMA, event_time="at", ttl="10 seconds")
    assert ids(tested.send([view(1), view(1), view(1, page="x")])) == [1, 1]
    tested.advance_time(mr.seconds(9))
    assert tested.send([view(1)]) == []
    # It comes again in the epoch in which it is forgotten.
    tested._time_us += 1_000_000
    assert ids(tested.send([view(1), view(1)])) == [1]
    assert tested.counters["evicted"] == 1
    with mr.open(tested.location) as state:
        assert [row["page"] for row in state.to_arrow().to_pylist()] == [""]
    tested.advance_time(mr.seconds(10))
    assert tested.counters["evicted"] == 2
    with pytest.raises(UnknownOutputError, match="no row is late"):
        tested.send([view(1)]).late()


def test_keys_are_remembered_for_ever() -> None:
    tested = DedupHarness(key="id", schema=SCHEMA, ttl=None)
    assert ids(tested.send([view(2), view(1), view(2)])) == [2, 1]
    tested.advance_time(mr.days(999))
    assert tested.send([view(1)]) == []
    assert tested.counters == {"duplicates": 2}
    with mr.open(tested.location) as state:
        assert state.to_arrow().schema.names == ["id"]
        assert state.changes(0).num_rows == 2


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownColumnError, match="no column 'nope'"):
        DedupHarness(key="nope", schema=SCHEMA)
    with pytest.raises(EventTimeError, match="is of type string"):
        DedupHarness(key="id", schema=SCHEMA, event_time="page")
    for ttl in ("0 seconds", "-1 day", "soon", 7, "3 microseconds"):
        with pytest.raises(UsageError, match="ttl="):
            DedupHarness(key="id", schema=SCHEMA, ttl=ttl)  # type: ignore[arg-type]


def test_rows_are_late_to_the_microsecond() -> None:
    """A query keeps the watermark of each operator in microseconds, and so does the harness."""
    tested = DedupHarness(key="id", schema=SCHEMA, event_time="at", watermark="10 minutes")
    tested.advance_watermark(NOON + dt.timedelta(microseconds=500))
    behind, ahead = (NOON + dt.timedelta(microseconds=us) for us in (400, 600))
    emitted = tested.send([{"id": 1, "at": behind, "page": ""}, {"id": 2, "at": ahead, "page": ""}])
    assert ids(emitted) == [2]
    assert ids(emitted.late()) == [1]
