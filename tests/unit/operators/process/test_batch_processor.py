"""Whole-batch processors against a dict, and what they may not do."""

from __future__ import annotations

import datetime as dt
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import (
    MissingPackageError,
    ProcessorError,
    StateAccessError,
    StateTypeError,
)
from millrace.state import merging
from millrace.testing import Harness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


class Sums(mr.BatchProcessor):
    """A sum per key that is cleared when it reaches a hundred, and a count that fades."""

    total = mr.Value("double")
    count = mr.Value("long", default=0, ttl="5 seconds")
    names = mr.Value("array<string>")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        sums = np.add.reduceat(batch.numpy("x"), batch.starts[:-1])
        total = state.numpy("total", default=0.0) + sums
        count = state.numpy("count") + np.diff(batch.starts)
        assert np.array_equal(np.diff(batch.starts), np.bincount(batch.key_of_row))
        state["total"] = [None if t >= 100 else t for t in total.tolist()]
        state["count"] = count
        return {"k": batch.keys["k"], "total": total, "n": count}


def harness(processor: Any, output: str = "k string, total double, n long") -> Harness:
    return Harness(
        processor,
        key="k",
        schema="k string, x double, at timestamp",
        output=output,
        event_time="at",
    )


def test_values_equal_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "RUN_PIECES", 4)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    monkeypatch.setattr(merging, "MERGE_RATIO", 0.5)
    chance = random.Random(3)
    tested = harness(Sums())
    totals: dict[str, float] = {}
    counts: dict[str, tuple[int, int]] = {}
    for _ in range(40):
        tested._time_us += 1_000_000
        tested.rescale(chance.choice([1, 2, 7]))
        if chance.random() < 0.2:
            tested.reopen()
        now = tested._time_us // 1_000_000
        rows = [
            {"k": f"k{chance.randrange(12)}", "x": float(chance.randrange(40)), "at": NOON}
            for _ in range(chance.randrange(1, 20))
        ]
        expected = []
        for key in {row["k"] for row in rows}:
            mine = [row["x"] for row in rows if row["k"] == key]
            total = totals.pop(key, 0.0) + sum(mine)
            before, until = counts.get(key, (0, 0))
            count = (before if until > now else 0) + len(mine)
            if total < 100:
                totals[key] = total
            counts[key] = (count, now + 5)
            expected.append((key, total, count))
        assert sorted(tested.send(rows)) == sorted(expected)
        stored = {row["k"]: row["total"] for row in tested.state() if row["total"] is not None}
        assert stored == totals
    assert tested.counters["expired"] > 0


def test_null_clears_a_state_and_a_key_without_states_is_gone() -> None:
    class Clearing(mr.BatchProcessor):
        a = mr.Value("long")
        b = mr.Value("long", default=5)

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            state["a"] = [None if x < 0 else int(x) for x in batch.numpy("x")]
            return {"k": batch.keys["k"], "b": state["b"]}

    tested = harness(Clearing(), "k string, b long")
    rows = [{"k": "p", "x": 1.0}, {"k": "q", "x": 2.0}]
    assert sorted(tested.send(rows)) == [("p", 5), ("q", 5)]
    # A default is shown, not stored.
    assert sorted(row["k"] + str(row["b"]) for row in tested.state()) == ["pNone", "qNone"]
    tested.send([{"k": "p", "x": -1.0}, {"k": "new", "x": -1.0}])
    assert tested.state() == [{"k": "q", "a": 2, "b": None}]


def test_reading_refreshes_only_where_it_should() -> None:
    class Reading(mr.BatchProcessor):
        on_read = mr.Value("long", ttl="5 seconds", ttl_refresh="read+write")
        on_write = mr.Value("long", ttl="5 seconds")

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            shown = {"a": state["on_read"], "b": state["on_write"]}
            if batch.numpy("x")[0] == 1:
                state["on_read"] = [1]
                state["on_write"] = [1]
            return shown

    tested = harness(Reading(), "a long, b long")
    tested.send([{"k": "p", "x": 1.0}])
    seen = []
    for seconds in (3, 3, 3, 5):
        tested._time_us += seconds * 1_000_000
        seen += tested.send([{"k": "p", "x": 0.0}])
    assert seen == [(1, 1), (1, None), (1, None), (None, None)]


def test_late_rows_do_not_reach_it() -> None:
    tested = harness(Sums())
    tested.advance_watermark(NOON)
    late = {"k": "p", "x": 1.0, "at": NOON - mr.seconds(1)}
    fresh = {"k": "p", "x": 2.0, "at": NOON}
    assert tested.send([late]) == []
    assert tested.send([late, fresh, late]) == [("p", 2.0, 1)]
    assert tested.counters["late"] == 3


class Doing(mr.BatchProcessor):
    n = mr.Value("long")
    text = mr.Value("string")
    at = mr.Value("timestamp")

    def __init__(self, action: Any) -> None:
        self.action = action

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        return self.action(batch, state)


ROWS = [{"k": "p", "x": 1.0}, {"k": "q", "x": 2.0}]


def setting(name: str, values: Any) -> Any:
    def action(batch: mr.Batch, state: mr.States) -> None:
        state[name] = values

    return action


