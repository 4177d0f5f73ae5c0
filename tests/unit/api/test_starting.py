"""What start() understands as a trigger and as a size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.api import starting
from millrace.api.autoscaling import check_autoscale
from millrace.api.starting import parse_bytes, parse_trigger, start_query
from millrace.errors import RealTimeError, UsageError
from millrace.reconfigure.cluster import DirectorOptions


@pytest.mark.parametrize(
    ("trigger", "options"),
    [
        (None, {}),
        ("available_now", {"availableNow": True}),
        ("availableNow", {"availableNow": True}),
        ("once", {"once": True}),
        ("1 second", {"processingTime": "1 second"}),
        ("500 milliseconds", {"processingTime": "500 milliseconds"}),
        ("0 seconds", {"processingTime": "0 seconds"}),
    ],
)
def test_triggers(trigger: str | None, options: dict[str, Any]) -> None:
    assert parse_trigger(trigger) == options


@pytest.mark.parametrize("trigger", ["", "  ", "soon", "continuous", 5, 1.5, ["1 second"]])
def test_what_is_not_a_trigger(trigger: Any) -> None:
    with pytest.raises(UsageError, match=r'trigger=.*use a time such as "1 second"'):
        parse_trigger(trigger)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (2**40, 2**40),
        ("100", 100),
        ("100b", 100),
        ("512m", 512 * 2**20),
        ("512 MB", 512 * 2**20),
        ("2 GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        (" 1.5 k ", 1536),
        ("0.5t", 2**39),
    ],
)
def test_sizes(size: str | int, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "size",
    [
        "",
        "much",
        "2 GiBs",
        "2 kk",
        "1e400",
        "inf",
        "nan",
        "-1g",
        "0",
        "0.1",
        0,
        -1,
        True,
        None,
        1.5j,
        "2 x",
    ],
)
def test_what_is_not_a_size(size: Any) -> None:
    for name in ("memory", "follow_rate"):
        with pytest.raises(UsageError, match=f"{name}="):
            parse_bytes(size, name)


def test_a_query_in_real_time_does_not_scale_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "check_versions", lambda: None)
    monkeypatch.setattr(starting, "check_session", lambda spark: None)
    monkeypatch.setattr(starting.kafka_sources, "check_sources", lambda spark, frames: None)
    frame = SimpleNamespace(sparkSession=None)
    pipeline: Any = SimpleNamespace(batches=SimpleNamespace(feeds=[frame]))
    location = tmp_path / "location"
    with pytest.raises(RealTimeError, match="autoscale= needs micro-batches"):
        start_query(
            pipeline,
            str(location),
            parallelism=None,
            trigger="real time 5 seconds",
            key_groups=16,
            retain_epochs=10,
            memory="1 GiB",
            query_name=None,
            director_options=DirectorOptions(),
            autoscale=check_autoscale(mr.autoscale(min=1, max=2), None),
        )
    # It was found before anything was written.
    assert not list(tmp_path.rglob("*.json"))
