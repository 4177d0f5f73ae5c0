"""Spark's processors without Spark: lifecycle, timers, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from tests.unit.operators.spark_processor.driving import declare, harness

import millrace as mr
from millrace.errors import (
    DuplicateNameError,
    ProcessorError,
    StateAccessError,
    StateTypeError,
    TimerError,
    UnsupportedTypeError,
    UsageError,
)


class Scripted(StatefulProcessor):
    """Does what it is told, with a value, a list and a map."""

    def __init__(
        self,
        on_rows: Callable[[Any, Any, Any], Any] | None = None,
        on_init: Callable[[Any, Any], None] | None = None,
        on_timer: Callable[[Any, Any, Any], Any] | None = None,
        on_close: Callable[[Any], None] | None = None,
    ) -> None:
        self.on_rows, self.on_init, self.on_timer = on_rows, on_init, on_timer
        self.on_close = on_close

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long")
        self.elements = handle.getListState("elements", "n long")
        self.entries = handle.getMapState("entries", "s string", "n long")
        if self.on_init is not None:
            self.on_init(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(()) if self.on_rows is None else self.on_rows(self, key, list(rows))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        return iter(()) if self.on_timer is None else self.on_timer(self, key, at)

    def close(self) -> None:
        if self.on_close is not None:
            self.on_close(self)


ROW = {"k": "a", "n": 1}


def send(on_rows: Callable[[Any, Any, Any], Any], **options: Any) -> list[tuple[Any, ...]]:
    return harness(Scripted(on_rows), **options).send([ROW])


def test_nothing_stays_on_the_instance() -> None:
    def on_rows(self: Any, key: Any, rows: Any) -> Iterator[Row]:
        self.calls = getattr(self, "calls", 0) + 1
        yield Row(k=key[0], n=self.calls)

    made = harness(Scripted(on_rows))
    assert made.send([ROW, {"k": "b", "n": 1}]) in ([("a", 1), ("b", 2)], [("b", 1), ("a", 2)])
    assert made.send([ROW]) == [("a", 1)]


def test_states_are_of_sparks_classes() -> None:
    def on_rows(self: Any, key: Any, rows: Any) -> Iterator[Row]:
        assert isinstance(self.handle, StatefulProcessorHandle)
        assert isinstance(self.value, ValueState)
        assert isinstance(self.elements, ListState)
        assert isinstance(self.entries, MapState)
        yield Row(k=key[0], n=0)

    assert send(on_rows) == [("a", 0)]


def test_state_survives_reopening() -> None:
    def on_rows(self: Any, key: Any, rows: Any) -> Iterator[Row]:
        self.elements.appendList([(row.n,) for row in rows])
        yield Row(k=key[0], n=sum(n for (n,) in self.elements.get()))

    made = harness(Scripted(on_rows))
    assert made.send([ROW, ROW]) == [("a", 2)]
    made.reopen()
    assert made.send([{"k": "a", "n": 5}]) == [("a", 7)]


def test_a_timer_that_was_set_and_deleted_does_not_fire() -> None:
    def on_rows(self: Any, key: Any, rows: Any) -> Any:
        self.handle.registerTimer(2**62)
        self.handle.registerTimer(-5)
        self.handle.registerTimer(0)
        self.handle.deleteTimer(0)
        return iter(())

    def on_timer(self: Any, key: Any, at: int) -> Iterator[Row]:
        assert sorted(self.handle.listTimers()) == [-5, 2**62]
        yield Row(k=key.k, n=at)

    made = harness(Scripted(on_rows, on_timer=on_timer), time_mode="eventtime")
    assert made.send([ROW]) == [("a", -5)]
    assert made.advance_watermark(dt.datetime(9000, 1, 1, tzinfo=dt.UTC)) == []


def test_pandas_frames_are_cut_by_key() -> None:
    def on_rows(self: Any, key: Any, frames: Any) -> Iterator[pd.DataFrame]:
        (frame,) = frames
        assert list(frame.index) == list(range(len(frame)))
        frame["n"] = frame["n"] * 10
        yield frame.assign(extra=1)

    rows = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}]
    made = harness(Scripted(on_rows), in_pandas=True)
    assert sorted(made.send(rows)) == [("a", 10), ("a", 30), ("b", 20)]


@pytest.mark.parametrize(
    ("on_init", "error", "message"),
    [
        (lambda s, h: h.getValueState("value", "n long"), DuplicateNameError, "'value' twice"),
        (lambda s, h: h.getListState("value", "n long"), DuplicateNameError, "'value' twice"),
        (lambda s, h: h.getValueState("t", "n long", 5), UsageError, "ProcessingTime"),
        (lambda s, h: h.getValueState("t", "n long", -5), UsageError, "above 0"),
        (lambda s, h: h.getValueState("", "n long"), UsageError, "name"),
        (lambda s, h: h.getValueState("t", mr.Value), UnsupportedTypeError, "StructType"),
        (lambda s, h: h.registerTimer(5), TimerError, "timeMode"),
        (lambda s, h: s.value.get(), StateAccessError, "no key"),
        (lambda s, h: s.elements.exists(), StateAccessError, "no key"),
        (
            lambda s, h: (h.deleteIfExists("x"), h.getValueState("x", "n long")),
            UsageError,
            "emptied at every epoch",
        ),
        (lambda s, h: (h.deleteIfExists("value"), s.value.get()), StateAccessError, "removed"),
    ],
)
def test_what_init_may_not_do(on_init: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        declare(Scripted(on_init=on_init), "none", ["k"])


@pytest.mark.parametrize(
    ("on_rows", "error", "message"),
    [
        (
            lambda s, k, r: s.handle.getValueState("x", "n long"),
            StateAccessError,
            "outside of init",
        ),
        (lambda s, k, r: s.handle.deleteIfExists("x"), StateAccessError, "outside of init"),
        (lambda s, k, r: s.handle.registerTimer(1), TimerError, "timeMode"),
        (lambda s, k, r: s.elements.put([]), StateTypeError, "empty list"),
        (lambda s, k, r: s.elements.appendList([]), StateTypeError, "empty list"),
        (lambda s, k, r: s.value.update(None), ProcessorError, "NoneType.* for key .'a',"),
        (lambda s, k, r: s.value.update((1, 2)), StateTypeError, "2 fields"),
        (lambda s, k, r: None, ProcessorError, "not iterable"),
        (lambda s, k, r: [1 / 0 for row in r], ProcessorError, r"at row Row\(k='a', n=1\)"),
        (lambda s, k, r: [("a", 1)], StateTypeError, "pyspark.sql.Row"),
        (lambda s, k, r: [Row(k="a", n="x")], StateTypeError, "'n' does not fit"),
    ],
)
def test_what_fails_the_epoch(on_rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        send(on_rows)


def test_late_rows_are_an_output_of_their_own() -> None:
    made = harness(
        Scripted(on_rows=lambda s, k, r: [Row(k=k[0], n=len(list(r)))]),
        schema="k string, n long, at timestamp",
        time_mode="eventtime",
        event_time="at",
    )
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    later = start + dt.timedelta(microseconds=1)
    emitted = made.send([{"k": "a", "n": 1, "at": start}, {"k": "a", "n": 2, "at": later}])
    assert emitted == [("a", 1)]
    assert emitted.late() == [("a", 1, start)]
    assert made.counters["late"] == 1


def test_state_in_close_is_refused() -> None:
    made = harness(Scripted())
    assert made.send([ROW]) == []
    program = Scripted(on_close=lambda self: self.value.get())
    with pytest.raises(StateAccessError, match=r"Scripted.close\(\)"):
        harness(program).send([ROW])


def test_a_state_may_be_called_like_the_key() -> None:
    class Named(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.states = [handle.getValueState(n, "n long") for n in ("k", "a/b", "a.b", "_hi")]

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for n, state in enumerate(self.states):
                held = state.get()
                state.update((n if held is None else held[0] + 10,))
                yield Row(k=key[0], n=state.get()[0])

        def close(self) -> None:
            pass

    made = harness(Named())
    made.send([ROW])
    made.reopen()
    assert made.send([ROW]) == [("a", 10), ("a", 11), ("a", 12), ("a", 13)]


def test_a_state_that_only_a_shard_declares_is_refused() -> None:
    def on_init(self: Any, handle: Any) -> None:
        if type(handle).__name__ == "RunningHandle":
            handle.getValueState("late", "n long")

    with pytest.raises(StateAccessError, match="not on the driver"):
        harness(Scripted(on_init=on_init)).send([ROW])


class Told(StatefulProcessor):
    """Emits the times it is given."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        processing = timerValues.getCurrentProcessingTimeInMs()
        yield Row(processing=processing, watermark=timerValues.getCurrentWatermarkInMs())


