"""A location restored from a backup while the Python workers of its session live on."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.restoring import Backup
from tests.spark.support import Folder

import millrace as mr

KEYS = 64
"""Enough for both shards to have some."""


def count(spark: SparkSession, source: Folder, location: Path, parallelism: int) -> mr.Query:
    counted = mr.stream(source.stream(spark)).key_by("k").aggregate(name="t", n=mr.count())
    return counted.to("noop").start(str(location), parallelism=parallelism)


def epochs(query: mr.Query, source: Folder, number: int, rows: list[tuple[int]]) -> None:
    for _ in range(number):
        source.drop(rows)
        query.process_all_available()


def test_workers_drop_what_they_hold_of_a_lost_history(spark: SparkSession, tmp_path: Path) -> None:
    """Both workers hold version 3 of the lost history. Spark uses them in turn, so the first epoch
    that is written again is one's, and the other is then asked for the new version 3."""
    location = tmp_path / "location"
    source = Folder(tmp_path / "in", "k long")
    every = [(key,) for key in range(KEYS)]
    query = count(spark, source, location, 2)
    epochs(query, source, 2, every)
    query.stop()
    backup = Backup(location)
    dropped = {path.name for path in source.path.iterdir()}
    query = count(spark, source, location, 2)
    epochs(query, source, 2, every * 50)
    assert query.epoch == 4
    query.stop()
    backup.restore()
    for path in source.path.iterdir():
        if path.name not in dropped:
            path.rename(tmp_path / f"lost-{path.name}")
    query = count(spark, source, location, 1)
    epochs(query, source, 1, every)
    query.stop()
    query = count(spark, source, location, 2)
    epochs(query, source, 2, every)
    assert query.epoch == 5
    counts = query.sql("select distinct n from t").column("n").to_pylist()
    query.stop()
    assert counts == [5]
