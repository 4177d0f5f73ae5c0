"""Linear Road: the program's answers are the oracle's, all of them, while shards come and go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from millrace.arrays import Int64Array
from millrace_lab.linear_road import playing
from millrace_lab.linear_road.answers import difference
from millrace_lab.linear_road.generator import COLUMNS, Traffic, paid, write_history, write_ticks
from millrace_lab.linear_road.oracle import Oracle


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def wanted(traffic: Traffic) -> Int64Array:
    oracle = Oracle(lambda vid, xway, day: paid(traffic, vid, xway, day))
    for rows in traffic.rounds():
        oracle.take(zip(*(rows[name].tolist() for name in COLUMNS), strict=True))
    return oracle.rows()


def compare(
    session: SparkSession,
    folder: Path,
    traffic: Traffic,
    seconds: int,
    shown: int,
    shards: list[int],
) -> Int64Array:
    """Show some ticks at a time, with another number of shards each time; the oracle's answers."""
    write_history(traffic, folder / "history")
    inbox = playing.Inbox(folder / "inbox", write_ticks(traffic, folder / "ticks", seconds))
    answered = playing.Answered()
    inbox.show(shown)
    query = (
        playing.stream(session, inbox.folder, folder / "history")
        .for_each_batch(answered.keep)
        .start(str(folder / "location"), parallelism=shards[0], key_groups=32)
    )
    try:
        for number in shards[1:]:
            query.process_all_available()
            query.rescale(number).wait()
            inbox.show(shown)
        assert not inbox.left
        query.process_all_available()
        counters = [
            operator["counters"].get("late", 0)
            for epoch in query.recent_progress()
            for operator in epoch["operators"].values()
        ]
    finally:
        query.stop()
    assert not any(counters)
    expected = wanted(traffic)
    assert difference(answered.rows(), expected) is None
    return expected


@pytest.mark.stress
def test_the_program_gives_what_the_oracle_gives(session: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(
        begin=600, end=1_080, miles=5, per_hour=20_000, capacity=60, accidents_per_hour=120, seed=5
    )
    expected = compare(session, tmp_path, traffic, seconds=60, shown=4, shards=[1, 3])
    kinds = np.bincount(expected[:, 0])
    assert kinds.min() > 0, kinds
    charged = expected[expected[:, 0] == 2]
    assert charged[:, 9].max() > 0


@pytest.mark.stress
@pytest.mark.parametrize("seed", [1, 2])
def test_however_rows_fall_into_epochs(seed: int, session: SparkSession, tmp_path: Path) -> None:
    """Two expressways, half an hour, and epochs that cut minutes in pieces."""
    traffic = Traffic(
        xways=2, begin=600, end=2_400, miles=5, per_hour=12_000, capacity=60,
        accidents_per_hour=60, seed=seed,
    )  # fmt: skip
    shards = [2, 4, 1, 3, 2, 2]
    expected = compare(session, tmp_path, traffic, seconds=10, shown=30, shards=shards)
    assert np.bincount(expected[:, 0]).min() > 100
