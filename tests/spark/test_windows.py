"""Windows beside Spark's own `groupBy(window()).agg()`: the same files, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.stress import few
from tests.waiting import DEADLINE

import millrace as mr
from millrace.log import Journal, open_store
from millrace.ui.watch import Watch

FILES = 5
START = dt.datetime(2024, 3, 10, 6, 50, tzinfo=dt.UTC)
"""Ten minutes before New York's clocks go forward."""


def fill(folder: support.Folder, seed: int) -> None:
    """Files whose rows are mostly later than those before, some late, some without a time."""
    chance = random.Random(seed)
    for number in range(FILES):
        rows: list[tuple[Any, ...]] = []
        for _ in range(40):
            page = chance.choice([None, "a", "b", "c"])
            minutes = number * 6 + chance.random() * 5
            if chance.random() < 0.15:
                minutes -= chance.random() * 25
            at: dt.datetime | None = START + dt.timedelta(minutes=minutes)
            if chance.random() < 0.05:
                at = None
            rows.append((page, at, chance.choice([None, *range(5)])))
        folder.drop(rows)


def batches(outputs: support.Outputs) -> list[list[tuple[Any, ...]]]:
    """What each batch of a file emitted; then all that came without one."""
    listed = [sorted(map(flat, outputs[n].to_pylist()), key=repr) for n in sorted(outputs)]
    rest = [row for rows in listed[FILES:] for row in rows]
    return [*listed[:FILES], sorted(rest, key=repr)]