@pytest.mark.parametrize("time_mode", ["none", "processingtime", "eventtime"])
def test_the_times_that_a_processor_is_given(time_mode: str) -> None:
    made = harness(Told(), output="processing long, watermark long", time_mode=time_mode)
    assert made.send([ROW])[0][1] == (-1 if time_mode == "none" else 0)
    made.advance_watermark(dt.datetime(2024, 1, 1, tzinfo=dt.UTC))
    (times,) = made.send([ROW])
    if time_mode == "none":
        assert times == (-1, -1)
    else:
        now_ms = round(made.now.timestamp() * 1000)
        assert times == (now_ms, 1_704_067_200_000)


def test_a_map() -> None:
    def on_rows(self: Any, key: Any, rows: Any) -> Iterator[Row]:
        entries = self.entries
        for row in rows:
            if row.n < 0:
                entries.removeKey((str(-row.n),))
            else:
                entries.updateValue((str(row.n),), (row.n,))
        assert entries.exists() == bool(list(entries.keys()))
        assert sorted(entries.iterator()) == sorted(
            zip(entries.keys(), entries.values(), strict=True)
        )
        for (name,), value in entries.iterator():
            assert entries.containsKey((name,))
            assert entries.getValue((name,)) == value
        assert not entries.containsKey(("0",))
        assert entries.getValue(("0",)) is None
        yield Row(k=",".join(sorted(name for (name,) in entries.keys())), n=key[0] == "a")  # noqa: SIM118
        if len(rows) == 3:
            entries.clear()

    def sent(*numbers: int) -> str:
        ((names, _),) = made.send([{"k": "a", "n": n} for n in numbers])
        return str(names)

    made = harness(Scripted(on_rows), output="k string, n boolean")
    assert sent(1, 2) == "1,2"
    made.reopen()
    assert sent(-1) == "2"
    assert sent(-2, -7) == ""
    assert sent(3, 4, 5) == "3,4,5"
    assert sent(6) == "6"
