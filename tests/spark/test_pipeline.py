"""Queries of more than one part: unions, transforms, chained operators, watermarks."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark import support

import millrace as mr


def rows_of(rng: random.Random, count: int) -> list[tuple[str, int, int]]:
    return [
        (f"d{rng.randint(0, 30)}", rng.randint(0, 3), rng.randint(-50, 50)) for _ in range(count)
    ]


def test_two_sources_are_united(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(1)
    left = support.Folder(tmp_path / "left", "device string, room int, value int")
    right = support.Folder(tmp_path / "right", "device string, room int, value int")
    outputs: support.Outputs = {}
    aggregates = {"n": mr.count(), "total": mr.sum("value")}
    query = (
        mr.stream(left.stream(spark))
        .transform(lambda df: df.where("value > 0"))
        .union(
            mr.stream(right.stream(spark)).transform(lambda df: df.select("_seq", *df.columns[:-1]))
        )
        .key_by("device")
        .aggregate(name="t", **aggregates)
        .for_each_batch(support.record(outputs))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    for on_left, on_right in ((30, 20), (10, 0), (0, 10)):
        if on_left:
            left.drop(rows_of(rng, on_left))
        if on_right:
            right.drop(rows_of(rng, on_right))
        query.process_all_available()
    query.stop()
    united = left.batch(spark).where("value > 0").unionByName(right.batch(spark))
    expected = support.batch_state(united, ["device"], aggregates)
    state = mr.open(str(tmp_path / "location")).to_arrow("t")
    support.assert_same(state, expected, ["device"], "united")
    final = support.last_per_key(outputs.values(), ["device"])
    support.assert_same(final, expected, ["device"], "outputs")


def test_three_operators_in_one_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """Each operator is recomputed in batch over the recorded outputs of the one before."""
    rng = random.Random(2)
    folder = support.Folder(tmp_path / "in", "device string, room int, value int")
    outputs: support.Outputs = {}
    per_device = {"n": mr.count(), "total": mr.sum("value")}
    per_room = {"changes": mr.count(), "peak": mr.max("total"), "devices": mr.sum("n")}
    per_parity = {"rooms": mr.count(), "best": mr.max("top")}

    def build(stream: mr.Stream) -> mr.Stream:
        return (
            stream.transform(lambda df: df.where("value <> 0"))
            .key_by("device", "room")
            .aggregate(name="per-device", **per_device)
            .transform(lambda df: df.withColumn("_seq", F.lit(0)).where("total > -40"))
            .key_by("room")
            .aggregate(name="per-room", **per_room)
            .transform(lambda df: df.selectExpr("room % 2 as parity", "peak as top"))
            .key_by("parity")
            .aggregate(name="per-parity", **per_parity)
        )

    location = str(tmp_path / "location")
    for parallelism, size in ((2, 200), (3, 1), (1, 60)):
        folder.drop(rows_of(rng, size), files=2 if size > 1 else 1)
        query = (
            build(mr.stream(folder.stream(spark)))
            .for_each_batch(support.record(outputs))
            .start(location, parallelism=parallelism)
        )
        query.process_all_available()
        query.stop()
    assert mr.open(location).operators == ["per-device", "per-parity", "per-room"]

    def emitted(
        inputs: DataFrame, keys: list[str], aggregates: dict[str, mr.Aggregate]
    ) -> DataFrame:
        tables = support.batch_outputs(inputs, keys, aggregates, 3)
        marked = [
            t.append_column("_epoch", pa.array([e] * len(t), pa.int32())) for e, t in tables.items()
        ]
        return spark.createDataFrame(pa.concat_tables(marked))

    first_in = folder.batch(spark).where("value <> 0")
    second_in = emitted(first_in, ["device", "room"], per_device).where("total > -40")
    third_in = emitted(second_in, ["room"], per_room).selectExpr(
        "room % 2 as parity", "peak as top", "_epoch"
    )
    reader = mr.open(location)
    for name, inputs, keys, aggregates in (
        ("per-device", first_in, ["device", "room"], per_device),
        ("per-room", second_in, ["room"], per_room),
        ("per-parity", third_in, ["parity"], per_parity),
    ):
        expected = support.batch_state(inputs, keys, aggregates)
        support.assert_same(reader.to_arrow(name), expected, keys, name)
    last = support.batch_outputs(third_in, ["parity"], per_parity, 3)
    for epoch, table in last.items():
        support.assert_same(outputs[epoch - 1], table, ["parity"], f"epoch {epoch}")


def test_operators_follow_one_another_without_a_transform(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", "k string, v int")
    outputs: support.Outputs = {}
    query = (
        mr.stream(folder.stream(spark))
        .key_by("k")
        .aggregate(n=mr.count(), name="per-key")
        .key_by("n")
        .aggregate(times=mr.count(), name="per-count")
        .for_each_batch(support.record(outputs))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    for keys in ("aab", "ac", "a"):
        folder.drop([(key, 1) for key in keys])
        query.process_all_available()
    query.stop()
    reader = mr.open(str(tmp_path / "location"))
    first = support.by_key(reader.to_arrow("per-key"), ["k"], "")
    assert first == {("a",): {"n": 4}, ("b",): {"n": 1}, ("c",): {"n": 1}}
    # Emitted counts: a=2 and b=1, then a=3 and c=1, then a=4.
    second = support.by_key(reader.to_arrow("per-count"), ["n"], "")
    assert second == {
        (1,): {"times": 2},
        (2,): {"times": 1},
        (3,): {"times": 1},
        (4,): {"times": 1},
    }
    assert support.by_key(outputs[1], ["n"], "") == {(3,): {"times": 1}, (1,): {"times": 2}}


def test_transform_after_an_operator_shapes_the_output(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "device string, value int")
    static = spark.createDataFrame(
        [("a", "kitchen"), ("b", "cellar")], "device string, room string"
    )
    outputs: support.Outputs = {}
    query = (
        mr.stream(folder.stream(spark))
        .key_by("device")
        .aggregate(total=mr.sum("value"), name="t")
        .transform(
            lambda df: df.join(static, "device").where("total >= 10").select("room", "total")
        )
        .for_each_batch(support.record(outputs))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    for rows in ([("a", 4), ("b", 10), ("c", 99)], [("a", 7), ("c", 1)]):
        folder.drop(rows)
        query.process_all_available()
    query.stop()
    assert outputs[0].to_pylist() == [{"room": "cellar", "total": 10}]
    assert outputs[1].to_pylist() == [{"room": "kitchen", "total": 11}]
    # What the transform leaves out of the output is in the state all the same.
    state = support.by_key(mr.open(str(tmp_path / "location")).to_arrow(), ["device"], "")
    assert state == {("a",): {"total": 11}, ("b",): {"total": 10}, ("c",): {"total": 100}}


def test_an_aggregate_takes_a_column_expression(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "`a.b` string, value int")
    aggregates = {
        "squares": mr.sum(F.col("value") * F.col("value")),
        "odd": mr.count(F.when(F.col("value") % 2 == 1, 1)),
    }
    folder.drop([("x", 1), ("x", 2), ("y", 3), (None, None)])
    query = (
        mr.stream(folder.stream(spark))
        .key_by("a.b")
        .aggregate(name="t", **aggregates)
        .to("noop")
        .start(str(tmp_path / "location"), parallelism=2)
    )
    query.process_all_available()
    query.stop()
    state = support.by_key(mr.open(str(tmp_path / "location")).to_arrow(), ["a.b"], "")
    assert state == {
        ("x",): {"squares": 5, "odd": 1},
        ("y",): {"squares": 9, "odd": 1},
        (None,): {"squares": None, "odd": 0},
    }


def test_the_watermark_is_reported_and_never_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "device string, at timestamp")
    location = str(tmp_path / "location")

    def at(minute: int) -> dt.datetime:
        return dt.datetime(2024, 5, 1, 12, minute, tzinfo=dt.UTC)

    seen: list[int] = []
    for minutes in ([5, 10], [20], [1, 2]):
        query = (
            mr.stream(folder.stream(spark), event_time="at", watermark="2 minutes")
            .key_by("device")
            .aggregate(n=mr.count(), name="t")
            .to("noop")
            .start(location, parallelism=2)
        )
        for minute in minutes:
            folder.drop([("d", at(minute))])
            query.process_all_available()
        query.stop()
        seen += [p["watermark_ms"] for p in query.recent_progress() if p["watermark_ms"]]
        progress = query.progress()
        assert progress is not None
        assert mr.open(location).watermark_ms == progress["watermark_ms"]
    assert seen == sorted(seen)
    assert seen[-1] == at(18).timestamp() * 1000
    assert at(8).timestamp() * 1000 in seen
    # Late rows are counted: the watermark only tells operators how far time is.
    assert mr.open(location).to_arrow().to_pylist() == [{"device": "d", "n": 5}]


@pytest.mark.parametrize("ansi", [True, False])
def test_an_overflowing_sum_does_as_spark_does(
    spark: SparkSession, tmp_path: Path, ansi: bool
) -> None:
    folder = support.Folder(tmp_path / "in", "k int, v long, d decimal(38,0)")
    ten = support.number(9 * 10**37, 0)
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    location = str(tmp_path / "location")
    aggregates = {"v": mr.sum("v"), "total": mr.sum("d")}
    sinked = (
        mr.stream(folder.stream(session).withColumnRenamed("v", "w"))
        .key_by("k")
        .aggregate(total=mr.sum("d"), longs=mr.sum("w"), name="t")
        .to("noop")
    )
    query = sinked.start(location, parallelism=1)
    folder.drop([(1, 2**62, ten), (2, 1, ten)])
    query.process_all_available()
    folder.drop([(1, 2**62, ten)])
    if ansi:
        with pytest.raises(mr.MillraceError, match="left the range"):
            query.process_all_available()
        assert mr.open(location).epoch == 1
        return
    query.process_all_available()
    query.stop()
    batch = folder.batch(session).withColumnRenamed("v", "w")
    aggregates = {"total": mr.sum("d"), "longs": mr.sum("w")}
    expected = support.batch_state(batch, ["k"], aggregates)
    support.assert_same(mr.open(location).to_arrow(), expected, ["k"], "overflowed")
