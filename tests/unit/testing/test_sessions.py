"""Sessions without Spark: growing, merging, late rows, every emission, restarts and shards."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import EventTimeError, UnknownColumnError, UsageError, WindowError
from millrace.serve.lookups import Lookups
from millrace.testing import SessionHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "user string, at timestamp, page string, ms int"


def view(user: str | None, minute: float, page: str = "/", ms: int | None = 1) -> dict[str, Any]:
    return {"user": user, "at": NOON + mr.minutes(minute), "page": page, "ms": ms}


def harness(**options: Any) -> SessionHarness:
    given = {"gap": "10 minutes", "aggregates": {"n": mr.count(), "pages": mr.collect_list("page")}}
    return SessionHarness(key="user", schema=SCHEMA, event_time="at", **(given | options))


def minutes(time: dt.datetime) -> float:
    return (time - NOON) / mr.minutes(1)


def brief(emitted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sessions as (key, minutes from noon to their start and end, values)."""
    found = [
        (key, minutes(session["start"]), minutes(session["end"]), *values)
        for key, session, *values in emitted
    ]
    return sorted(found, key=lambda row: (repr(row[0]), row[1]))


def test_sessions_grow_merge_and_end_once() -> None:
    tested = harness(shards=3)
    assert (
        tested.send([view("a", 0, "a"), view("a", 9, "b"), view("a", 30, "d"), view(None, 3)]) == []
    )
    tested.rescale(2)
    tested.reopen()
    assert {row["n"] for row in tested.state()} == {1, 2}
    # A row exactly at the end of the gap is of the session; the next joins two sessions.
    assert tested.send([view("a", 19, "c")]) == []
    assert tested.send([view("a", 20, "x", None)]) == []
    assert len(tested.state()) == 2
    emitted = tested.advance_watermark(NOON + mr.minutes(13))
    assert brief(emitted) == [(None, 3, 13, 1, ["/"])]
    late = tested.send([view("a", 3, "late"), view("b", 2, "late"), {"user": "c"}])
    assert late == []
    assert [(row[0], row[2]) for row in late.late()] == [("a", "late"), ("b", "late")]
    assert brief(tested.advance_watermark(NOON + mr.minutes(39.9))) == []
    (session,) = brief(tested.advance_watermark(NOON + mr.minutes(40)))
    assert session == ("a", 0, 40, 5, ["a", "b", "c", "x", "d"])
    assert tested.counters == {"evicted": 2, "late": 2, "without_time": 1}
    with mr.open(tested.location) as left:
        assert left.to_arrow().num_rows == 0
        assert left.sql("select rows from millrace_operators").to_pylist() == [{"rows": 0}]


def test_a_row_may_be_in_time_for_a_session_that_began_long_ago() -> None:
    tested = harness()
    tested.send([view("a", 0), view("a", 8), view("b", 20)])
    tested.advance_watermark(NOON + mr.minutes(12))
    # Alone it would end at 13: it is not late, and makes a session longer that began earlier.
    tested.send([view("a", 3, "x"), view("a", 16, "y")])
    (session,) = brief(tested.advance_watermark(NOON + mr.minutes(26)))
    assert session == ("a", 0, 26, 4, ["/", "/", "x", "y"])


def test_updates_show_what_changed() -> None:
    tested = harness(emit="update", aggregates={"n": mr.count()})
    assert brief(tested.send([view("a", 0), view("a", 20), view("b", 0)])) == [
        ("a", 0, 10, 1),
        ("a", 20, 30, 1),
        ("b", 0, 10, 1),
    ]
    assert brief(tested.send([view("a", 10)])) == [("a", 0, 30, 3)]
    assert brief(tested.send([view("a", -5)])) == [("a", -5, 30, 4)]
    assert len([row for row in tested.state() if row["user"] == "a"]) == 1
    assert tested.advance_watermark(NOON + mr.minutes(30)) == []
    assert tested.counters["evicted"] == 2


def test_early_results_come_at_multiples_of_their_period() -> None:
    tested = harness(emit="early=10 seconds", aggregates={"n": mr.count()})
    assert tested.send([view("a", 1), view("a", 20)]) == []
    assert brief(tested.advance_time(mr.seconds(10))) == [
        ("a", 1, 11, 1, False),
        ("a", 20, 30, 1, False),
    ]
    assert tested.advance_time(mr.seconds(10)) == []
    assert tested.send([view("a", 11)]) == []
    tested.reopen()
    tested._time_us += 10_000_000
    # A change in the epoch in which a result is due comes with it.
    assert brief(tested.send([view("a", 2)])) == [("a", 1, 30, 4, False)]
    assert tested.advance_time(mr.seconds(30)) == []
    assert brief(tested.advance_watermark(NOON + mr.minutes(30))) == [("a", 1, 30, 4, True)]


