"""Side outputs and late rows, without Spark; and what a user can do wrong with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import (
    ProcessorError,
    StateAccessError,
    StateTypeError,
    UnknownOutputError,
    UnsupportedTypeError,
    UsageError,
)
from millrace.testing import Harness, run

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "k string, x long, at timestamp"


def row(key: str, x: int, minute: int = 0) -> dict[str, Any]:
    return {"k": key, "x": x, "at": NOON + mr.minutes(minute)}


def harness(processor: Any, output: str = "k string, n long", **options: Any) -> Harness:
    options = {"event_time": "at"} | options
    return Harness(processor, key="k", schema=SCHEMA, output=output, **options)


class Watch(mr.Processor):
    """Counts; tells beside it of large values, and of keys that fell silent."""

    count = mr.Value("long", default=0)
    idle = mr.EventTimeTimer()
    large = mr.SideOutput("k string, x long, n long")
    silent = mr.SideOutput("k string, since timestamp")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for each in rows:
            self.count.set(self.count.get() + 1)
            if each.x > 10:
                self.large.emit((key.k, each.x, self.count.get()))
        if ctx.event_time is not None:
            self.idle.set(ctx.event_time + mr.minutes(30))
        yield (key.k, self.count.get())

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> None:
        self.silent.emit((key.k, timer.time))


@pytest.mark.parametrize("shards", [1, 5])
def test_rows_are_emitted_beside_the_output(shards: int) -> None:
    tested = harness(Watch(), shards=shards)
    emitted = tested.send([row("a", 5), row("a", 20), row("b", 30)])
    assert sorted(emitted) == [("a", 2), ("b", 1)]
    assert sorted(emitted.side("large")) == [("a", 20, 2), ("b", 30, 1)]
    assert emitted.side("silent") == []
    emitted = tested.send([row("a", 11, 5)])
    assert emitted.side("large") == [("a", 11, 3)], "an epoch's own rows only"
    tested.reopen()
    emitted = tested.advance_watermark(NOON + mr.minutes(40))
    assert emitted == []
    assert sorted(emitted.side("silent")) == [
        ("a", NOON + mr.minutes(35)),
        ("b", NOON + mr.minutes(30)),
    ]


def test_run_collects_them_over_its_epochs() -> None:
    emitted = run(
        Watch(),
        [row("a", 11)],
        key="k",
        schema=SCHEMA,
        output="k string, n long",
        event_time="at",
        watermark=NOON + mr.minutes(31),
    )
    assert emitted == [("a", 1)]
    assert emitted.side("large") == [("a", 11, 1)]
    assert emitted.side("silent") == [("a", NOON + mr.minutes(30))]
    assert emitted.late() == []


def test_late_rows_come_back_as_they_were_and_are_counted() -> None:
    tested = harness(Watch())
    assert tested.advance_watermark(NOON).late() == []
    emitted = tested.send([row("a", 1, -1), row("a", 2, 0), {"k": "b", "x": 3}, row("c", 4, -9)])
    assert sorted(emitted) == [("a", 1), ("b", 1)]
    assert emitted.late() == [("a", 1, NOON - mr.minutes(1)), ("c", 4, NOON - mr.minutes(9))]
    assert tested.counters["late"] == 2


class Derived(Watch):
    """Keeps one output of its base, declares one again, and has one less."""

    silent = None  # type: ignore[assignment]
    large = mr.SideOutput("x long")
    more = mr.SideOutput("y long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.large.emit((rows[0].x,))
        self.more.emit((rows[0].x + 1,))
        self.more.emit([rows[0].x + 2])


def test_outputs_are_inherited_replaced_and_taken_away() -> None:
    emitted = harness(Derived()).send([row("a", 1)])
    assert emitted.side("large") == [(1,)]
    assert emitted.side("more") == [(2,), (3,)]
    with pytest.raises(UnknownOutputError, match=r"no side output 'silent'.*'large', 'more'"):
        emitted.side("silent")


class Sums(mr.BatchProcessor):
    total = mr.Value("long", default=0)
    odd = mr.SideOutput("k string, total long")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        total = state.numpy("total") + np.add.reduceat(batch.numpy("x"), batch.starts[:-1])
        state["total"] = total
        table = pa.table({"total": total, "k": batch.keys["k"], "unused": total})
        self.odd.emit(table.filter(total % 2 == 1))
        self.odd.emit({"k": ["all"], "total": [int(total.sum())]})


def test_a_batch_processor_emits_tables_and_columns() -> None:
    tested = harness(Sums())
    tested.advance_watermark(NOON)
    emitted = tested.send([row("a", 1), row("b", 2), row("b", 5), row("c", 9, -1)])
    assert emitted == []
    assert sorted(emitted.side("odd")) == [("a", 1), ("all", 8), ("b", 7)]
    assert emitted.late() == [("c", 9, NOON - mr.minutes(1))]
    assert tested.send([row("a", 1)]).side("odd") == [("all", 2)]
    assert tested.send().side("odd") == []


class Emits(mr.Processor):
    """Emits what it is told to."""

    seen = mr.Value("long")
    alerts = mr.SideOutput("k string, n int")

    def __init__(self, emitted: Any) -> None:
        self.emitted = emitted

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        self.seen.set(1)
        self.alerts.emit(("fine", 1))
        if key.k == "odd":
            self.alerts.emit(self.emitted)


@pytest.mark.parametrize(
    "wrong", [("a",), ("a", 1, 2), "ab", None, {"k": "a", "n": 1}, (5, 1), ("a", 2**31), ("a", 1.5)]
)
def test_a_row_that_does_not_fit_names_output_key_and_row(wrong: Any) -> None:
    tested = harness(Emits(wrong))
    with pytest.raises(StateTypeError) as caught:
        tested.send([row("fine", 1), row("odd", 1), row("zed", 1)])
    for words in ("'tested'", "side output 'alerts'", "Key(k='odd')", repr(wrong), "n:int"):
        assert words in str(caught.value)
    assert tested.state() == []


class EmitsBatch(mr.BatchProcessor):
    seen = mr.Value("long")
    alerts = mr.SideOutput("k string, n int")

    def __init__(self, emitted: Any) -> None:
        self.emitted = emitted

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> None:
        state["seen"] = [1] * batch.keys.num_rows
        self.alerts.emit(self.emitted)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (5, "given as int"),
        ([("a", 1)], "given as list"),
        ({"k": ["a"]}, "no column 'n'"),
        ({"k": ["a"], "n": [1, 2]}, "different lengths"),
        ({"k": ["a"], "n": ["x"]}, "column 'n'"),
        (pa.table({"k": ["a"], "n": [2**31]}), "column 'n'"),
    ],
)
def test_columns_that_do_not_fit_name_the_output(wrong: Any, words: str) -> None:
    tested = harness(EmitsBatch(wrong))
    with pytest.raises(StateTypeError) as caught:
        tested.send([row("a", 1)])
    for expected in ("'tested'", "side output 'alerts'", words):
        assert expected in str(caught.value)
    assert tested.state() == []


def test_emitting_while_nothing_is_processed_is_refused() -> None:
    leaked: list[Any] = []

    class Leaks(Emits):
        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
            leaked.append(self.alerts)

    class LeaksBatch(EmitsBatch):
        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> None:
            leaked.append(self.alerts)

    for processor in (Leaks(None), LeaksBatch(None)):
        # A copy is made for the epoch, and with it a copy of what is not at the level of a module.
        with pytest.raises(StateAccessError, match="'alerts' was used outside of process"):
            processor.alerts.emit(("a", 1))
        harness(processor).send([row("a", 1)])
        with pytest.raises(StateAccessError, match="'alerts' was used outside of process"):
            leaked.pop().emit(("a", 1))


def test_a_failure_is_explained_as_ever() -> None:
    class Fails(Emits):
        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
            self.alerts.send(("a", 1))  # type: ignore[attr-defined]

    with pytest.raises(ProcessorError, match=r"no attribute 'send'.*Key\(k='a'\)"):
        harness(Fails(None)).send([row("a", 1)])


def test_wrong_declarations_and_names() -> None:
    with pytest.raises(UnsupportedTypeError, match="no type 'strong'"):
        mr.SideOutput("k strong")

    class Late(Emits):
        def __init__(self) -> None:
            self.extra = mr.SideOutput("k string")

    with pytest.raises(UsageError, match="'extra' is declared on the instance"):
        harness(Late())
    emitted = harness(Emits(None), event_time=None).send([row("a", 1)])
    with pytest.raises(UnknownOutputError, match=r"no side output 'alarms'.*'alerts'"):
        emitted.side("alarms")
    with pytest.raises(UnknownOutputError, match="without event_time="):
        emitted.late()
    with pytest.raises(UnknownOutputError):
        emitted.side("late rows")
