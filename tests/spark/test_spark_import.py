"""Importing a Spark checkpoint: the next batch gives what Spark would have given."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import millrace as mr
from millrace.errors import ForeignLocationError, SparkStateError, UsageError

SCHEMA = "k string, g int, v bigint, x double, d decimal(12,2), at timestamp"

Build = Callable[[DataFrame], Any]


class Moving:
    """A Spark query that has run two batches, and its successor for the third."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.checkpoint = str(folder / "checkpoint")
        self.location = str(folder / "location")

    def arrive(self, number: int) -> None:
        rows = []
        for i in range(40):
            j = (i * 7 + number * 11) % 25
            rows.append(
                {
                    "k": None if j == 3 else f"k-{j}",
                    "g": j % 2,
                    "v": None if j == 4 else i * 3 - 20,
                    "x": None if i % 9 == 0 else i / 7 + number,
                    "d": None if j == 5 else f"{i}.{number}5",
                    "at": f"2024-01-01 12:0{number}:{i:02d}",
                }
            )
        # Moved into the source's folder, so that a batch sees all of it or nothing.
        file = self.folder / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        file.rename(self.inbox / file.name)

    def events(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).json(str(self.inbox))

    def by_spark(self, df: DataFrame, mode: str) -> list[Row]:
        """Run Spark's own query over what has come; returns what it gives."""
        found: list[Row] = []

        def keep(batch: DataFrame, batch_id: int) -> None:
            found.extend(batch.collect())

        writer = df.writeStream.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", self.checkpoint).start().awaitTermination()
        return found

    def by_millrace(self, stream: Any) -> list[Row]:
        found: list[Row] = []

        def keep(batch: DataFrame, batch_id: int) -> None:
            found.extend(batch.collect())

        query = stream.for_each_batch(keep).start(self.location, trigger="available_now")
        query.await_termination()
        return found

    def compare(self, df: DataFrame, mode: str, stream: Any, **options: Any) -> Any:
        """Two batches by Spark, then the third by both."""
        for number in range(2):
            self.arrive(number)
            self.by_spark(df, mode)
        moved = mr.import_spark(self.checkpoint, stream, self.location, **options)
        self.arrive(2)
        ours = self.by_millrace(stream)
        theirs = self.by_spark(df, mode)
        assert sorted(map(rounded, ours), key=repr) == sorted(map(rounded, theirs), key=repr)
        assert theirs
        return moved


def rounded(row: Row) -> tuple[Any, ...]:
    """Sums of floating point depend on the order of rows in their last digits."""
    return tuple(f"{v:.9g}" if isinstance(v, float) else v for v in row)


@pytest.fixture
def moving(spark: SparkSession, tmp_path: Path) -> Moving:
    return Moving(spark, tmp_path)


def test_an_aggregation(moving: Moving) -> None:
    df = moving.events()
    spark_side = df.groupBy("k", "g").agg(
        F.count("*"),
        F.sum("v"),
        F.sum("d"),
        F.avg("x"),
        F.avg("d"),
        F.min("at"),
        F.max("k"),
        F.stddev_samp("x"),
        F.sum("x"),
    )
    stream = (
        mr.stream(df)
        .key_by("k", "g")
        .aggregate(
            n=mr.count(),
            total=mr.sum("v"),
            exact=mr.sum("d"),
            mean=mr.mean("x"),
            exact_mean=mr.mean("d"),
            first_at=mr.min("at"),
            most=mr.max("k"),
            spread=mr.stddev("x"),
            weight=mr.sum("x"),
            name="totals",
        )
    )
    moved = moving.compare(spark_side, "update", stream, key_groups=32, parallelism=2)
    assert moved.with_offsets
    assert moved.operators == ("totals",)
    with mr.open(moving.location) as reader:
        assert (reader.epoch, reader.batch_id) == (2, 2)
    with pytest.raises(ForeignLocationError):
        mr.import_spark(moving.checkpoint, stream, moving.location)


class Seen(mr.Processor):
    """Lets the first row of a key pass."""

    seen = mr.Value("boolean")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        if not self.seen.get():
            self.seen.set(True)
            yield key


def test_dropping_duplicates(moving: Moving) -> None:
    df = moving.events()
    spark_side = df.select("k", "g").dropDuplicates(["k", "g"])
    stream = mr.stream(df).key_by("k", "g").process(Seen(), "k string, g int", name="seen")
    moving.arrive(0)
    moving.by_spark(spark_side, "append")
    moving.inbox.joinpath("new.json").write_text(json.dumps({"k": "new", "g": 7}))
    moving.by_spark(spark_side, "append")
    mr.import_spark(moving.checkpoint, stream, moving.location)
    for number, key in enumerate(("new", "newer", "k-1")):
        row = json.dumps({"k": key, "g": 1 if key == "k-1" else 7})
        moving.inbox.joinpath(f"more-{number}.json").write_text(row)
    ours, theirs = moving.by_millrace(stream), moving.by_spark(spark_side, "append")
    assert sorted(ours) == sorted(theirs) == [Row(k="newer", g=7)]


def test_first_and_last(moving: Moving) -> None:
    df = moving.events()
    spark_side = df.groupBy("g").agg(
        F.first("v"), F.last("x"), F.first("k", ignorenulls=True), F.last("d", ignorenulls=True)
    )
    stream = (
        mr.stream(df)
        .key_by("g")
        .aggregate(
            first=mr.first("v"),
            last=mr.last("x"),
            name_first=mr.first("k", ignore_nulls=True),
            d_last=mr.last("d", ignore_nulls=True),
            name="ends",
        )
    )
    moving.compare(spark_side, "update", stream)


