"""Real time in a small session: exact, across restarts and kinds of triggers, and what is refused.

The oracle is a group-by in Python over all numbers that were sent.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.realtime_support import Numbers

import millrace as mr
from millrace.errors import RealTimeError, ShardLostError
from millrace.log import Journal, open_store, spark_logs

REAL_TIME = "real time 1 second"
AGGREGATES: dict[str, Any] = {
    "n": mr.count(),
    "total": mr.sum("v"),
    "most": mr.max("v"),
    "mean": mr.mean("v"),
    "spread": mr.stddev("v"),
    "listed": mr.collect_list("v"),
    "kinds": mr.count_distinct("v"),
}


def totals(numbers: Numbers) -> mr.Stream:
    frame = numbers.frame().selectExpr("value % 7 as k", "value as v")
    return mr.stream(frame).key_by("k").aggregate(name="totals", **AGGREGATES)


def expected(numbers: Numbers) -> dict[int, tuple[Any, ...]]:
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers.sent:
        by_key[number % 7].append(number)
    return {k: (len(v), sum(v), max(v), sum(v) / len(v), sorted(v)) for k, v in by_key.items()}


def found(query: mr.Query) -> dict[int, tuple[Any, ...]]:
    rows = query.sql("select k, n, total, most, mean, listed from totals").to_pylist()
    return {r["k"]: (r["n"], r["total"], r["most"], r["mean"], sorted(r["listed"])) for r in rows}


@pytest.mark.usefixtures("generated_code")
def test_real_time_is_exact_across_restarts_and_kinds_of_triggers(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbers, location = Numbers(spark), str(tmp_path / "location")
    lives = [REAL_TIME, REAL_TIME, None, REAL_TIME]
    for life, trigger in enumerate(lives):
        numbers.send(range(100 * life, 100 * life + 50))
        sink = totals(numbers).to("memory", name=f"life{life}")
        query = sink.start(location, parallelism=1, trigger=trigger)
        try:
            if trigger == "available_now":
                query.await_termination()
            else:
                numbers.send(range(100 * life + 50, 100 * life + 70))
                query.process_all_available()
            assert found(query) == expected(numbers)
        finally:
            query.stop()
        # The last answer of each key is its state.
        answers = spark.table(f"life{life}").collect()
        last = {row.k: row.n for row in answers}
        assert last == {k: row[0] for k, row in expected(numbers).items()}
    assert not spark_logs.is_interrupted(open_store(location))


@pytest.mark.stress
def test_a_commit_that_spark_does_not_know_of_is_not_applied_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As if the driver had died between the manifest and Spark's logs."""
    numbers, location = Numbers(spark), tmp_path / "location"
    numbers.send(range(60))
    query = totals(numbers).to("noop").start(str(location), parallelism=1, trigger=REAL_TIME)
    query.process_all_available()
    query.stop()
    journal = Journal.open(open_store(str(location)))
    rows = {journal.read(e)[0].batch_id: journal.read(e)[0].figures for e in journal.epochs()}
    counts = {b: (f or {}).get("inputRows", {}).get("totals", 0) for b, f in rows.items()}
    assert sum(counts.values()) == 60
    last = max(b for b in counts if b is not None)
    for folder in (spark_logs.OFFSETS, spark_logs.COMMITS):
        for name in (str(last), f".{last}.crc"):
            (location / folder / name).unlink(missing_ok=True)
    numbers.send(range(60, 100))
    again = totals(numbers).to("noop").start(str(location), parallelism=1, trigger=REAL_TIME)
    try:
        again.process_all_available()
        assert found(again) == expected(numbers)
    finally:
        again.stop()


@pytest.mark.stress
def test_nulls_are_answered_without_generated_code(spark: SparkSession, tmp_path: Path) -> None:
    """As in all tests that do not ask for it, Spark interprets its expressions."""
    assert spark.conf.get("spark.sql.codegen.wholeStage") == "false"
    numbers = Numbers(spark)
    # Keys 0 and 1 have both, key 2 has NULLs alone.
    given = "if(value % 3 = 2 or value % 2 = 0, null, value)"
    frame = numbers.frame().selectExpr(
        "value % 3 as k", f"cast({given} as double) as v", f"cast({given} as string) as s"
    )
    made: dict[str, Any] = {"most": mr.max("v"), "total": mr.sum("v"), "text": mr.max("s")}
    writer = mr.stream(frame).key_by("k").aggregate(name="nulls", **made).to("memory", name="nulls")
    numbers.send(range(12))
    query = writer.start(str(tmp_path / "location"), parallelism=1, trigger=REAL_TIME)
    try:
        query.process_all_available()
        state = query.sql("select * from nulls").to_pylist()
    finally:
        query.stop()
    answers = {row.k: row.asDict() for row in spark.table("nulls").collect()}
    assert answers == {row["k"]: row for row in state}
    assert answers[0] == {"k": 0, "most": 9.0, "total": 12.0, "text": "9"}
    assert answers[1] == {"k": 1, "most": 7.0, "total": 8.0, "text": "7"}
    assert answers[2] == {"k": 2, "most": None, "total": None, "text": None}


