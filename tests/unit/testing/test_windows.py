"""Windows without Spark: every function, every emission, late rows, restarts and shards."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import EventTimeError, UnknownColumnError, UsageError
from millrace.serve.lookups import Lookups
from millrace.testing import WindowHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "page string, at timestamp, ms int, price decimal(8,2), who string"


def view(page: str | None, minute: float, ms: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"page": page, "at": NOON + mr.minutes(minute), "ms": ms} | more


def harness(**options: Any) -> WindowHarness:
    given = {"size": "10 minutes", "aggregates": {"n": mr.count(), "total": mr.sum("ms")}}
    return WindowHarness(key="page", schema=SCHEMA, event_time="at", **(given | options))


def brief(emitted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Windows as (key, minutes from noon to their end, values)."""
    found = []
    for key, window, *values in emitted:
        end = window["end"] if isinstance(window, dict) else window[1]
        found.append((key, (end - NOON) // mr.minutes(1), *values))
    return sorted(found, key=lambda row: (repr(row[0]), row[1]))


def test_final_windows_come_once_and_late_rows_not_at_all() -> None:
    tested = harness(shards=3)
    assert tested.send([view("a", 1), view("a", 9, 5), view(None, 3), view("b", 11)]) == []
    tested.rescale(2)
    tested.reopen()
    emitted = tested.advance_watermark(NOON + mr.minutes(10))
    assert brief(emitted) == [("a", 10, 2, 6), (None, 10, 1, 1)]
    emitted = tested.send([view("a", 2, 7, who="ann"), view("b", 12, None), {"page": "c"}])
    assert emitted == []
    assert [(row[0], row[2], row[4]) for row in emitted.late()] == [("a", 7, "ann")]
    assert tested.counters == {"evicted": 2, "late": 1, "without_time": 1}
    assert brief(tested.advance_watermark(NOON + mr.hours(1))) == [("b", 20, 2, 1)]
    assert tested.counters["evicted"] == 3
    with mr.open(tested.location) as left:
        assert left.to_arrow().num_rows == 0


def test_updates_of_windows_that_overlap() -> None:
    tested = harness(slide="5 minutes", emit="update")
    assert brief(tested.send([view("a", 1), view("a", 7, 2)])) == [
        ("a", 5, 1, 1),
        ("a", 10, 2, 3),
        ("a", 15, 1, 2),
    ]
    assert brief(tested.send([view("a", 8, 3)])) == [("a", 10, 3, 6), ("a", 15, 2, 5)]
    assert tested.advance_watermark(NOON + mr.minutes(10)) == []
    # The first of its two windows was over in the epoch before.
    assert brief(tested.send([view("a", 9, 4)])) == [("a", 15, 3, 9)]


def test_early_results_come_at_multiples_of_their_period() -> None:
    tested = harness(emit="early=10 seconds")
    assert tested.send([view("a", 1)]) == []
    assert tested.advance_time(mr.seconds(9)) == []
    assert tested.send([view("a", 2), view("b", 2)]) == []
    assert brief(tested.advance_time(mr.seconds(1))) == [
        ("a", 10, 2, 2, False),
        ("b", 10, 1, 1, False),
    ]
    assert tested.advance_time(mr.seconds(30)) == []
    assert tested.send([view("b", 3)]) == []
    tested.reopen()
    # A change in the epoch in which a result is due comes with it.
    tested._time_us += 10_000_000
    assert brief(tested.send([view("b", 4)])) == [("b", 10, 3, 3, False)]
    assert tested.advance_time(mr.seconds(30)) == []
    assert brief(tested.advance_watermark(NOON + mr.minutes(10))) == [
        ("a", 10, 2, 2, True),
        ("b", 10, 3, 3, True),
    ]


def test_every_function() -> None:
    tested = harness(
        slide="5 minutes",
        aggregates={
            "n": mr.count("ms"),
            "spent": mr.sum("price"),
            "low": mr.min("ms"),
            "top": mr.max("who"),
            "mean": mr.mean("ms"),
            "cost": mr.mean("price"),
            "spread": mr.stddev("ms", sample=False),
            "first": mr.first("who"),
            "last": mr.last("ms", ignore_nulls=True),
        },
    )
    tested.send([view("a", 6, 3, price=Decimal("1.50"), who="bob"), view("a", 1, 1, who="ann")])
    tested.send([view("a", 2, None, price=Decimal("0.25"), who="cyd")])
    emitted = brief(tested.advance_watermark(NOON + mr.minutes(10)))
    fourth = Decimal("0.25"), 1, "cyd", 1.0, Decimal("0.250000"), 0.0, "ann", 1
    whole = Decimal("1.75"), 1, "cyd", 2.0, Decimal("0.875000"), 1.0, "ann", 3
    assert emitted == [("a", 5, 1, *fourth), ("a", 10, 2, *whole)]


def test_what_takes_spark_is_refused() -> None:
    with pytest.raises(UsageError, match="takes Spark to compute"):
        # Spark's columns are made by a session, and this test has none.
        harness(aggregates={"n": mr.Aggregate("sum", object())})  # type: ignore[arg-type]
    with pytest.raises(UnknownColumnError, match="no column 'nope'"):
        harness(aggregates={"n": mr.sum("nope")})
    with pytest.raises(EventTimeError, match="is of type int"):
        WindowHarness(key="page", schema=SCHEMA, event_time="ms", size="1 hour", aggregates={})


@pytest.mark.parametrize(("size", "slide"), [(10, 10), (10, 4)])
def test_final_windows_are_those_of_a_batch_in_duckdb(size: int, slide: int) -> None:
    chance = random.Random(size + slide)
    tested = harness(
        size=f"{size} minutes",
        slide=f"{slide} minutes",
        aggregates={"n": mr.count(), "total": mr.sum("ms"), "mean": mr.mean("ms")},
    )
    emitted, every = [], []
    for number in range(12):
        # Rows are out of order, but none is behind the watermark.
        rows = [
            view(chance.choice("abcd"), 5 * number + chance.random() * 15, chance.randrange(100))
            for _ in range(60)
        ]
        every += rows
        tested.rescale(chance.randint(1, 4))
        emitted += tested.send(rows)
        emitted += tested.advance_watermark(NOON + mr.minutes(5 * number))
    emitted += tested.advance_watermark(NOON + mr.hours(9))
    given = pa.Table.from_pylist(every)
    connection = duckdb.connect()
    connection.register("given", given)
    expected = connection.execute(
        """
        with numbered as (
            -- A window may begin at each of the last minutes up to that of the row.
            select page, ms, epoch_us("at") // 60000000 as minute from given
        ), ends as (
            select page, ms, unnest(range(minute - $size + 1, minute + 1)) as start
            from numbered
        )
        select page, start + $size - $noon, count(*), sum(ms)::bigint, avg(ms)
        from ends where start % $slide = 0 group by all
        """,
        {"size": size, "slide": slide, "noon": int(NOON.timestamp()) // 60},
    ).fetchall()
    assert brief(emitted) == sorted(expected)


@pytest.mark.parametrize("slide", ["10 minutes", "5 minutes"])
def test_windows_are_served_by_key_and_start(slide: str) -> None:
    tested = harness(slide=slide)
    tested.send([view("a", 1, 1), view("a", 7, 2), view("b", 12, 3)])
    with Lookups(tested.location) as lookups:
        minutes = [0, 10, 0, 3]
        starts = pa.array([NOON + mr.minutes(m) for m in minutes], pa.timestamp("us", "UTC"))
        keys = {"page": pa.array(["a", "b", "b", "a"]), "window_start": starts}
        answer = lookups.look_up("tested", keys)
        assert answer.found.tolist() == [True, True, False, False]
        found = answer.rows.to_pylist()
        assert [(row["page"], row["n"], row["total"]) for row in found] == [
            ("a", 2, 3),
            ("b", 1, 3),
            ("b", None, None),
            ("a", None, None),
        ]
        tested.advance_watermark(NOON + mr.minutes(15))
        lookups.refresh()
        answer = lookups.look_up("tested", keys, ["total"])
        assert answer.found.tolist() == [False, True, False, False]
        assert answer.rows.schema.names == ["page", "window_start", "total"]
