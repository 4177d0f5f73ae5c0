"""Shared state beside an initial state, side outputs and late rows, in one processor."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.errors import InitialStateError
from millrace.testing import Harness, run

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "k string, x long, at timestamp"
OUTPUT = "k string, what string, n long"
INITIAL = "k string, n long"


class Desk(mr.Processor):
    n = mr.Value("long", default=0)
    limits = mr.Broadcast("string", "long")
    seen = mr.TaskState("long", split="divide", merge=sum, default=0)
    over = mr.SideOutput("k string, x long, limit long")

    def on_initial_state(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        (row,) = rows
        self.n.set(row.n)
        self.seen.set(self.seen.get() + 1)
        yield (key.k, f"begun {self.limits.get(key.k)}", row.n)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        limit = self.limits.get(key.k)
        for row in rows:
            if limit is not None and row.x > limit:
                self.over.emit((key.k, row.x, limit))
        self.n.set(self.n.get() + len(rows))
        self.seen.set(self.seen.get() + len(rows))
        yield (key.k, "came", self.n.get())


class DeskBatch(mr.BatchProcessor):
    n = mr.Value("long", default=0)
    limits = mr.Broadcast("string", "long")
    seen = mr.TaskState("long", split="divide", merge=sum, default=0)
    over = mr.SideOutput("k string, x long, limit long")

    def on_initial_state(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        state["n"] = batch.table["n"]
        state["seen"] = state["seen"] + len(batch)
        keys, limits = batch.keys["k"].to_pylist(), limits_of(state)
        return {"k": keys, "what": [f"begun {limits.get(k)}" for k in keys], "n": batch.table["n"]}

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        limits = limits_of(state)
        rows = [(r["k"], r["x"], limits.get(r["k"])) for r in batch.table.to_pylist()]
        over = [row for row in rows if row[2] is not None and row[1] > row[2]]
        if over:
            self.over.emit(dict(zip(("k", "x", "limit"), zip(*over, strict=True), strict=True)))
        sizes = (batch.starts[1:] - batch.starts[:-1]).tolist()
        n = [a + b for a, b in zip(state["n"].to_pylist(), sizes, strict=True)]
        state["n"] = n
        state["seen"] = state["seen"] + len(batch)
        return {"k": batch.keys["k"], "what": ["came"] * len(n), "n": n}


def limits_of(state: mr.States) -> dict[str, int]:
    return dict(zip(*(state["limits"][c].to_pylist() for c in ("key", "value")), strict=True))


def row(k: str, x: int, minutes: int = 0) -> dict[str, Any]:
    return {"k": k, "x": x, "at": NOON + mr.minutes(minutes)}


@pytest.mark.parametrize("processor", [Desk, DeskBatch])
@pytest.mark.parametrize("shards", [1, 5])
def test_all_in_the_first_epoch_and_after(processor: Any, shards: int) -> None:
    tested = Harness(
        processor(),
        key="k",
        schema=SCHEMA,
        output=OUTPUT,
        event_time="at",
        shards=shards,
        initial_state=[{"k": "a", "n": 10}, {"k": "b", "n": 20}],
        initial_schema=INITIAL,
    )
    emitted = tested.send(
        [row("a", 1), row("a", 9), row("c", 9)], broadcast={"limits": {"a": 5, "b": 7}}
    )
    assert sorted(emitted) == [
        ("a", "begun 5", 10),
        ("a", "came", 12),
        ("b", "begun 7", 20),
        ("c", "came", 1),
    ]
    assert emitted.side("over") == [("a", 9, 5)]
    assert emitted.late() == []
    assert sum(r["value"] for r in tested.state("seen")) == 5
    tested.reopen()
    tested.rescale(3)
    tested.advance_watermark(NOON + mr.minutes(5))
    emitted = tested.send(
        [row("b", 8, 6), row("b", 100), row("a", 100, 6)],
        broadcast={"limits": [("a", None), ("b", 6)]},
    )
    assert sorted(emitted) == [("a", "came", 13), ("b", "came", 21)]
    assert emitted.side("over") == [("b", 8, 6)]
    assert emitted.late() == [("b", 100, NOON)]
    assert sum(r["value"] for r in tested.state("seen")) == 7
    assert tested.state("limits") == [{"key": "b", "value": 6}]
    assert {r["k"]: r["n"] for r in tested.state()} == {"a": 13, "b": 21, "c": 1}


@pytest.mark.parametrize("processor", [Desk, DeskBatch])
def test_a_run_takes_all_of_it(processor: Any) -> None:
    emitted = run(
        processor(),
        [row("a", 1)],
        key="k",
        schema=SCHEMA,
        output=OUTPUT,
        initial_state=[{"k": "a", "n": 1}],
        initial_schema=INITIAL,
        broadcast={"limits": {"a": 0}},
        shards=3,
    )
    assert emitted == [("a", "begun 0", 1), ("a", "came", 2)]
    assert emitted.side("over") == [("a", 1, 0)]


class Plain(mr.Processor):
    limits = mr.Broadcast("string", "long")
    seen = mr.TaskState("long", split="divide", merge=sum)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        return []


@pytest.mark.parametrize(("column", "kind"), [("seen", "task"), ("limits", "broadcast")])
def test_a_column_of_the_initial_state_cannot_fill_a_shared_state(column: str, kind: str) -> None:
    with pytest.raises(InitialStateError, match=f"a {kind} cannot be filled from a column"):
        Harness(
            Plain(),
            key="k",
            schema=SCHEMA,
            output=OUTPUT,
            initial_state=[],
            initial_schema=f"k string, {column} long",
        )
