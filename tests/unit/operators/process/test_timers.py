"""Timers that set themselves again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.errors import TimerError, UsageError
from millrace.operators.process.convert import to_us
from millrace.testing import Harness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
Fired = tuple[str, dt.datetime]


def after_noon(seconds: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


class Ticks(mr.Processor):
    tick = mr.EventTimeTimer()

    def __init__(self, **options: Any) -> None:
        self.options = options

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        self.tick.set_next("10 seconds", **{"after": ctx.event_time, **self.options})

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Iterator[Fired]:
        yield key.user, timer.time
        self.tick.set_next("10 seconds", timer.label)


class Clock(mr.Processor):
    tick = mr.ProcessingTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Fired]:
        yield key.user, self.tick.set_next(dt.timedelta(minutes=1))

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Iterator[Fired]:
        yield key.user, self.tick.set_next(dt.timedelta(minutes=1))


def harness(processor: mr.Processor, event_time: str | None = "at") -> Harness:
    return Harness(
        processor,
        key="user",
        schema="user string, at timestamp",
        output="user string, at timestamp",
        event_time=event_time,
        start=NOON,
    )


def test_a_periodic_timer_survives_a_jump_of_the_watermark() -> None:
    ticks = harness(Ticks())
    assert ticks.send([{"user": "ann", "at": after_noon(3)}]) == []
    assert ticks.advance_watermark(after_noon(9.999999)) == []
    assert ticks.advance_watermark(after_noon(10)) == [("ann", after_noon(10))]
    # Far beyond the next ones: it fires once, late, and then at the next multiple.
    assert ticks.advance_watermark(after_noon(95)) == [("ann", after_noon(20))]
    assert ticks.advance_watermark(after_noon(99)) == []
    assert ticks.advance_watermark(after_noon(100)) == [("ann", after_noon(100))]


def test_on_a_multiple_the_next_one_counts() -> None:
    ticks = harness(Ticks())
    ticks.send([{"user": "ann", "at": NOON}])
    assert ticks.advance_watermark(after_noon(9)) == []
    assert ticks.advance_watermark(after_noon(10)) == [("ann", after_noon(10))]


def test_the_later_of_now_and_after_counts() -> None:
    ticks = harness(Ticks())
    ticks.advance_watermark(after_noon(42))
    ticks.send([{"user": "ann", "at": after_noon(61)}])
    assert ticks.advance_watermark(after_noon(60)) == []
    assert ticks.advance_watermark(after_noon(70)) == [("ann", after_noon(70))]
    early = harness(Ticks(after=after_noon(-100)))
    early.advance_watermark(after_noon(42))
    early.send([{"user": "ann", "at": after_noon(43)}])
    assert early.advance_watermark(after_noon(50)) == [("ann", after_noon(50))]


def test_labels_have_times_of_their_own() -> None:
    ticks = harness(Ticks(label="a"))
    ticks.send([{"user": "ann", "at": NOON}])
    (row,) = ticks.state("timers.event")
    assert (row["label"], row["time"]) == ("a", to_us(after_noon(10)))
    assert ticks.advance_watermark(after_noon(10)) == [("ann", after_noon(10))]
    (row,) = ticks.state("timers.event")
    assert (row["label"], row["time"]) == ("a", to_us(after_noon(20)))


def test_processing_time_needs_no_other() -> None:
    clock = harness(Clock(), event_time=None)
    assert clock.send([{"user": "ann", "at": NOON}]) == [("ann", after_noon(60))]
    assert clock.advance_time(dt.timedelta(seconds=150)) == [("ann", after_noon(180))]


def test_without_a_watermark_the_next_multiple_is_not_known() -> None:
    ticks = harness(Ticks(after=None))
    with pytest.raises(TimerError, match=r"'tick': there is no watermark yet.*Give after="):
        ticks.send([{"user": "ann", "at": NOON}])


@pytest.mark.parametrize(
    ("after", "period", "error", "said"),
    [
        ("noon", "10 seconds", TimerError, "timer 'tick': "),
        (NOON, "ten seconds", UsageError, "'ten seconds' is not a duration"),
        (NOON, dt.timedelta(0), UsageError, "duration"),
    ],
)
def test_what_makes_no_sense_is_refused(
    after: Any, period: Any, error: type[Exception], said: str
) -> None:
    class Wrong(mr.Processor):
        tick = mr.EventTimeTimer()

        def process(self, key: Any, rows: Any, ctx: Any) -> None:
            self.tick.set_next(period, after=after)

        def on_timer(self, key: Any, timer: Any, ctx: Any) -> None:
            pass

    with pytest.raises(error, match=said):
        harness(Wrong()).send([{"user": "ann", "at": NOON}])


class Both(mr.Processor):
    """Sets a timer without a label, and then one with a label."""

    tick = mr.EventTimeTimer()

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        if key.user == "late":
            self.tick.set(after_noon(1))
            self.tick.cancel()
        else:
            self.tick.set(after_noon(1))
        self.tick.set(after_noon(2), label="x")

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Iterator[Fired]:
        yield key.user + timer.label, timer.time


def test_a_timer_without_a_label_beside_one_with_a_label() -> None:
    tested = harness(Both())
    tested.send([{"user": user, "at": NOON} for user in ("a", "late", "b")])
    fired = tested.advance_watermark(after_noon(5))
    assert sorted(fired) == [
        ("a", after_noon(1)),
        ("ax", after_noon(2)),
        ("b", after_noon(1)),
        ("bx", after_noon(2)),
        ("latex", after_noon(2)),
    ]
