"""Sessions beside Spark's own `groupBy(session_window()).agg()`: the same files, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.spark.test_windows import batches, fill, run, spark_side
from tests.stress import few

import millrace as mr
from millrace import errors

SCHEMA = "page string, at timestamp, ms int"


@pytest.mark.parametrize("ordered", few([False, True], False))
def test_sessions_are_those_of_spark_with_a_restart_in_between(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    fill(folder, seed=21 + ordered)
    aggregates: dict[str, Any] = {"n": mr.count(), "total": mr.sum("ms"), "mean": mr.mean("ms")}
    columns = [support.oracle_column(name, a) for name, a in aggregates.items()]
    if ordered:
        aggregates["all"] = mr.collect_list("ms")
        columns.append(F.collect_list("ms").alias("all"))
    stream = folder.stream(spark, maxFilesPerTrigger="1")
    session = F.session_window("at", "20 seconds")
    theirs = stream.withWatermark("at", "4 minutes").groupBy("page", session).agg(*columns)
    expected = spark_side(theirs, "append", tmp_path / "spark")
    outputs: support.Outputs = {}
    late: support.Outputs = {}
    location = str(tmp_path / "location")

    def live(parallelism: int) -> mr.Stream:
        ours = (
            mr.stream(
                folder.stream(spark, maxFilesPerTrigger="1"), event_time="at", watermark="4 minutes"
            )
            .key_by("page")
            .session("20 seconds")
            .aggregate(**aggregates, name="sessions")
        )
        writer = ours.for_each_batch(support.record(outputs))
        if parallelism == 3:
            # Where late rows are read, they travel in another way.
            writer = writer.also(ours.late().for_each_batch(support.record(late)))
        query = writer.start(location, parallelism=parallelism)
        try:
            query.process_all_available()
        finally:
            query.stop()
        return ours

    ours = live(2)
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert batches(outputs) == expected
    assert sum(map(len, expected)) > 20
    before = max(outputs)
    # The same rows once more are all late.
    fill(folder, seed=21 + ordered)
    live(3)
    assert not any(outputs[n].num_rows for n in outputs if n > before + 1)
    assert sum(table.num_rows for table in late.values()) > 150
    with mr.open(location) as state:
        report = state.sql("select rows from millrace_operators").to_pylist()
        assert report == [{"rows": state.to_arrow().num_rows}]


@pytest.mark.stress
def test_a_window_over_sessions(spark: SparkSession, tmp_path: Path) -> None:
    """Event time goes on: a session's is its last microsecond."""
    folder = support.Folder(tmp_path / "in", SCHEMA)
    fill(folder, seed=5)
    stream = folder.stream(spark, maxFilesPerTrigger="1")
    theirs = (
        stream.withWatermark("at", "4 minutes")
        .groupBy("page", F.session_window("at", "30 seconds"))
        .agg(F.count(F.lit(1)).alias("n"))
        .groupBy("page", F.window(F.window_time("session_window"), "6 minutes"))
        .agg(F.sum("n").alias("total"), F.count(F.lit(1)).alias("sessions"))
    )
    expected = spark_side(theirs, "append", tmp_path / "spark")
    ours = (
        mr.stream(stream, event_time="at", watermark="4 minutes")
        .key_by("page")
        .session("30 seconds")
        .aggregate(n=mr.count())
        .key_by("page")
        .window("6 minutes")
        .aggregate(total=mr.sum("n"), sessions=mr.count())
    )
    assert run(ours, tmp_path / "location") == expected
    assert any(expected)


def test_sessions_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    timed = mr.stream(folder.stream(spark), event_time="at", watermark="1 minute")
    with pytest.raises(errors.EventTimeError, match=r"session\(\) needs an event time"):
        mr.stream(folder.stream(spark)).key_by("page").session("1 minute")
    with pytest.raises(errors.EventTimeError, match=r"session\(\) needs the event time 'at'"):
        timed.transform(lambda df: df.drop("at")).key_by("page").session("1 minute")
    for gap in ("0 seconds", "-1 minute", "1 month", "soon", 60):
        with pytest.raises(errors.WindowError, match="session"):
            timed.key_by("page").session(gap)  # type: ignore[arg-type]
    keyed = timed.key_by("page").session("1 minute")
    with pytest.raises(errors.UsageError, match="emit='append'"):
        keyed.aggregate(n=mr.count(), emit="append")
    with pytest.raises(errors.DuplicateNameError, match="session_window"):
        keyed.aggregate(session_window=mr.count())
    updates = keyed.aggregate(n=mr.count(), emit="update")
    with pytest.raises(errors.EventTimeError, match="a session with emit='final'"):
        updates.key_by("page").window("1 hour")
