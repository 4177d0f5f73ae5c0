"""Queries that are graphs: several sources, unions behind operators, diamonds."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.waiting import DEADLINE

import millrace as mr
from millrace.errors import EventTimeError, UsageError
from millrace.log import Journal, open_store

START = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def shard_runs(query: mr.Query) -> int:
    """How many times a shard ran in the last epoch, repeated ones included."""
    return len(query._run.runner._plans.reports())


def rows_of(rng: random.Random, count: int) -> list[tuple[str, int]]:
    return [(f"k{rng.randint(0, 9)}", rng.randint(-50, 50)) for _ in range(count)]


def values(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[c] for c in columns) for row in table.to_pylist()), key=repr)


def test_two_sources_feed_operators_of_their_own_through_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One query, one offset log: each source's rows reach its own branch, also when the program
    lists them in another order."""
    rng = random.Random(1)
    left = support.Folder(tmp_path / "left", "k string, v int")
    right = support.Folder(tmp_path / "right", "k string, v int")
    persistent = set(spark.sparkContext._jsc.getPersistentRDDs())
    aggregates = {"n": mr.count(), "total": mr.sum("v")}
    drops = [(40, 0), (20, 30), (0, 25)]
    outputs: support.Outputs = {}
    for number, (on_left, on_right) in enumerate(drops):
        for folder, size in ((left, on_left), (right, on_right)):
            if size:
                folder.drop(rows_of(rng, size))
        first = mr.stream(left.stream(spark)).key_by("k").aggregate(name="one", **aggregates)
        second = (
            mr.stream(right.stream(spark))
            .transform(lambda df: df.where("v > 0"))
            .key_by("k")
            .aggregate(name="two", **aggregates)
        )
        sinks = [first.to("noop"), second.for_each_batch(support.record(outputs))]
        sinks = sinks if number % 2 else sinks[::-1]
        query = sinks[0].also(sinks[1]).start(str(tmp_path / "location"), parallelism=1 + number)
        query.process_all_available()
        assert shard_runs(query) == 2 * (1 + number)
        progress = query.progress()
        assert progress is not None
        assert progress["operators"].keys() == {"one", "two"}
        query.stop()
    reader = mr.open(str(tmp_path / "location"))
    for name, df in (("one", left.batch(spark)), ("two", right.batch(spark).where("v > 0"))):
        expected = support.batch_state(df, ["k"], aggregates)
        support.assert_same(reader.to_arrow(name), expected, ["k"], name)
    assert not outputs[0].num_rows
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= persistent