def flat(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(tuple(v.values()) if isinstance(v, dict) else v for v in row.values())


def spark_side(df: DataFrame, mode: str, path: Path) -> list[list[tuple[Any, ...]]]:
    outputs: support.Outputs = {}
    query = (
        df.writeStream.outputMode(mode)
        .foreachBatch(support.record(outputs))
        .option("checkpointLocation", str(path))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return batches(outputs)


def run(stream: mr.Stream, location: Path, **options: Any) -> list[list[tuple[Any, ...]]]:
    outputs: support.Outputs = {}
    query = stream.for_each_batch(support.record(outputs)).start(
        str(location), parallelism=2, **options
    )
    try:
        query.process_all_available()
    finally:
        query.stop()
    return batches(outputs)


@pytest.fixture
def new_york(spark: SparkSession) -> SparkSession:
    """A session in a time zone with summer time."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


AGGREGATES = {"n": mr.count(), "total": mr.sum("ms"), "top": mr.max("ms"), "mean": mr.mean("ms")}


@pytest.mark.parametrize(
    ("size", "slide", "offset", "emit"),
    few(
        [
            ("5 minutes", None, None, "final"),
            ("1 hour", None, "15 minutes", "update"),
            ("10 minutes", "2 minutes", None, "final"),
            ("10 minutes", "4 minutes", "1 minute", "update"),
        ],
        ("10 minutes", "2 minutes", None, "final"),
    ),
)
def test_windows_are_those_of_spark(
    new_york: SparkSession,
    tmp_path: Path,
    size: str,
    slide: str | None,
    offset: str | None,
    emit: str,
) -> None:
    spark = new_york
    folder = support.Folder(tmp_path / "in", "page string, at timestamp, ms int")
    fill(folder, seed=len(size))
    stream = folder.stream(spark, maxFilesPerTrigger="1")
    window = F.window("at", size, slide, offset)
    aggregates = [support.oracle_column(name, a) for name, a in AGGREGATES.items()]
    theirs = stream.withWatermark("at", "4 minutes").groupBy("page", window).agg(*aggregates)
    mode = "append" if emit == "final" else "update"
    expected = spark_side(theirs, mode, tmp_path / "spark")
    ours = (
        mr.stream(
            folder.stream(spark, maxFilesPerTrigger="1"), event_time="at", watermark="4 minutes"
        )
        .key_by("page")
        .window(size, slide, offset)
        .aggregate(**AGGREGATES, emit=emit)
    )
    assert [f.simpleString() for f in ours.schema] == [f.simpleString() for f in theirs.schema]
    assert run(ours, tmp_path / "location") == expected
    assert any(expected), "nothing was compared"


@pytest.mark.stress
def test_a_window_over_windows_is_that_of_spark(new_york: SparkSession, tmp_path: Path) -> None:
    """The watermark goes on through the first operator; keys are expressions."""
    spark = new_york
    folder = support.Folder(tmp_path / "in", "page string, at timestamp, ms int")
    fill(folder, seed=7)
    stream = folder.stream(spark, maxFilesPerTrigger="1")
    everything = F.lit("all").alias("everything")
    theirs = (
        stream.withWatermark("at", "4 minutes")
        .groupBy(F.upper("page").alias("page"), F.window("at", "2 minutes"))
        .agg(F.count(F.lit(1)).alias("n"))
        .groupBy(everything, F.window(F.window_time("window"), "6 minutes"))
        .agg(F.sum("n").alias("total"), F.count(F.lit(1)).alias("windows"))
    )
    expected = spark_side(theirs, "append", tmp_path / "spark")
    ours = (
        mr.stream(stream, event_time="at", watermark="4 minutes")
        .key_by(F.upper("page").alias("page"))
        .window("2 minutes")
        .aggregate(n=mr.count())
        .key_by(everything)
        .window("6 minutes")
        .aggregate(total=mr.sum("n"), windows=mr.count())
    )
    assert run(ours, tmp_path / "location") == expected
    assert sum(map(len, expected)) > 2
    trail = Journal.open(open_store(str(tmp_path / "location"))).newest()
    assert trail.watermarks.keys() == {"window-1", "window-2"}
    assert trail.watermark_ms is not None
    assert set(trail.watermarks.values()) == {trail.watermark_ms * 1000}


def test_late_rows_a_restart_a_rescale_and_what_is_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", "page string, at timestamp, ms int")

    def at(minutes: float) -> dt.datetime:
        return START + dt.timedelta(minutes=minutes)

    finals: support.Outputs = {}
    late: support.Outputs = {}
    location = str(tmp_path / "location")
    reports: list[dict[str, Any]] = []

    def live(parallelism: int, *drops: list[tuple[Any, ...]]) -> None:
        stream = mr.stream(
            folder.stream(spark, maxFilesPerTrigger="1"), event_time="at", watermark="0 seconds"
        )
        windows = stream.key_by("page").window("5 minutes").aggregate(name="per_page", n=mr.count())
        query = (
            windows.for_each_batch(support.record(finals))
            .also(windows.late().for_each_batch(support.record(late)))
            .start(location, parallelism=parallelism)
        )
        try:
            for number, rows in enumerate(drops):
                if number:
                    query.rescale(1).wait(DEADLINE)
                folder.drop(rows)
                query.process_all_available()
            reports.extend(query.recent_progress())
        finally:
            query.stop()

    live(2, [("a", at(1), 1), ("b", at(2), 2), ("a", at(11), 3)])
    # Windows up to at(10) are over; one of these is late twice, and equal to itself.
    second = [("a", at(3), 4), ("a", at(3), 4), ("b", at(12), 5), ("c", None, 6)]
    live(3, second, [("z", at(600), 7)])
    emitted = sorted(
        (row["page"], (row["window"]["end"] - START) // dt.timedelta(minutes=1), row["n"])
        for table in finals.values()
        for row in table.to_pylist()
    )
    assert emitted == [("a", 5, 1), ("a", 15, 1), ("b", 5, 1), ("b", 15, 1)]
    too_late = [row for table in late.values() for row in table.to_pylist()]
    assert [(row["page"], row["ms"]) for row in too_late] == [("a", 4), ("a", 4)]
    counted = [report["operators"]["per_page"]["counters"] for report in reports]
    assert sum(c.get("late", 0) for c in counted) == 2
    assert sum(c.get("without_time", 0) for c in counted) == 1
    last = reports[-1]["operators"]["per_page"]
    assert last["num_rows_total"] == 1
    assert last["watermark_ms"] == round(at(600).timestamp() * 1000)
    # The page says the same, also of a location whose query has ended.
    watch = Watch(location)
    watch.refresh()
    (shown,) = watch.snapshot()["operators"]
    evicted = sum(c["evicted"] for c in counted)
    assert [shown[of] for of in ("watermark_ms", "late", "evicted")] == [
        last["watermark_ms"],
        2,
        evicted,
    ]
    assert evicted == 4
    with mr.open(location) as state:
        left = state.sql('select page, "window".start as start, n from per_page').to_pylist()
        assert left == [{"page": "z", "start": at(600), "n": 1}]
        gone = state.sql("select count(*) as n from per_page where page = 'a'").to_pylist()
        assert gone == [{"n": 0}]
        found = state.get([("z", at(600)), ("a", at(0))]).to_pylist()
        assert [(row["n"], row["_found"]) for row in found] == [(1, True), (None, False)]


def test_windows_of_several_lengths(new_york: SparkSession, tmp_path: Path) -> None:
    """Emitted as Spark's windows of a length are; a length can be added at a later start."""
    spark = new_york
    folder = support.Folder(tmp_path / "in", "page string, at timestamp, ms int")
    fill(folder, seed=11)
    location = tmp_path / "location"

    def stream() -> DataFrame:
        return folder.stream(spark, maxFilesPerTrigger="1")

    def tiles(*lengths: str) -> mr.WindowedStream:
        source = mr.stream(stream(), event_time="at", watermark="4 minutes")
        return source.key_by("page").windows(list(lengths), slide="2 minutes")

    aggregates = [support.oracle_column(name, a) for name, a in AGGREGATES.items()]
    rows = stream().withWatermark("at", "4 minutes")
    theirs = rows.groupBy("page", F.window("at", "4 minutes", "2 minutes")).agg(*aggregates)
    expected = spark_side(theirs, "append", tmp_path / "spark")
    assert any(expected), "nothing was compared"
    ours = tiles("12 minutes", "4 minutes").aggregate(name="tiles", emit="final", **AGGREGATES)
    found = [
        [(page, window, *values) for page, window, length, *values in rows if length == "4 minutes"]
        for rows in run(ours, location)
    ]
    assert found == expected
    folder.drop([("a", START + dt.timedelta(minutes=FILES * 6), 7)])
    longer = tiles("2 minutes", "12 minutes").aggregate(name="tiles", **AGGREGATES)
    run(longer, location)
    with mr.open(str(location)) as state:
        newest = state.get([("a", "2 minutes"), ("a", "12 minutes")], columns=["n", "total"])
    since = [START + dt.timedelta(minutes=FILES * 6 + 2 - length) for length in (2, 12)]
    wanted = [
        folder.batch(spark)
        .where((F.col("page") == "a") & (F.col("at") >= F.lit(start)))
        .agg(F.count("*"), F.sum("ms"))
        .first()
        for start in since
    ]
    assert [tuple(row.values())[3:5] for row in newest.to_pylist()] == list(map(tuple, wanted))