class Sums(mr.Processor):
    """Adds numbers up; at one of them its process ends, once."""

    total = mr.Value("long", default=0)

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def process(self, key: Any, rows: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            if row.v == 13 and not os.path.exists(self.marker):
                with open(self.marker, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            self.total.set(self.total.get() + row.v)
        yield key.k, self.total.get()


class Dies(mr.Processor):
    """Its process ends at every number that is large enough."""

    def process(self, key: Any, rows: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        if any(row.v == 13 for row in rows):
            os.kill(os.getpid(), signal.SIGKILL)
        yield (key.k,)


def sums(numbers: Numbers, marker: Path) -> mr.Stream:
    frame = numbers.frame().selectExpr("value % 3 as k", "value as v")
    return (
        mr.stream(frame).key_by("k").process(Sums(str(marker)), "k long, total long", name="sums")
    )


def test_an_epoch_whose_shard_dies_runs_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers, marker = Numbers(spark), tmp_path / "died"
    numbers.send(range(10))
    query = (
        sums(numbers, marker)
        .to("noop")
        .start(str(tmp_path / "location"), parallelism=1, trigger=REAL_TIME)
    )
    try:
        query.process_all_available()
        numbers.send(range(10, 20))
        query.process_all_available()
        assert query.is_active
        rows = query.sql("select k, total from sums").to_pylist()
    finally:
        query.stop()
    assert query.exception() is None
    assert {r["k"]: r["total"] for r in rows} == Counter(
        {k: sum(n for n in range(20) if n % 3 == k) for k in range(3)}
    )
    [warning] = [line for line in caplog.messages if "runs again (1 of 3)" in line]
    assert "shard 0 of operator 'sums'" in warning
    assert marker.read_text() in warning


@pytest.mark.stress
def test_a_shard_that_dies_each_time_fails_the_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = Numbers(spark)
    numbers.send(range(20))
    frame = numbers.frame().selectExpr("value % 3 as k", "value as v")
    sums = mr.stream(frame).key_by("k").process(Dies(), "k long", name="sums")
    query = sums.to("noop").start(str(tmp_path / "l"), parallelism=1, trigger=REAL_TIME)
    try:
        with pytest.raises(ShardLostError, match="shard 0 of operator 'sums'"):
            query.await_termination()
        assert not query.is_active
        assert isinstance(query.exception(), ShardLostError)
        assert [line for line in caplog.messages if "runs again (3 of 3)" in line]
    finally:
        query.stop()


def test_what_cannot_run_in_real_time_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbers = Numbers(spark)

    def refused(writer: mr.StreamWriter, match: str, **options: Any) -> None:
        with pytest.raises(RealTimeError, match=match):
            writer.start(str(tmp_path / "refused"), trigger=REAL_TIME, **options)

    stream = totals(numbers)
    refused(stream.to("parquet", path=str(tmp_path / "out")), "writes whole batches")
    kafka = {"topic": "t", "servers": "localhost:1"}
    refused(stream.to("kafka", **kafka), "exactly_once=False")
    refused(stream.to("noop").also(stream.to("memory", name="m")), "2 sinks")
    assert not (tmp_path / "refused").exists() or list((tmp_path / "refused").iterdir()) == []
    refused(stream.to("noop"), "autoscale= needs micro-batches", autoscale=mr.autoscale(max=2))
    refused(stream.to("noop"), "standby= needs micro-batches", standby=1)
    refused(stream.to("noop"), "elastic= needs micro-batches", elastic=True)
    refused(stream.to("noop"), "needs 3 slots, and the session has 2", parallelism=2)
    rate = spark.readStream.format("rate").load().selectExpr("value % 7 as k", "value as v")
    counted = mr.stream(rate).key_by("k").aggregate(name="totals", n=mr.count())
    with pytest.raises(RealTimeError, match="cannot be read in real time"):
        counted.to("noop").start(str(tmp_path / "rate"), parallelism=1, trigger=REAL_TIME)