def test_one_source_read_by_several_branches_is_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A transform that is shared gives all of its readers the same rows, random ones too."""
    folder = support.Folder(tmp_path / "in", "k string, v int")
    folder.drop([("a", 1), ("b", 2), ("a", 3)])
    source = mr.stream(folder.stream(spark)).transform(
        lambda df: df.withColumn("random", F.expr("uuid()"))
    )
    seen: dict[str, support.Outputs] = {"all": {}, "few": {}}
    counted = (
        source.transform(lambda df: df.where("v > 1"))
        .union(source.transform(lambda df: df.where("v < 3")))
        .key_by("random")
        .aggregate(n=mr.count(), name="t")
    )
    query = (
        counted.for_each_batch(support.record(seen["all"]))
        .also(source.for_each_batch(support.record(seen["few"])))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    query.process_all_available()
    query.stop()
    by_random = {row["random"]: row["v"] for row in seen["few"][0].to_pylist()}
    assert sorted(by_random.values()) == [1, 2, 3]
    found = {by_random[row["random"]]: row["n"] for row in seen["all"][0].to_pylist()}
    assert found == {1: 1, 2: 2, 3: 1}


def test_a_union_behind_operators(spark: SparkSession, tmp_path: Path) -> None:
    """Of an operator's output, a transform of another's, and a source; columns in another order and
    of a narrower type."""
    rng = random.Random(2)
    left = support.Folder(tmp_path / "left", "k string, v int")
    right = support.Folder(tmp_path / "right", "k string, v int")
    outputs: support.Outputs = {}
    per_key = {"n": mr.count(), "total": mr.sum("v")}
    emitted: dict[str, support.Outputs] = {"one": {}, "two": {}}
    location = str(tmp_path / "location")
    for number, (on_left, on_right) in enumerate([(20, 10), (5, 0), (7, 9)]):
        for folder, size in ((left, on_left), (right, on_right)):
            if size:
                folder.drop(rows_of(rng, size))
        first = mr.stream(left.stream(spark)).key_by("k").aggregate(name="one", **per_key)
        source = mr.stream(right.stream(spark))
        second = source.key_by("k").aggregate(name="two", **per_key)
        narrow = source.transform(lambda df: df.selectExpr("v as n", "k", "0 as total"))
        united = first.union(second.transform(lambda df: df.where("n > 1"))).union(narrow)
        assert united.schema.simpleString() == "struct<k:string,n:bigint,total:bigint>"
        query = (
            united.key_by("k")
            .aggregate(rows=mr.count(), most=mr.max("n"), name="united")
            .for_each_batch(support.record(outputs))
            .also(
                first.for_each_batch(support.record(emitted["one"])),
                second.for_each_batch(support.record(emitted["two"])),
            )
            .start(location, parallelism=1 + number)
        )
        query.process_all_available()
        assert shard_runs(query) == 3 * (1 + number)
        query.stop()
    rows = [r for table in emitted["one"].values() for r in table.to_pylist()]
    rows += [r for table in emitted["two"].values() for r in table.to_pylist() if r["n"] > 1]
    rows += [{"k": r["k"], "n": r["v"]} for r in right.batch(spark).toArrow().to_pylist()]
    expected: dict[Any, dict[str, int]] = {}
    for row in rows:
        had = expected.setdefault((row["k"],), {"rows": 0, "most": row["n"]})
        expected[row["k"],] = {"rows": had["rows"] + 1, "most": max(had["most"], row["n"])}
    assert support.by_key(mr.open(location).to_arrow("united"), ["k"], "") == expected


@pytest.mark.stress
def test_bare_unions_are_planned_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "k string, v int")
    source = mr.stream(folder.stream(spark))
    one = source.key_by("k").aggregate(n=mr.count(), name="one")
    other = source.key_by("v").aggregate(n=mr.count(), name="other")
    query = (
        one.union(other.transform(lambda df: df.selectExpr("string(v) as k", "n")))
        .union(one)
        .key_by("n")
        .aggregate(times=mr.count(), name="times")
        .to("noop")
        .start(str(tmp_path / "location"), parallelism=2)
    )
    for keys in ("aab", "a"):
        folder.drop([(key, 1) for key in keys])
        query.process_all_available()
    query.stop()
    found = support.by_key(mr.open(str(tmp_path / "location")).to_arrow("times"), ["n"], "")
    # Emitted: a=2, b=1 twice each and 1=3; then a=3 twice and 1=4.
    assert found == {(2,): {"times": 2}, (1,): {"times": 2}, (3,): {"times": 3}, (4,): {"times": 1}}


def windowed(stream: mr.Stream, name: str) -> mr.Stream:
    return stream.key_by("k").window("5 minutes").aggregate(n=mr.count(), name=name)


@pytest.mark.stress
def test_the_watermark_is_the_smallest_of_all_sources_and_goes_on_through_a_union(
    spark: SparkSession, tmp_path: Path
) -> None:
    left = support.Folder(tmp_path / "left", "k string, at timestamp")
    right = support.Folder(tmp_path / "right", "k string, at timestamp")
    outputs: support.Outputs = {}
    location = str(tmp_path / "location")

    def start(parallelism: int) -> mr.Query:
        one = mr.stream(left.stream(spark), event_time="at", watermark="2 minutes")
        two = mr.stream(right.stream(spark), event_time="at", watermark="0 minutes")
        both = windowed(one, "one").union(windowed(two, "two"))
        totals = both.key_by("k").window("10 minutes").aggregate(total=mr.sum("n"), name="totals")
        return totals.for_each_batch(support.record(outputs)).start(
            location, parallelism=parallelism
        )

    def emitted() -> list[tuple[Any, ...]]:
        rows = [r for t in outputs.values() for r in t.to_pylist()]
        return sorted(
            (r["k"], (r["window"]["end"] - START).seconds // 60, r["total"]) for r in rows
        )

    query = start(2)
    left.drop([("a", at(1)), ("a", at(6)), ("b", at(30))])
    query.process_all_available()
    # The other source has not said how far it is.
    assert mr.open(location).watermark_ms is None
    right.drop([("a", at(2)), ("a", at(14))])
    query.process_all_available()
    assert mr.open(location).watermark_ms == at(14).timestamp() * 1000
    assert emitted() == [("a", 10, 3)]
    query.stop()
    query = start(3)
    query.rescale(1).wait(DEADLINE)
    right.drop([("c", at(40))])
    query.process_all_available()
    # Spark does not remember how far each source was, so both have to say it again.
    assert mr.open(location).watermark_ms == at(14).timestamp() * 1000
    left.drop([("d", at(30))])
    query.process_all_available()
    assert mr.open(location).watermark_ms == at(28).timestamp() * 1000
    assert emitted() == [("a", 10, 3), ("a", 20, 1)]
    left.drop([("b", at(90))])
    right.drop([("c", at(90))])
    query.process_all_available()
    query.stop()
    assert emitted() == [("a", 10, 3), ("a", 20, 1), ("b", 40, 1), ("c", 50, 1), ("d", 40, 1)]
    trail = Journal.open(open_store(location)).newest()
    assert set(trail.watermarks.values()) == {trail.watermark_ms * 1000}


@pytest.mark.stress
def test_a_broadcast_beside_several_sources(spark: SparkSession, tmp_path: Path) -> None:
    class Limits(mr.Processor):
        limits = mr.Broadcast("string", "long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            most = self.limits.get(key.k)
            for row in rows:
                if most is not None and row.v > most:
                    yield (key.k, row.v)

    left = support.Folder(tmp_path / "left", "k string, v long")
    right = support.Folder(tmp_path / "right", "k string, v long")
    limits = support.Folder(tmp_path / "limits", "k string, most long")
    outputs: dict[str, support.Outputs] = {"first": {}, "behind": {}}
    limits.drop([("a", 5), ("b", 7)])
    left.drop([("a", 4), ("a", 6), ("b", 9)])
    right.drop([("a", 10), ("b", 1)])

    def rules() -> mr.KeyedStream:
        df = limits.stream(spark).select("k", "most")
        return mr.stream(df).key_by("k")

    schema = "k string, v long"
    first = (
        mr.stream(left.stream(spark))
        .key_by("k")
        .process(Limits(), schema, name="first", broadcast={"limits": rules()})
    )
    behind = (
        first.union(mr.stream(right.stream(spark).select("k", "v")))
        .key_by("k")
        .process(Limits(), schema, name="behind", broadcast={"limits": rules()})
    )
    query = (
        first.for_each_batch(support.record(outputs["first"]))
        .also(behind.for_each_batch(support.record(outputs["behind"])))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    query.process_all_available()
    query.stop()
    assert values(outputs["first"][0], "k", "v") == [("a", 6), ("b", 9)]
    assert values(outputs["behind"][0], "k", "v") == [("a", 10), ("a", 6), ("b", 9)]


def test_bad_unions(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "k string, at timestamp")
    df = folder.stream(spark)
    plain = mr.stream(df)
    timed = mr.stream(df, event_time="at", watermark="1 minute")
    counts = plain.key_by("k").aggregate(n=mr.count(), name="c")
    with pytest.raises(UsageError, match=r"union\(\): the streams have the columns .*n:bigint"):
        plain.union(counts)
    with pytest.raises(UsageError, match="takes a stream, not DataFrame"):
        plain.union(df)  # type: ignore[arg-type]
    with pytest.raises(EventTimeError, match="this stream has none"):
        timed.union(plain).key_by("k").window("1 minute")
    assert timed.union(timed).key_by("k").window("1 minute")
    other = spark.newSession()
    with pytest.raises(UsageError, match="two Spark sessions"):
        plain.union(mr.stream(folder.stream(other)))
    with pytest.raises(UsageError, match="two Spark sessions"):
        counts.to("noop").also(mr.stream(folder.stream(other)).to("noop"))
