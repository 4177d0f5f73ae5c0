"""Where state begins, without Spark: the columns of an initial state, or a processor's own way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.errors import (
    InitialStateError,
    ProcessorError,
    StateTypeError,
    UnknownColumnError,
    UsageError,
)
from millrace.testing import Harness, run

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "k string, x long"


class Every(mr.Processor):
    """A state of each kind that a column can fill."""

    count = mr.Value("long", default=0)
    best = mr.Reducing("double", max)
    seen = mr.Aggregating("struct<n:long>", create=lambda: {"n": 0}, add=lambda a, x: {"n": x})
    fades = mr.Value("string", ttl="10 seconds")
    log = mr.List("struct<x:long,at:timestamp>")
    pages = mr.Map("string", "array<long>")
    tags = mr.Set("string")
    blob = mr.Pickled()
    alarm = mr.ProcessingTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        self.count.set(self.count.get() + len(rows))
        seen = (self.best.get(), self.fades.get(), sorted(self.tags), len(self.log))
        yield (key.k, self.count.get(), repr((*seen, sorted(self.pages.items()), self.seen.get())))

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[Any]:
        yield (key.k, self.count.get(), "timer")


OUTPUT = "k string, n long, what string"
INITIAL = (
    "k string, count long, best double, seen struct<n:long>, fades string,"
    " log array<struct<x:long,at:timestamp>>, pages map<string,array<long>>, tags array<string>"
)
FULL = {
    "k": "a",
    "count": 10,
    "best": 2.5,
    "seen": {"n": 4},
    "fades": "soon",
    "log": [{"x": 1, "at": NOON}, {"x": 2, "at": None}],
    "pages": {"/": [1, 2], "/x": None},
    "tags": ["t", "s", "t"],
}


def harness(processor: Any, initial: Any, schema: str, **options: Any) -> Harness:
    return Harness(
        processor,
        key="k",
        schema=SCHEMA,
        output=OUTPUT,
        initial_state=initial,
        initial_schema=schema,
        **options,
    )


@pytest.mark.parametrize("shards", [1, 4])
def test_columns_go_to_the_states_of_their_names(shards: int) -> None:
    tested = harness(Every(), [FULL, {"k": "b", "count": 3}, {"k": None}], INITIAL, shards=shards)
    emitted = tested.send([{"k": "a", "x": 1}, {"k": "c", "x": 1}])
    what = repr((2.5, "soon", ["s", "t"], 2, [("/", [1, 2]), ("/x", None)], {"n": 4}))
    nothing = repr((None, None, [], 0, [], None))
    assert sorted(emitted) == [("a", 11, what), ("c", 1, nothing)]
    assert {r["k"]: r["count"] for r in tested.state()} == {"a": 11, "b": 3, "c": 1}
    assert sorted(r["position"] for r in tested.state("log")) == [0, 1]
    tested.reopen()
    tested.advance_time(dt.timedelta(seconds=11))
    (after,) = tested.send([{"k": "a", "x": 1}])
    assert after[:2] == ("a", 12), "it is applied in the first epoch only"
    assert "soon" not in after[2], "and its TTL began with the first epoch"


def test_an_epoch_without_rows_is_the_first_one_too() -> None:
    tested = harness(Every(), [{"k": "b", "count": 3}], "k string, count long")
    assert tested.send() == []
    assert tested.send([{"k": "b", "x": 1}])[0][:2] == ("b", 4)


class Hooked(Every):
    """Sets timers, emits, and takes several rows a key."""

    moved = mr.SideOutput("k string, rows long")

    def on_initial_state(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        assert ctx.epoch == 1
        assert ctx.event_time is None
        self.count.set(sum(row.amount for row in rows))
        self.blob.set({"rows": len(rows)})
        self.alarm.set(ctx.processing_time + mr.seconds(5))
        self.moved.emit((key.k, len(rows)))
        yield (key.k, self.count.get(), "moved")


def test_a_processor_may_take_the_rows_itself() -> None:
    rows = [{"k": "a", "amount": 1}, {"k": "b", "amount": 5}, {"k": "a", "amount": 2}]
    tested = harness(Hooked(), rows, "k string, amount int")
    emitted = tested.send([{"k": "a", "x": 0}])
    assert sorted(r[:2] for r in emitted) == [("a", 3), ("a", 4), ("b", 5)]
    assert [r[2] for r in emitted if r[:2] != ("a", 4)] == ["moved", "moved"]
    assert [r[0] for r in emitted].index("a") < len(emitted) - 1
    assert sorted(emitted.side("moved")) == [("a", 2), ("b", 1)]
    fired = tested.advance_time(dt.timedelta(seconds=5))
    assert sorted(fired) == [("a", 4, "timer"), ("b", 5, "timer")]


def test_run_takes_an_initial_state() -> None:
    emitted = run(
        Hooked(),
        [{"k": "a", "x": 1}],
        key="k",
        schema=SCHEMA,
        output=OUTPUT,
        initial_state=[{"k": "a", "amount": 7}],
        initial_schema="k string, amount long",
    )
    assert [r[:2] for r in emitted] == [("a", 7), ("a", 8)]
    assert emitted.side("moved") == [("a", 1)]


class Totals(mr.BatchProcessor):
    total = mr.Value("long", default=0)
    last = mr.Value("long")
    fades = mr.Value("string", ttl="10 seconds")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        total = state.numpy("total") + np.add.reduceat(batch.numpy("x"), batch.starts[:-1])
        state["total"] = total
        fades = state["fades"].to_pylist()
        return {"k": batch.keys["k"], "n": total, "what": [str(f) for f in fades]}


class Loaded(Totals):
    """Adds up several rows a key."""

    def on_initial_state(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        state["total"] = np.add.reduceat(batch.numpy("amount"), batch.starts[:-1])
        return {"k": batch.keys["k"], "n": state["total"], "what": ["moved"] * batch.keys.num_rows}


def test_a_batch_processor_begins_with_columns() -> None:
    rows = [{"k": f"k{i}", "total": i, "fades": "f" if i % 2 else None} for i in range(20)]
    tested = harness(Totals(), rows, "k string, fades string, total long", shards=3)
    emitted = tested.send([{"k": "k3", "x": 100}, {"k": "new", "x": 5}, {"k": "k0", "x": 1}])
    assert sorted(emitted) == [("k0", 1, "None"), ("k3", 103, "f"), ("new", 5, "None")]
    expected = {f"k{i}": i for i in range(20)} | {"k3": 103, "k0": 1, "new": 5}
    assert {r["k"]: r["total"] for r in tested.state()} == expected
    assert all(r["last"] is None for r in tested.state())
    tested.advance_time(dt.timedelta(seconds=9))
    assert tested.send([{"k": "k5", "x": 0}]) == [("k5", 5, "f")]
    tested.advance_time(dt.timedelta(seconds=1))
    assert tested.send([{"k": "k5", "x": 0}]) == [("k5", 5, "None")]


def test_a_batch_processor_may_take_the_rows_itself() -> None:
    rows = [{"k": "a", "amount": 1}, {"k": "b", "amount": 5}, {"k": "a", "amount": 2}]
    tested = harness(Loaded(), rows, "k string, amount long")
    emitted = tested.send([{"k": "a", "x": 10}])
    assert sorted(emitted) == [("a", 3, "moved"), ("a", 13, "None"), ("b", 5, "moved")]
    assert {r["k"]: r["total"] for r in tested.state()} == {"a": 13, "b": 5}


def test_a_batch_processor_with_an_initial_state_and_no_rows() -> None:
    tested = harness(Totals(), [{"k": "a", "total": 4}], "k string, total long")
    assert tested.send() == []
    assert tested.send([{"k": "a", "x": 1}]) == [("a", 5, "None")]


@pytest.mark.parametrize(
    ("schema", "error", "words"),
    [
        ("count long", UnknownColumnError, "no column 'k', which is part of the key"),
        ("k int, count long", InitialStateError, "'k' is int, and in the stream it is string"),
        ("k string, count int", InitialStateError, "'count' is int.*needs bigint"),
        ("k string, log array<long>", InitialStateError, "needs array<struct<x:bigint"),
        ("k string, tags string", InitialStateError, "set state of that name needs array<string>"),
        ("k string, score long", InitialStateError, "no state of that name.*on_initial_state"),
        ("k string, blob binary", InitialStateError, "a pickled cannot be filled"),
        ("k string, alarm timestamp", InitialStateError, "timer cannot be filled"),
    ],
)
def test_columns_that_do_not_fit(schema: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        harness(Every(), [], schema)


def test_a_hook_needs_only_the_keys() -> None:
    assert harness(Hooked(), [], "k string, amount int").send() == []
    with pytest.raises(UnknownColumnError, match="part of the key"):
        harness(Hooked(), [], "amount int")
    with pytest.raises(UsageError, match="go together"):
        Harness(Hooked(), key="k", schema=SCHEMA, output=OUTPUT, initial_state=[])


@pytest.mark.parametrize("processor", [Every(), Totals()])
def test_two_rows_of_a_key_cannot_both_be_its_state(processor: Any) -> None:
    column = "count" if isinstance(processor, Every) else "total"
    rows = [{"k": "b", column: 0}, {"k": "a", column: 1}, {"k": "a", column: 2}]
    tested = harness(processor, rows, f"k string, {column} long")
    with pytest.raises(InitialStateError, match=r"2 rows for key .*'a'.*on_initial_state"):
        tested.send([{"k": "a", "x": 1}])
    assert tested.state() == []


def test_errors_in_the_hook_name_it_and_the_key() -> None:
    class Fails(Every):
        def on_initial_state(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
            for row in rows:
                if row.amount > 1:
                    self.count.set("many" if row.amount > 5 else 1 // 0)

    rows = [{"k": "a", "amount": 1}, {"k": "b", "amount": 2}]
    with pytest.raises(ProcessorError) as caught:
        harness(Fails(), rows, "k string, amount int").send()
    for words in ("Fails.on_initial_state()", "Key(k='b')", "amount=2", "division"):
        assert words in str(caught.value)
    with pytest.raises(StateTypeError, match=r"'many'.*Key\(k='c'\)"):
        harness(Fails(), [{"k": "c", "amount": 9}], "k string, amount int").send()
