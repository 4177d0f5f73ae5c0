"""The heartbeat's record in Spark's logs, after the clock was set back."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import clock
from millrace.log import open_store
from millrace.log.spark_logs import damaged_logs, rewrite
from millrace.log.store import Store
from millrace.spark.heartbeat import continue_heartbeat

NOW = 1_800_000_000_000
HOUR = 3600


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two sources; the heartbeat began an hour ago and has beaten twice."""
    monkeypatch.setattr(clock, "now_ms", lambda: NOW)
    made = open_store(str(tmp_path / "location"))
    write(made, "sources/1/0", f"v1\n{NOW - HOUR * 1000}")
    for batch, ends in enumerate((10, 20)):
        plan(made, batch, ends)
        write(made, f"commits/{batch}", "v1\n{}")
    return made


def write(store: Store, name: str, text: str) -> None:
    path = f"spark/{name}"
    folder, _, last = path.rpartition("/")
    store.put(f"{folder}/.{last}.crc", b"")
    rewrite(store, path, text.encode())


def plan(store: Store, batch: int, seconds: object) -> None:
    write(store, f"offsets/{batch}", f'v1\n{{"batchTimestampMs":1}}\n{{"logOffset":1}}\n{seconds}')


def read(store: Store, name: str) -> list[str]:
    return store.read(f"spark/{name}").decode().splitlines()


def test_nothing_changes_while_the_clock_is_ahead(store: Store) -> None:
    continue_heartbeat(store)
    assert read(store, "sources/1/0") == ["v1", str(NOW - HOUR * 1000)]


def test_it_begins_early_enough_to_go_on(store: Store) -> None:
    plan(store, 2, 2 * HOUR)
    write(store, "commits/2", "v1\n{}")
    continue_heartbeat(store)
    assert read(store, "sources/1/0") == ["v1", str(NOW - 2 * HOUR * 1000)]
    assert not damaged_logs(store)


def test_a_batch_that_ends_before_it_begins_is_mended(store: Store) -> None:
    plan(store, 2, 2 * HOUR)
    write(store, "commits/2", "v1\n{}")
    plan(store, 3, 7)
    continue_heartbeat(store)
    assert read(store, "offsets/3")[2:] == ['{"logOffset":1}', str(2 * HOUR)]
    assert read(store, "sources/1/0") == ["v1", str(NOW - 2 * HOUR * 1000)]
    assert not damaged_logs(store)


def test_what_was_committed_is_left_alone(store: Store) -> None:
    plan(store, 2, 7)
    write(store, "commits/2", "v1\n{}")
    continue_heartbeat(store)
    assert read(store, "offsets/2")[-1] == "7"


@pytest.mark.parametrize("ends", ["-", 0])
def test_a_batch_without_a_beat(store: Store, ends: object) -> None:
    plan(store, 2, ends)
    write(store, "commits/2", "v1\n{}")
    continue_heartbeat(store)
    assert read(store, "sources/1/0") == ["v1", str(NOW - HOUR * 1000)]


def test_before_the_first_batch_and_before_the_first_beat(tmp_path: Path) -> None:
    empty = open_store(str(tmp_path / "empty"))
    continue_heartbeat(empty)
    plan(empty, 0, "-")
    continue_heartbeat(empty)
    assert empty.list("spark/sources") == []
