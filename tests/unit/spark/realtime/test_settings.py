"""The real-time trigger, as a user writes it."""

from __future__ import annotations

import pytest

from millrace.errors import UsageError
from millrace.spark.realtime.settings import parse_duration


@pytest.mark.parametrize(
    ("trigger", "milliseconds"),
    [
        ("real time 10 seconds", 10_000),
        ("real-time 1 second", 1000),
        (" Real Time 1.5 minutes ", 90_000),
        ("realtime 2 hours", 7_200_000),
        ("10 seconds", None),
        ("available_now", None),
    ],
)
def test_a_trigger_says_how_long_an_epoch_is(trigger: str, milliseconds: int | None) -> None:
    assert parse_duration(trigger) == milliseconds


@pytest.mark.parametrize("trigger", ["real time", "real time 10", "real time 5 blinks", "really"])
def test_a_trigger_without_a_duration_is_refused(trigger: str) -> None:
    with pytest.raises(UsageError, match="as in 'real time 10 seconds'"):
        parse_duration(trigger)


def test_an_epoch_takes_a_second_at_least() -> None:
    with pytest.raises(UsageError, match="at least a second"):
        parse_duration("real time 0.5 seconds")
