"""`drop_duplicates` beside Spark's own, batch by batch, before a window, and across restarts."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.spark.test_windows import spark_side

import millrace as mr
from millrace import errors

FILES = 5
START = dt.datetime(2024, 3, 10, 6, 50, tzinfo=dt.UTC)
SCHEMA = "id int, at timestamp, page string"


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def fill(folder: support.Folder, seed: int) -> None:
    """Each file is one input partition; equal keys in a file have equal rows."""
    chance = random.Random(seed)
    for number in range(FILES):
        rows: dict[int | None, tuple[Any, ...]] = {}
        for _ in range(60):
            key = chance.choice([None, *range(40)])
            minutes = number * 6 + chance.random() * 5
            if chance.random() < 0.2:
                minutes -= chance.random() * 25
            time = None if chance.random() < 0.05 else at(minutes)
            rows[key] = key, time, chance.choice("abc")
        folder.drop(2 * list(rows.values()))


def recorded(outputs: support.Outputs) -> list[list[tuple[Any, ...]]]:
    listed = [
        sorted(map(tuple, map(dict.values, outputs[n].to_pylist())), key=repr) for n in outputs
    ]
    return [rows for rows in listed if rows]


def test_rows_are_those_of_spark_with_a_restart_in_between(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    outputs: support.Outputs = {}
    fill(folder, seed=3)
    theirs = (
        folder.stream(spark, maxFilesPerTrigger="1")
        .withWatermark("at", "4 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .select("id", "at", "page")
    )
    expected = [rows for rows in spark_side(theirs, "append", tmp_path / "spark") if rows]
    expected = [sorted(rows, key=repr) for rows in expected]
    reports = []
    for parallelism in (2, 3):
        stream = mr.stream(
            folder.stream(spark, maxFilesPerTrigger="1"), event_time="at", watermark="4 minutes"
        ).transform(lambda df: df.select("id", "at", "page"))
        unique = stream.drop_duplicates("id", name="unique")
        query = unique.for_each_batch(support.record(outputs)).start(
            str(tmp_path / "location"), parallelism=parallelism
        )
        try:
            query.process_all_available()
            reports += query.recent_progress()
        finally:
            query.stop()
        fill(folder, seed=4)
        if parallelism == 3:
            break
    first = recorded(outputs)[: len(expected)]
    assert first == expected
    assert len(recorded(outputs)) > len(expected)
    counted = [report["operators"]["unique"]["counters"] for report in reports]
    for counter in ("duplicates", "late", "evicted"):
        assert sum(c.get(counter, 0) for c in counted) > 0


@pytest.mark.stress
def test_duplicates_are_dropped_before_a_window(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    fill(folder, seed=11)
    stream = folder.stream(spark, maxFilesPerTrigger="1")
    window = F.window("at", "5 minutes")
    theirs = (
        stream.withWatermark("at", "4 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .groupBy("page", window)
        .agg(F.count(F.lit(1)).alias("n"))
    )
    expected = spark_side(theirs, "append", tmp_path / "spark")
    unique = mr.stream(stream, event_time="at", watermark="4 minutes").drop_duplicates(
        F.col("id").cast("string").alias("text")
    )
    windows = (
        unique.transform(lambda df: df.where("true"))
        .key_by("page")
        .window("5 minutes")
        .aggregate(n=mr.count())
    )
    outputs: support.Outputs = {}
    late: support.Outputs = {}
    query = (
        windows.for_each_batch(support.record(outputs))
        .also(unique.late().for_each_batch(support.record(late)))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    try:
        query.process_all_available()
    finally:
        query.stop()
    emitted = sorted(
        (row["page"], row["window"]["start"], row["n"])
        for table in outputs.values()
        for row in table.to_pylist()
    )
    wanted = sorted((page, start, n) for rows in expected for page, (start, _), n in rows)
    assert emitted == wanted
    assert wanted
    assert sum(table.num_rows for table in late.values()) > 0


def test_of_equal_keys_the_first_of_the_lowest_partition_passes(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    folder.drop([(n % 10, at(0), f"{n:03d}") for n in range(100)], files=4)
    stream = mr.stream(folder.stream(spark)).transform(
        lambda df: df.withColumn("part", F.spark_partition_id())
    )
    passed: support.Outputs = {}
    every: support.Outputs = {}
    query = (
        stream.drop_duplicates("id", ttl="7 days")
        .for_each_batch(support.record(passed))
        .also(stream.for_each_batch(support.record(every)))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    try:
        query.process_all_available()
    finally:
        query.stop()
    # In order of input partitions, and of rows in each.
    (came,) = [table.to_pylist() for table in every.values() if table.num_rows]
    assert [row["part"] for row in came] == sorted(row["part"] for row in came)
    first: dict[int, int] = {}
    for row in came:
        first.setdefault(row["id"], row["_seq"])
    rows = [row for table in passed.values() for row in table.to_pylist()]
    assert {row["id"]: row["_seq"] for row in rows} == first
    assert len(rows) == 10


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "id int, at timestamp, m map<string,int>")
    timed = mr.stream(folder.stream(spark), event_time="at", watermark="4 minutes")
    with pytest.raises(errors.UsageError, match=r"drop_duplicates\(\) needs at least one column"):
        timed.drop_duplicates()
    with pytest.raises(errors.UnknownColumnError, match=r"drop_duplicates\(\).*'nope'"):
        timed.drop_duplicates("nope")
    with pytest.raises(errors.UnhashableKeyError, match="map<string,int>"):
        timed.drop_duplicates("m")
    with pytest.raises(errors.DuplicateNameError, match=r"drop_duplicates\(id, id\)"):
        timed.drop_duplicates("id", "id")
    with pytest.raises(errors.UsageError, match="ttl='soon'"):
        timed.drop_duplicates("id", ttl="soon")
    with pytest.raises(errors.EventTimeError, match=r"drop_duplicates\(\) needs the event time"):
        timed.transform(lambda df: df.drop("at")).drop_duplicates("id")
    with pytest.raises(errors.UnknownOutputError, match="does not treat rows as late"):
        timed.drop_duplicates("id", ttl=None).late()
    with pytest.raises(errors.DuplicateNameError, match="two columns called 'expires_at'"):
        timed.drop_duplicates(F.col("id").alias("expires_at"))
