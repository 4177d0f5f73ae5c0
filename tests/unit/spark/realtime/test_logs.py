"""Spark's logs after a real-time query: completed from the manifest, and the heartbeat's line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace import clock
from millrace.errors import CorruptSparkLogError
from millrace.ids import Epoch
from millrace.log import Trail, open_store, spark_logs
from millrace.log.store import Store
from millrace.spark.realtime import logs

TIMES = json.dumps({"batchWatermarkMs": 5000, "batchTimestampMs": 7000})
OFFSETS = f'v1\n{TIMES}\n{{"in":{{"0":7}}}}'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def trail(batch: int | None, offsets: str | None) -> Trail:
    return Trail(4, epoch=Epoch(3), batch_id=batch, offsets=offsets)


def put(store: Store, path: str, text: str) -> None:
    store.put(path, text.encode())


def text(store: Store, path: str) -> str | None:
    return store.read(path).decode() if store.size(path) is not None else None


@pytest.mark.parametrize("real_time", [True, False])
@pytest.mark.parametrize("is_planned", [True, False])
def test_spark_is_given_a_real_time_batch_that_it_lacks(
    store: Store, real_time: bool, is_planned: bool
) -> None:
    put(store, f"{spark_logs.OFFSETS}/1", "v1\n{}\n0")
    put(store, f"{spark_logs.COMMITS}/1", "v1\n{}")
    if is_planned:
        put(store, f"{spark_logs.OFFSETS}/2", OFFSETS)
    for _ in range(2):
        logs.complete(store, trail(2, OFFSETS), real_time=real_time)
        assert text(store, f"{spark_logs.OFFSETS}/2") == OFFSETS
        assert text(store, f"{spark_logs.COMMITS}/2") == 'v1\n{"nextBatchWatermarkMs":5000}'
    assert not spark_logs.is_interrupted(store)


@pytest.mark.parametrize("real_time", [True, False])
def test_a_micro_batch_is_marked_only_for_real_time(store: Store, real_time: bool) -> None:
    put(store, f"{spark_logs.OFFSETS}/0", OFFSETS)
    logs.complete(store, trail(0, None), real_time=real_time)
    assert (text(store, f"{spark_logs.COMMITS}/0") is not None) == real_time


def test_what_spark_has_committed_stays(store: Store) -> None:
    put(store, f"{spark_logs.OFFSETS}/2", OFFSETS)
    put(store, f"{spark_logs.COMMITS}/2", "v1\nmine")
    logs.complete(store, trail(2, OFFSETS), real_time=True)
    assert text(store, f"{spark_logs.COMMITS}/2") == "v1\nmine"
    logs.complete(store, trail(None, None), real_time=True)


def test_a_batch_of_which_nobody_knows_the_offsets_is_left_to_the_check(store: Store) -> None:
    put(store, spark_logs.METADATA, "{}")
    logs.complete(store, trail(2, None), real_time=True)
    assert store.list(spark_logs.COMMITS) == []
    with pytest.raises(CorruptSparkLogError, match="offsets/2 is missing"):
        spark_logs.check_logs(store, 2)


def test_offsets_of_another_batch_are_refused(store: Store) -> None:
    put(store, f"{spark_logs.OFFSETS}/2", OFFSETS.replace("7}", "9}"))
    with pytest.raises(CorruptSparkLogError, match="Another query may be running"):
        logs.complete(store, trail(2, OFFSETS), real_time=True)
    assert store.list(spark_logs.COMMITS) == []


def test_the_heartbeats_line_comes_and_goes(store: Store) -> None:
    path = f"{spark_logs.OFFSETS}/4"
    since = clock.now_ms() - 100_000
    put(store, f"{spark_logs.SOURCES}/1/0", f"v1\n{since}")
    put(store, path, f"{OFFSETS}\n55")
    logs.fit_sources(store, 1, beats=True)
    assert text(store, path) == f"{OFFSETS}\n55"
    logs.fit_sources(store, 1, beats=False)
    assert text(store, path) == OFFSETS
    logs.fit_sources(store, 1, beats=False)
    assert text(store, path) == OFFSETS
    logs.fit_sources(store, 1, beats=True)
    *lines, beats = (text(store, path) or "").splitlines()
    assert "\n".join(lines) == OFFSETS
    assert 100 <= int(beats) < 200


def test_a_heartbeat_that_has_never_beaten_starts_at_its_beginning(store: Store) -> None:
    logs.fit_sources(store, 1, beats=True)
    path = f"{spark_logs.OFFSETS}/0"
    put(store, path, OFFSETS)
    logs.fit_sources(store, 1, beats=True)
    assert text(store, path) == f"{OFFSETS}\n-"
