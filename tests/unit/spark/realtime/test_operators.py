"""Operators in frames: an epoch row by row is the epoch in one piece.

The oracle is the same operator in a harness that runs each epoch in one step. Pieces of an overlay
are put together by twos and threes, so that a few rows do what thousands do.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.unit.operators.spark_processor import driving
from tests.unit.spark.realtime.resident import in_frames

import millrace as mr
from millrace import clock
from millrace.epoch.rows import encode
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.state import overlay
from millrace.testing import AsOfHarness, JoinHarness, LookupHarness, PatternHarness, column
from millrace.testing.epochs import NAME, START, OperatorHarness
from millrace.types import arrow_type

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
KEYS = "abcde"
EPOCHS = 5


@pytest.fixture(autouse=True, params=[2, 3])
def fanout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "FANOUT", request.param)


def one_by_one(count: int) -> list[int]:
    return [1] * count


def both(make: Callable[[], Any]) -> tuple[Any, Any]:
    return make(), in_frames(make(), one_by_one)


def minute(number: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=number)


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def last_of_each(rows: list[tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row for row in rows}


def rows_of(harness: Any) -> dict[str, int]:
    return {name: len(harness.state(name)) for name in harness._operator.tables}


BEST = T.StructType([T.StructField("v", T.LongType()), T.StructField("n", T.LongType())])


class Totals(OperatorHarness[AggregateOperator]):
    """A count, the largest value and the two best rows of each key."""

    def __init__(self) -> None:
        key = Column("k", T.StringType())
        aggregates = [
            AggregateSpec("n", "count", "*", T.IntegerType(), ()),
            AggregateSpec("most", "max", "v", T.LongType(), ()),
            AggregateSpec("best", "top", "v, n", BEST, (("k", 2),)),
        ]
        super().__init__(AggregateOperator(NAME, [key], aggregates), [key], START, 2)

    def send(self, rows: Any = ()) -> Any:
        listed = list(rows)
        keys = pa.array([row["k"] for row in listed], pa.string())
        hi, lo = self._fingerprints([keys])
        ones = pa.array(np.ones(len(listed), np.int64))
        values = pa.array([row["v"] for row in listed], pa.int64())
        kind = pa.list_(arrow_type(BEST, "best"))
        best = pa.array([[row] for row in listed], kind)
        part = np.zeros(len(listed), np.int32)
        given = Input(hi, lo, (keys,), part, ((ones,), (values,), (best,)))
        return self._run(encode(given))


def test_aggregates() -> None:
    dice = clock.dice("aggregates in frames")
    whole, framed = both(Totals)
    for _ in range(EPOCHS):
        rows = [
            {"k": dice.choice(KEYS), "v": dice.randrange(100), "n": n}
            for n in range(dice.choice([1, 9, 30]))
        ]
        expected, found = whole.send(rows), framed.send(rows)
        # `top` says nothing of keys whose best rows stay, but the others change with every row.
        assert last_of_each(found) == last_of_each(expected)
        assert len(found) == len(rows)
        assert framed.state() == whole.state()


class Spending(StatefulProcessor):
    """A value, a list and a map of Spark's."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long")
        self.items = handle.getListState("items", "n long")
        self.seen = handle.getMapState("seen", "n long", "times long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            before = self.total.get()
            self.total.update(((before[0] if before else 0) + row.n,))
            self.items.appendValue((row.n,))
            times = self.seen.getValue((row.n,)) if self.seen.containsKey((row.n,)) else (0,)
            self.seen.updateValue((row.n,), (times[0] + 1,))
        yield Row(k=key[0], n=self.total.get()[0])


def test_sparks_processors() -> None:
    dice = clock.dice("Spark's processors in frames")
    whole, framed = both(lambda: driving.harness(Spending()))
    for _ in range(EPOCHS):
        rows = [{"k": dice.choice(KEYS), "n": dice.randrange(4)} for _ in range(12)]
        expected, found = whole.send(rows), framed.send(rows)
        assert last_of_each(found) == last_of_each(expected)
        for table in whole._operator.tables:
            assert framed.state(table) == whole.state(table)


def two_streams(dice: clock.Dice, epoch: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    left, right = (
        [
            {
                "k": dice.choice(KEYS),
                name: 100 * epoch + number,
                time: minute(2 * epoch + dice.randrange(40) / 10),
            }
            for number in range(dice.choice([0, 3, 11]))
        ]
        for name, time in (("l", "lt"), ("r", "rt"))
    )
    return left, right


STREAMS = {
    "on": "k",
    "left": "k string, l long, lt timestamp",
    "right": "k string, r long, rt timestamp",
    "left_time": "lt",
    "right_time": "rt",
}


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_joins(how: str) -> None:
    dice = clock.dice(f"{how} joins in frames")
    within = ("-1 minute", "1 minute")
    whole, framed = both(lambda: JoinHarness(**STREAMS, within=within, how=how, shards=2))
    answered = 0
    for epoch in range(EPOCHS):
        left, right = two_streams(dice, epoch)
        expected, found = whole.send(left, right), framed.send(left, right)
        assert in_order(found) == in_order(expected)
        answered += len(found)
        expected, found = (h.advance_watermark(minute(2 * epoch)) for h in (whole, framed))
        assert in_order(found) == in_order(expected)
    # Which rows wait with which marks differs: a partner may come in a later frame.
    expected, found = (h.advance_watermark(minute(1000)) for h in (whole, framed))
    assert in_order(found) == in_order(expected)
    assert answered + len(found)


def test_as_of_joins() -> None:
    dice = clock.dice("as-of joins in frames")
    whole, framed = both(lambda: AsOfHarness(**STREAMS, tolerance="2 minutes"))
    answered = 0
    for epoch in range(EPOCHS):
        left, right = two_streams(dice, epoch)
        assert in_order(framed.send(left, right)) == in_order(whole.send(left, right))
        expected, found = (h.advance_watermark(minute(2 * epoch + 1)) for h in (whole, framed))
        assert in_order(found) == in_order(expected)
        answered += len(found)
        assert rows_of(framed) == rows_of(whole)
    assert answered


@pytest.mark.parametrize("how", ["inner", "left"])
def test_lookups(how: str) -> None:
    """Rows of one epoch meet what is there when they come, so each stream has epochs of its own."""
    dice = clock.dice(f"{how} look-ups in frames")
    streams = {name: given for name, given in STREAMS.items() if name != "left_time"}
    whole, framed = both(lambda: LookupHarness(**streams, how=how))
    answered = 0
    for epoch in range(EPOCHS):
        left, right = two_streams(dice, epoch)
        assert framed.send([], right) == whole.send([], right) == []
        expected, found = whole.send(left), framed.send(left)
        assert in_order(found) == in_order(expected)
        answered += len(found)
        assert framed.state() == whole.state()
    assert answered


def test_patterns() -> None:
    dice = clock.dice("patterns in frames")
    rising = (
        mr.pattern("low")
        .where(column("v") < 40)
        .followed_by("high")
        .where(column("v") > 60)
        .within("3 minutes")
    )
    whole, framed = both(
        lambda: PatternHarness(
            rising,
            key="k",
            schema="k string, v long, at timestamp",
            event_time="at",
            select={"v": mr.testing.earlier("high").last("v")},
        )
    )
    matched = 0
    for epoch in range(EPOCHS):
        rows = [
            {
                "k": dice.choice(KEYS),
                "v": dice.randrange(100),
                "at": minute(2 * epoch + dice.randrange(200) / 100),
            }
            for _ in range(dice.choice([5, 20]))
        ]
        expected, found = whole.send(rows), framed.send(rows)
        assert in_order(found) == in_order(expected)
        expected, found = (h.advance_watermark(minute(2 * epoch + 1)) for h in (whole, framed))
        assert in_order(found) == in_order(expected)
        matched += len(found)
        assert rows_of(framed) == rows_of(whole)
    assert matched
