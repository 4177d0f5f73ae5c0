from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.api.autoscaling import check_autoscale
from millrace.errors import AutoscaleError


def test_what_a_program_says_in_words_is_seconds_inside() -> None:
    settings = mr.autoscale(min=2, max=8, latency="2 seconds", settle=dt.timedelta(minutes=2))
    assert (settings.min, settings.max, settings.latency, settings.settle) == (2, 8, 2.0, 120.0)
    day = mr.autoscale(policy="schedule", schedule={"20:00": 2, "8:30": 4}, act=False)
    assert day.schedule == ((30_600.0, 4), (72_000.0, 2))
    assert not day.act


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"latency": "soon"}, "latency='soon' is not a duration"),
        ({"settle": "0 seconds"}, "settle='0 seconds': a duration must be longer than zero"),
        ({"min": 3, "max": 2}, "min=3 is above max=2"),
        ({"target": 1.2}, "above 0 and below 1"),
        ({"schedule": {"noon": 3}, "policy": "schedule"}, "'noon', which is no time of the day"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(AutoscaleError, match=words):
        mr.autoscale(**given)


def test_only_settings_are_settings() -> None:
    assert check_autoscale(None, 3) is None
    assert check_autoscale(mr.autoscale(), {"a": 2}) == mr.autoscale()
    for wrong in (True, "on", {"min": 1}):
        with pytest.raises(AutoscaleError, match=r"give what mr\.autoscale returns"):
            check_autoscale(wrong, None)