def test_final_sessions_are_those_of_a_batch_in_duckdb() -> None:
    chance = random.Random(8)
    tested = harness(aggregates={"n": mr.count(), "total": mr.sum("ms"), "mean": mr.mean("ms")})
    emitted, every = [], []
    for number in range(10):
        # Rows are out of order, but none is behind the watermark.
        rows = [
            view(chance.choice("abcd"), 30 * number + chance.random() * 60, "", chance.randrange(9))
            for _ in range(15)
        ]
        every += rows
        tested.rescale(chance.randint(1, 4))
        emitted += tested.send(rows)
        emitted += tested.advance_watermark(NOON + mr.minutes(30 * number))
    emitted += tested.advance_watermark(NOON + mr.hours(99))
    connection = duckdb.connect()
    connection.register("given", pa.Table.from_pylist(every))
    expected = connection.execute(
        """
        with marked as (
            select *, "at" - lag("at") over w > interval 10 minutes as is_first
            from given window w as (partition by "user" order by "at")
        ), numbered as (
            select *, sum(coalesce(is_first, true)::int)
                over (partition by "user" order by "at") as session
            from marked
        )
        select "user", epoch_us(min("at")), epoch_us(max("at")), count(*), sum(ms)::bigint, avg(ms)
        from numbered group by "user", session
        """
    ).fetchall()
    noon, minute = int(NOON.timestamp()) * 10**6, 6 * 10**7
    wanted = [(u, (a - noon) / minute, (b - noon) / minute + 10, *v) for u, a, b, *v in expected]
    assert len(wanted) > 20
    for got, want in zip(brief(emitted), sorted(wanted), strict=True):
        assert got[0] == want[0]
        assert got[1:] == pytest.approx(want[1:])


def test_sessions_are_served_by_key_and_start() -> None:
    tested = harness(aggregates={"n": mr.count()})
    tested.send([view("a", 1), view("a", 7), view("a", 40), view("b", 12)])
    with mr.open(tested.location) as reader:
        of_a = reader.sql("select session_window.start as s, n from tested where \"user\" = 'a'")
        assert sorted((row["s"], row["n"]) for row in of_a.to_pylist()) == [
            (NOON + mr.minutes(1), 2),
            (NOON + mr.minutes(40), 1),
        ]
        with pytest.raises(UsageError, match="when time passes them"):
            reader.changes(0)
    with Lookups(tested.location) as lookups:
        starts = pa.array([NOON + mr.minutes(m) for m in (1, 12, 7, 40)], pa.timestamp("us", "UTC"))
        keys = {"user": pa.array(["a", "b", "a", "a"]), "session_start": starts}
        answer = lookups.look_up("tested", keys)
        assert answer.found.tolist() == [True, True, False, True]
        assert [row["n"] for row in answer.rows.to_pylist()] == [2, 1, None, 1]
        tested.advance_watermark(NOON + mr.minutes(22))
        lookups.refresh()
        answer = lookups.look_up("tested", keys, ["n"])
        assert answer.found.tolist() == [False, False, False, True]
        assert answer.rows.schema.names == ["user", "session_start", "n"]
    with mr.open(tested.location, epoch=1) as before:
        assert before.to_arrow().num_rows == 3


def test_open_sessions_move_to_another_location() -> None:
    tested = harness(aggregates={"n": mr.count()})
    tested.send([view("a", 1), view("a", 40), view("b", 12), view(None, 3)])
    copy = f"{tested.location}-copy"
    moved = mr.import_state(tested.location, copy, key_groups=64, fresh_source=True)
    assert moved.rows == 4
    with mr.open(tested.location) as before, mr.open(copy) as after:
        kept, copied = (sorted(map(repr, r.to_arrow().to_pylist())) for r in (before, after))
        assert kept == copied
        of_a = after.sql("select count(*) as n from tested where \"user\" = 'a'").to_pylist()
        assert of_a == [{"n": 2}]


def test_what_cannot_be_is_refused() -> None:
    for gap in ("0 minutes", "-1 minute", "1 month", 5, "soon"):
        with pytest.raises(WindowError, match="session"):
            harness(gap=gap)
    with pytest.raises(UnknownColumnError, match="no column 'nope'"):
        harness(aggregates={"n": mr.sum("nope")})
    with pytest.raises(EventTimeError, match="is of type int"):
        SessionHarness(key="user", schema=SCHEMA, event_time="ms", gap="1 hour", aggregates={})
    with pytest.raises(UsageError, match="takes Spark to compute"):
        harness(aggregates={"n": mr.quantile("ms", 0.5)})
