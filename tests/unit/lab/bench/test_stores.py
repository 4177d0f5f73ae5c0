"""`bench stores`: what is made of requests and of a run. The runs themselves are long."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from millrace_lab.bench import BenchmarkError, stores
from millrace_lab.bench._console import steps
from millrace_lab.bench._timeline import SOURCES, Point, Timeline
from millrace_lab.faults.recording import OPERATIONS, Request


def timeline(*committed: float) -> Timeline:
    points = [
        Point(n, at, (n,) * SOURCES, (n + 1,) * SOURCES, at - 0.5) for n, at in enumerate(committed)
    ]
    return Timeline(points, 0.0, 100.0)


def request(at: float, operation: str, path: str = "manifests/1") -> Request:
    return Request(at, operation, path, 10, 0.01, "s3://bucket/run")


def test_requests_are_counted_per_epoch_and_apart_from_sparks() -> None:
    made = [
        request(0.9, "list"),
        *(request(at, "create") for at in (1.1, 2.1)),
        *(request(at, "put") for at in (1.1, 1.2, 2.1, 2.2)),
        request(1.3, "create", "spark/offsets/1"),
        *(request(at, "list", "requests") for at in (1.2, 1.4, 2.2)),
        request(3.0, "read"),
    ]
    counted = stores.per_epoch(made, timeline(0.5, 1.5, 2.5), 1.0, 3.0)
    assert counted == dict.fromkeys(OPERATIONS, 0.0) | {
        "create": 1.0,
        "put": 2.0,
        "spark_create": 0.5,
        "inbox_list": 1.5,
    }
    with pytest.raises(BenchmarkError, match="no epoch was committed"):
        stores.per_epoch(made, timeline(0.5), 1.0, 3.0)


def test_without_any_server_there_is_nothing_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_lab.servers.places.FOLDER", tmp_path / "none")
    shown = io.StringIO()
    with (
        steps(Console(file=shown), "stores") as said,
        pytest.raises(BenchmarkError, match="none of the stores is installed"),
    ):
        stores.run(stores.Options(stores=("hdfs",)), tmp_path, said)
    assert "hdfs is left out: no" in shown.getvalue()
