"""Windows of several lengths without Spark: look-ups, SQL and HTTP beside a batch in DuckDB."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import KeyColumnsError, UsageError, WindowError
from millrace.serve.http import App
from millrace.serve.lookups import Lookups
from millrace.testing import WindowHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
LENGTHS = {"5 minutes": 5, "1 hour": 60, "1 day": 1440}


def harness(**options: Any) -> WindowHarness:
    given = {
        "size": list(LENGTHS),
        "slide": "1 minute",
        "aggregates": {"n": mr.count(), "total": mr.sum("ms"), "top": mr.max("ms")},
        "emit": "none",
    }
    schema = "user string, at timestamp, ms int"
    return WindowHarness(key="user", schema=schema, event_time="at", **(given | options))


def at(minute: float) -> dt.datetime:
    return NOON + mr.minutes(minute)


def row(user: str | None, minute: float, ms: int | None = 1) -> dict[str, Any]:
    return {"user": user, "at": at(minute), "ms": ms}


def in_a_batch(rows: list[dict[str, Any]], minute: int) -> set[tuple[Any, ...]]:
    """The windows that end at a minute, of rows whose panes are kept."""
    connection = duckdb.connect()
    connection.register("given", pa.Table.from_pylist(rows))
    lengths = ", ".join(f"('{name}', {length})" for name, length in LENGTHS.items())
    found = connection.execute(
        f"""
        select user, name, count(*), sum(ms)::bigint, max(ms)
        from given, (values {lengths}) as lengths(name, length)
        where "at" < $until and "at" >= $until - to_minutes(length)
        group by all
        """,
        {"until": at(minute)},
    ).fetchall()
    return set(found)


def test_the_table_has_the_newest_window_of_each_length() -> None:
    chance = random.Random(5)
    tested = harness()
    every: list[dict[str, Any]] = []
    last = 0.0
    for number in range(8):
        rows = [
            row(chance.choice(["a", "b", "c", None]), number * 200 - 100 + chance.random() * 300)
            for _ in range(50)
        ]
        every += rows
        tested.rescale(chance.randint(1, 3))
        assert tested.send(rows) == []
        tested.advance_watermark(at(number * 200 - 100))
        last = max(last, *((r["at"] - NOON) / mr.minutes(1) for r in every))
        now = int(last) + 1
        expected = in_a_batch(every, now)
        with mr.open(tested.location) as state:
            table = state.sql(
                'select user, window_length, n, total, top, "window" as w from tested'
            ).to_pylist()
            assert {tuple(r.values())[:5] for r in table} == expected
            assert len(table) == len(expected)
            assert {r["w"]["end"] for r in table} == {at(now)}
            own = state.sql(
                "select window_length, n from tested where user = 'a' and window_length = '1 hour'"
            )
            assert {("a", *r.values()) for r in own.to_pylist()} == {
                r[:3] for r in expected if r[0] == "a" and r[1] == "1 hour"
            }
            asked = [(user, name) for user in ("a", "z", None) for name in LENGTHS]
            found = state.get(asked).to_pylist()
            assert {
                (r["user"], r["window_length"], r["n"], r["total"], r["top"])
                for r in found
                if r["_found"]
            } == {r for r in expected if r[:2] in asked}


def test_a_look_up_names_a_length_and_maybe_a_start() -> None:
    tested = harness()
    tested.send([row("a", 0, 1), row("a", 58, 2), row("a", 61, 4), row("b", 3, 8)])
    with mr.open(tested.location) as state:
        assert state.to_arrow().schema.names == [
            *("user", "window", "window_length", "n", "total", "top")
        ]
        found = state.get([("a", "60 minutes"), {"user": "a", "window_length": "5 minutes"}])
        assert found.column("total").to_pylist() == [6, 6]
        starts = pa.array([at(0), at(57), at(-1430), at(0.5), None], pa.timestamp("us", "UTC"))
        names = ["1 hour", "5 minutes", "1 day", "1 hour", "1 day"]
        keys = pa.table({"user": ["a"] * 5, "window_length": names, "window_start": starts})
        found = state.get(keys, columns=["window", "total"])
        assert found.column("total").to_pylist() == [3, 6, 1, None, 7]
        assert found.column("_found").to_pylist() == [True, True, True, False, True]
        assert found.column("window")[4].as_py() == {"start": at(62 - 1440), "end": at(62)}
        assert state.get(keys.select(["user", "window_length"])).column("n").to_pylist() == [
            *(2, 2, 3, 2, 3)
        ]
        with pytest.raises(KeyColumnsError, match="no windows of length '2 hours'; it has '5 min"):
            state.get([("a", "2 hours")])
        with pytest.raises(KeyColumnsError, match="no windows of length 'long'"):
            state.get([("a", "long")])
        with pytest.raises(UsageError, match="is not a key of operator"):
            state.get([("a",)])
    # A window is whole as long as the longest keeps its panes, though it was over long ago.
    tested.advance_watermark(at(700))
    with mr.open(tested.location) as state:
        found = state.get([("a", "1 hour", at(0)), ("a", "1 day"), ("a", "1 hour")])
        assert found.column("total").to_pylist() == [3, 7, None]
    tested.advance_watermark(at(1440.5))
    with mr.open(tested.location) as state:
        found = state.get([("a", "1 hour", at(0)), ("a", "1 hour", at(1)), ("a", "1 day")])
        assert found.column("total").to_pylist() == [None, 2, 6]


def test_lengths_over_http() -> None:
    tested = harness()
    tested.send([row("a", 0, 1), row("a", 58, 2), row("b", 61, 4)])

    async def asked(lookups: Lookups) -> list[Any]:
        transport = httpx.ASGITransport(App(lookups))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            one = await http.get("/v1/tested", params={"user": "a", "window_length": "1 hour"})
            since = {"window_start": "2024-01-01T12:00:00Z"}
            early = await http.get(
                "/v1/tested", params={"user": "a", "window_length": "1 hour"} | since
            )
            keys = [{"user": "a", "window_length": name} for name in LENGTHS]
            many = await http.post("/v1/tested/lookup", json={"keys": [*keys, keys[0] | since]})
            wrong = await http.get("/v1/tested", params={"user": "a", "window_length": "1 week"})
            lacking = await http.get("/v1/tested", params={"user": "a"})
            described = (await http.get("/openapi.json")).json()["paths"]["/v1/tested"]["get"]
            return [one, early, many, wrong, lacking, described]

    with Lookups(tested.location) as lookups:
        one, early, many, wrong, lacking, described = asyncio.run(asked(lookups))
    assert one.json()["row"] == {
        "user": "a",
        "window_length": "1 hour",
        "window_start": None,
        "window": {"start": "2024-01-01T12:02:00Z", "end": "2024-01-01T13:02:00Z"},
        "n": 1,
        "total": 2,
        "top": 2,
    }
    assert early.json()["row"]["total"] == 3
    rows = many.json()["rows"]
    assert [r and r["total"] for r in rows] == [2, 2, 3, 1]
    assert (wrong.status_code, lacking.status_code) == (400, 400)
    assert "it has '5 minutes', '1 hour', '1 day'" in wrong.json()["error"]
    assert "'window_length' is missing" in lacking.json()["error"]
    required = {p["name"]: p["required"] for p in described["parameters"]}
    assert required == {
        "user": True,
        "window_length": True,
        "window_start": False,
        "_states": False,
    }


def test_emission_has_a_row_for_each_length() -> None:
    tested = harness(size=["2 minutes", "1 minute"], slide="1 minute", emit="final")
    tested.send([row("a", 0, 1), row("a", 1, 2)])
    emitted = tested.advance_watermark(at(2))
    found = sorted((length, w["end"], total) for _, w, length, _, total, _ in emitted)
    assert found == [
        ("1 minute", at(1), 1),
        ("1 minute", at(2), 2),
        ("2 minutes", at(1), 1),
        ("2 minutes", at(2), 3),
    ]


def test_several_lengths_need_a_slide() -> None:
    with pytest.raises(UsageError, match="need slide="):
        harness(slide=None)
    with pytest.raises(WindowError, match="not a multiple of the slide, 2 minutes"):
        harness(slide="2 minutes")