@pytest.mark.parametrize(
    ("action", "error", "named"),
    [
        (setting("n", [1]), StateTypeError, "1 values; the batch has 2 keys"),
        (setting("n", [1, 2, 3]), StateTypeError, "3 values"),
        (setting("n", [1, 1.5]), StateTypeError, "1.5"),
        (setting("n", ["1", "2"]), StateTypeError, "'1'"),
        (setting("n", np.array([1.0, 1.5])), StateTypeError, "'n'"),
        (setting("n", np.array([1.0, np.nan])), StateTypeError, "'n'"),
        (setting("n", np.array(["1", "2"])), StateTypeError, "string"),
        (setting("n", pa.array(["1", "2"])), StateTypeError, "string"),
        (setting("n", pa.array([True, False])), StateTypeError, "bool"),
        (setting("n", np.array([2**63, 1], np.uint64)), StateTypeError, "'n'"),
        (setting("text", np.array([1, 2])), StateTypeError, "int64"),
        (setting("at", np.array([1, 2])), StateTypeError, "int64"),
        (setting("m", [1, 2]), StateAccessError, "no state 'm'"),
        (lambda batch, state: state["m"], StateAccessError, "'n', 'text', 'at'"),
        (lambda batch, state: state.numpy("m"), StateAccessError, "'m'"),
        (lambda batch, state: batch.numpy("nope"), ProcessorError, "KeyError"),
        (lambda batch, state: 1 / 0, ProcessorError, "2 rows and 2 keys"),
        (lambda batch, state: 5, StateTypeError, "given as int"),
        (lambda batch, state: {"k": ["a"]}, StateTypeError, "no column 'total'"),
        (lambda batch, state: {"k": [], "total": [1.0], "n": []}, StateTypeError, "lengths"),
        (lambda batch, state: {"k": [1], "total": [1.0], "n": [1]}, StateTypeError, "'k'"),
    ],
)
def test_what_goes_wrong_is_named_and_nothing_is_kept(action: Any, error: Any, named: str) -> None:
    tested = harness(Doing(action))
    with pytest.raises(error) as caught:
        tested.send(ROWS)
    assert named in str(caught.value)
    assert "'tested'" in str(caught.value)
    assert tested.state() == []


@pytest.mark.parametrize(
    ("name", "values", "kept"),
    [
        ("n", np.array([1.0, 2.0]), [1, 2]),
        ("n", np.array([1, 2], np.int8), [1, 2]),
        ("n", pa.array([1, None], pa.int32()), [1, None]),
        ("n", (1, None), [1, None]),
        ("n", pa.chunked_array([[1], [2]]), [1, 2]),
        ("n", pa.nulls(2), [None, None]),
        ("text", np.array(["a", None], object), ["a", None]),
        ("text", pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        ("at", [NOON, None], [NOON, None]),
        ("at", np.array(["2024-01-01T12", "NaT"], "datetime64[us]"), [NOON, None]),
    ],
)
def test_columns_of_other_widths_and_kinds_are_taken(name: str, values: Any, kept: Any) -> None:
    shown: list[Any] = []

    def action(batch: mr.Batch, state: mr.States) -> None:
        state[name] = values
        shown.append(state[name].to_pylist())

    harness(Doing(action)).send(ROWS)
    assert shown == [kept]


def test_views_of_the_rows() -> None:
    shown: list[Any] = []

    def action(batch: mr.Batch, state: mr.States) -> None:
        shown.append((len(batch), batch.to_pandas()["x"].tolist(), batch.table.num_rows))

    harness(Doing(action)).send([*ROWS, *ROWS])
    assert shown[0][0] == shown[0][2] == 4
    assert sorted(shown[0][1]) == [1.0, 1.0, 2.0, 2.0]


def test_only_values_can_be_declared() -> None:
    class WithMap(mr.BatchProcessor):
        m = mr.Map("long", "long")

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any: ...

    with pytest.raises(StateAccessError, match=r"WithMap.m is a map"):
        harness(WithMap())


def test_expired_values_are_counted() -> None:
    class Fades(mr.BatchProcessor):
        v = mr.Value("long", ttl="5 seconds")
        w = mr.Value("long")

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            state["v"] = state["w"] = np.zeros(len(batch.keys), np.int64)

    tested = Harness(Fades(), key="k", schema="k long", output="n long")
    tested.send([{"k": 1}, {"k": 2}, {"k": 3}])
    assert tested.counters.get("expired", 0) == 0
    tested.advance_time(mr.seconds(5))
    tested.send([{"k": 1}, {"k": 2}])
    assert tested.counters["expired"] == 2


BATCH = mr.Batch(
    pa.table({"k": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]}),
    pa.table({"k": ["a", "b"]}),
    np.asarray([0, 2, 3]),
)


def test_rows_are_a_data_frame_of_pandas() -> None:
    frame = BATCH.to_pandas()
    assert frame.groupby("k")["x"].sum().to_dict() == {"a": 3.0, "b": 3.0}


def test_rows_become_a_data_frame_of_polars_from_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=pa.Table.to_pydict))
    assert BATCH.to_polars() == {"k": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]}


def test_without_polars_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPackageError, match=r"pip install polars, on the executors too"):
        BATCH.to_polars()