class Remembered(mr.Processor):
    """Lets the first row of a key pass, and remembers it for as long as Spark would."""

    until = mr.Value("timestamp")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        if self.until.get() is None:
            self.until.set(ctx.event_time + dt.timedelta(hours=1))
            yield key


def test_dropping_duplicates_within_the_watermark(moving: Moving) -> None:
    df = moving.events().select("k", "at").withWatermark("at", "1 hour")
    spark_side = df.dropDuplicatesWithinWatermark(["k"]).select("k")
    stream = (
        mr.stream(moving.events().select("k", "at"), event_time="at", watermark="1 hour")
        .key_by("k")
        .process(Remembered(), "k string", name="seen")
    )
    moving.arrive(0)
    moving.by_spark(spark_side, "append")
    mr.import_spark(moving.checkpoint, stream, moving.location)
    rows = map(json.loads, (moving.inbox / "0.json").read_text().splitlines())
    first: dict[Any, dt.datetime] = {}
    for row in rows:
        first.setdefault(row["k"], dt.datetime.fromisoformat(row["at"]).replace(tzinfo=dt.UTC))
    with mr.open(moving.location) as reader:
        found = reader.to_arrow("seen").to_pylist()
    assert {r["k"]: r["until"] for r in found} == {
        k: at + dt.timedelta(hours=1) for k, at in first.items()
    }
    moving.inbox.joinpath("new.json").write_text(
        "\n".join(json.dumps({"k": k, "at": "2024-01-01 12:01:00"}) for k in ("k-1", "new"))
    )
    ours, theirs = moving.by_millrace(stream), moving.by_spark(spark_side, "append")
    assert ours == theirs == [Row(k="new")]


class Visits(StatefulProcessor):
    """Has a state of every kind, and a timer."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.recent = handle.getListState("recent", "v long")
        self.groups = handle.getMapState("groups", "g int", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        before = self.count.get()
        n = 0 if before is None else before[0]
        last = list(self.recent.get()) if self.recent.exists() else []
        latest = 0
        for row in rows:
            n += 1
            last.append((row.v,))
            seen = self.groups.getValue((row.g,)) if self.groups.containsKey((row.g,)) else None
            self.groups.updateValue((row.g,), (1 if seen is None else seen[0] + 1,))
            latest = max(latest, int(row.at.timestamp() * 1000))
        self.count.update((n,))
        self.recent.put(last[-3:])
        timers = sorted(self.handle.listTimers())
        for timer in timers:
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(latest + 600_000)
        kept = str([v for (v,) in self.recent.get()])
        groups = str(sorted((g, c) for (g,), (c,) in self.groups.iterator()))
        yield Row(k=key[0], n=n, recent=kept, groups=groups, timers=str(timers))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(
            k=key[0],
            n=-1,
            recent="",
            groups="",
            timers=str(expiredTimerInfo.getExpiryTimeInMs()),
        )

    def close(self) -> None:
        pass


OUTPUT = "k string, n long, recent string, groups string, timers string"


@pytest.mark.stress
def test_transform_with_state(moving: Moving, spark: SparkSession) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set(provider, rocksdb)
    try:
        df = moving.events().na.drop(subset=["v"]).withWatermark("at", "10 seconds")
        arguments = (Visits(), OUTPUT, "Append", "EventTime")
        spark_side = df.groupBy("k").transformWithState(*arguments)
        stream = mr.transform_with_state(df.groupBy("k"), *arguments, name="visits")
        moving.compare(spark_side, "append", stream)
    finally:
        spark.conf.unset(provider)


def test_what_does_not_fit(moving: Moving, tmp_path: Path) -> None:
    df = moving.events()
    keyed = mr.stream(df).key_by("k")
    stream = keyed.aggregate(n=mr.count(), s=mr.sum("v"), name="totals")
    with pytest.raises(SparkStateError, match="no commits"):
        mr.import_spark(str(tmp_path / "nothing"), stream, moving.location)
    moving.arrive(0)
    moving.by_spark(df.groupBy("k").agg(F.count("*"), F.sum("v")), "update")
    wrong = {
        "in the order of Spark's agg": keyed.aggregate(s=mr.sum("v"), n=mr.count(), name="totals"),
        r"\(sum\) is left": keyed.aggregate(n=mr.count(), name="totals"),
        "Key the stream by the same": mr.stream(df).key_by("g").aggregate(n=mr.count()),
        "only continue transformWithState or dropDuplicates": keyed.process(Seen(), "k string"),
    }
    for why, other in wrong.items():
        with pytest.raises(SparkStateError, match=why):
            mr.import_spark(moving.checkpoint, other, moving.location)
    with pytest.raises(SparkStateError, match=r"operators=\{'totals': number\}"):
        mr.import_spark(moving.checkpoint, stream, moving.location, operators={"totals": 5})
    with pytest.raises(UsageError, match="takes the stream"):
        mr.import_spark(moving.checkpoint, df, moving.location)  # type: ignore[arg-type]
    assert not Path(moving.location).exists(), "nothing was written"
    shutil.rmtree(moving.checkpoint)
