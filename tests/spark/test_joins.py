"""Joins beside Spark's own stream-stream joins: the same files, batch by batch; and in graphs."""

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
from millrace.api.writer import branches
from millrace.errors import (
    DuplicateNameError,
    EventTimeError,
    JoinError,
    UnhashableKeyError,
    UnknownColumnError,
    UnknownOutputError,
    UsageError,
)
from millrace.spark.pipeline import Pipeline

FILES = 5
START = dt.datetime(2024, 3, 10, 6, 50, tzinfo=dt.UTC)
CLICKS = "ad string, at timestamp, user int"
SHOWS = "ad string, time timestamp, place int"

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
INTERVALS = [("-5 minutes", "0 seconds"), ("-1 minute", "3 minutes"), ("2 minutes", "4 minutes")]

DELAYS = ("4 minutes 1 second", "2 minutes 3 seconds")
"""No row is at the watermark itself, where Spark keeps it for an epoch more."""


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def fill(folder: support.Folder, seed: int) -> None:
    """Files whose rows are mostly later than those before, and some late.

    All have a key and a time: others cannot have a partner and come out at once, while Spark keeps
    the former until the watermark passes them, and the latter forever. Rows are in time or late:
    one that the watermark passes in the epoch in which it comes finds its partners here, and in
    Spark not those of the same batch.
    """
    chance = random.Random(seed)
    for number in range(FILES):
        rows: list[tuple[Any, ...]] = []
        for count in range(25):
            minutes = number * 6 + chance.random() * 5
            if chance.random() < 0.15:
                minutes -= 30 if number > 1 and chance.random() < 0.3 else chance.random() * 2
            # Whole seconds, so that some rows are at the very ends of an interval.
            time = at(int(minutes * 6) / 6)
            rows.append((chance.choice("abcdef"), time, 100 * number + count))
        folder.drop(rows)


def folders(path: Path, seed: int) -> tuple[support.Folder, support.Folder]:
    clicks = support.Folder(path / "clicks", CLICKS)
    shows = support.Folder(path / "shows", SHOWS)
    fill(clicks, seed)
    fill(shows, seed + 100)
    return clicks, shows


def one_by_one(folder: support.Folder, spark: SparkSession) -> DataFrame:
    return folder.stream(spark, maxFilesPerTrigger="1").select(*folder.columns)


def listed(outputs: support.Outputs) -> list[list[tuple[Any, ...]]]:
    """What each batch of a file emitted; then all that came without one."""
    batches = [
        sorted((tuple(row.values()) for row in outputs[n].to_pylist()), key=repr)
        for n in sorted(outputs)
    ]
    rest = [row for rows in batches[FILES:] for row in rows]
    return [*batches[:FILES], sorted(rest, key=repr)]


def spark_side(df: DataFrame, path: Path) -> list[list[tuple[Any, ...]]]:
    outputs: support.Outputs = {}
    query = (
        df.writeStream.outputMode("append")
        .foreachBatch(support.record(outputs))
        .option("checkpointLocation", str(path))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return listed(outputs)


def run(stream: mr.Stream, location: Path) -> list[list[tuple[Any, ...]]]:
    outputs: support.Outputs = {}
    query = stream.for_each_batch(support.record(outputs)).start(str(location), parallelism=2)
    try:
        query.process_all_available()
    finally:
        query.stop()
    return listed(outputs)


def spark_join(clicks: DataFrame, shows: DataFrame, within: tuple[str, str], how: str) -> DataFrame:
    """Spark's join with the same columns; an anti join is what a left one finds no partner for."""
    left = clicks.withWatermark("at", DELAYS[0])
    right = shows.withColumnRenamed("ad", "shown").withWatermark("time", DELAYS[1])
    lower, upper = within
    near = f"time >= at + interval {lower} and time <= at + interval {upper}"
    condition = F.expr(f"ad = shown and {near}")
    kinds = {"left": "leftOuter", "right": "rightOuter", "full": "fullOuter", "semi": "leftSemi"}
    joined = left.join(right, condition, kinds.get("left" if how == "anti" else how, how))
    if how == "semi":
        return joined.select("ad", "at", "user")
    if how == "anti":
        return joined.where("place is null").select("ad", "at", "user")
    return joined.select(F.coalesce("ad", "shown").alias("ad"), "at", "user", "time", "place")


def streams(
    clicks: support.Folder, shows: support.Folder, spark: SparkSession
) -> tuple[mr.Stream, mr.Stream]:
    return (
        mr.stream(one_by_one(clicks, spark), event_time="at", watermark=DELAYS[0]),
        mr.stream(one_by_one(shows, spark), event_time="time", watermark=DELAYS[1]),
    )


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    few_partitions = spark.newSession()
    few_partitions.conf.set("spark.sql.shuffle.partitions", "2")
    return few_partitions


@pytest.mark.parametrize(
    ("how", "within"),
    few(
        [(how, within) for how in HOWS for within in INTERVALS],
        ("full", INTERVALS[0]),
    ),
)
def test_joins_are_those_of_spark(
    session: SparkSession, tmp_path: Path, how: str, within: tuple[str, str]
) -> None:
    spark = session
    clicks, shows = folders(tmp_path, seed=HOWS.index(how))
    theirs = spark_join(one_by_one(clicks, spark), one_by_one(shows, spark), within, how)
    expected = spark_side(theirs, tmp_path / "spark")
    left, right = streams(clicks, shows, spark)
    ours = left.join(right, on="ad", within=within, how=how)
    assert [f.simpleString() for f in ours.schema] == [f.simpleString() for f in theirs.schema]
    assert run(ours, tmp_path / "location") == expected
    assert sum(map(len, expected)) > 4, "nothing was compared"


@pytest.mark.stress
def test_a_join_of_windowed_streams_is_that_of_spark(session: SparkSession, tmp_path: Path) -> None:
    """On the key and the window: no further bound is needed."""
    spark = session
    clicks, shows = folders(tmp_path, seed=20)

    def counted(df: DataFrame, time: str, delay: str) -> DataFrame:
        groups = df.withWatermark(time, delay).groupBy("ad", F.window(time, "5 minutes"))
        return groups.agg(F.count(F.lit(1)).alias(time))

    left, right = one_by_one(clicks, spark), one_by_one(shows, spark)
    theirs = counted(left, "at", "4 minutes").join(
        counted(right, "time", "2 minutes"), ["ad", "window"], "leftOuter"
    )
    expected = spark_side(theirs, tmp_path / "spark")
    first, second = streams(clicks, shows, spark)
    per_ad = [
        stream.key_by("ad").window("5 minutes").aggregate(**{name: mr.count()}, name=f"per-{name}")
        for stream, name in ((first, "at"), (second, "time"))
    ]
    ours = per_ad[0].join(per_ad[1], on=["ad", "window"], how="left", name="both")
    assert ours.schema.names == ["ad", "window", "at", "time"]
    found = run(ours, tmp_path / "location")
    every = [sorted((row for rows in of for row in rows), key=repr) for of in (found, expected)]
    assert every[0] == every[1]
    assert len(every[0]) > 10


@pytest.mark.stress
def test_a_join_through_a_restart_and_a_rescale(spark: SparkSession, tmp_path: Path) -> None:
    """What is joined is what one batch over all rows joins, as long as none is late."""
    clicks = support.Folder(tmp_path / "clicks", CLICKS)
    shows = support.Folder(tmp_path / "shows", SHOWS)
    chance = random.Random(3)
    outputs: support.Outputs = {}
    late: support.Outputs = {}
    location = str(tmp_path / "location")

    def drop(number: int) -> None:
        for folder in (clicks, shows):
            times = [at(number * 5 + chance.randint(0, 20) / 4) for _ in range(20)]
            folder.drop([(chance.choice("abc"), t, chance.randint(0, 999)) for t in times])

    for start, parallelism in enumerate((2, 3)):
        drop(2 * start)
        left = mr.stream(
            clicks.stream(spark).select(*clicks.columns), event_time="at", watermark="6 minutes"
        )
        right = mr.stream(
            shows.stream(spark).select(*shows.columns), event_time="time", watermark="6 minutes"
        )
        joined = left.join(right, on="ad", within=("-4 minutes", "1 minute"), name="seen")
        per_ad = joined.key_by("ad").window("10 minutes").aggregate(n=mr.count(), name="per-ad")
        query = (
            joined.for_each_batch(support.record(outputs))
            .also(
                per_ad.to("noop"),
                joined.late().for_each_batch(support.record(late)),
            )
            .start(location, parallelism=parallelism)
        )
        query.process_all_available()
        query.rescale(1 + start).wait(DEADLINE)
        drop(2 * start + 1)
        query.process_all_available()
        progress = query.progress()
        assert progress is not None
        assert list(progress["operators"]) == ["seen", "per-ad"]
        query.stop()
    found = sorted(tuple(row.values()) for t in outputs.values() for row in t.to_pylist())
    pairs = clicks.batch(spark).join(shows.batch(spark), "ad")
    pairs = pairs.where("time between at - interval 4 minutes and at + interval 1 minute")
    expected = pairs.select("ad", "at", "user", "time", "place").toArrow().to_pylist()
    assert found == sorted(tuple(row.values()) for row in expected)
    assert len(found) > 50
    assert not any(table.num_rows for table in late.values())


def test_a_diamond_joins_a_stream_with_what_came_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """Each row with the number of rows in its window: the source is read once."""
    clicks = support.Folder(tmp_path / "clicks", CLICKS)
    rows = [("a", at(1), 1), ("a", at(2), 2), ("b", at(3), 3), ("a", at(7), 4)]
    clicks.drop([*rows, ("z", at(60), 5)])
    clicks.drop([("z", at(90), 6)])
    source = mr.stream(
        one_by_one(clicks, spark).select("ad", "at", "user"),
        event_time="at",
        watermark="0 seconds",
    )
    per_ad = source.key_by("ad").window("5 minutes").aggregate(n=mr.count(), name="per-ad")
    # A window's time is its end, less a microsecond.
    joined = source.join(per_ad, on="ad", within=("0 seconds", "299999999 microseconds"))
    outputs: support.Outputs = {}
    query = joined.for_each_batch(support.record(outputs)).start(
        str(tmp_path / "location"), parallelism=2
    )
    query.process_all_available()
    query.stop()
    found = [(r["ad"], r["user"], r["n"]) for t in outputs.values() for r in t.to_pylist()]
    expected = [("a", 1, 2), ("a", 2, 2), ("b", 3, 1), ("a", 4, 1), ("z", 5, 1)]
    assert sorted(r for r in found if r[1] < 6) == sorted(expected)


@pytest.mark.stress
def test_a_join_of_a_stream_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    clicks = support.Folder(tmp_path / "clicks", CLICKS)
    clicks.drop([("a", at(0), 1), ("a", at(2), 2), ("b", at(2), 3)])
    clicks.drop([("a", at(3), 4)])
    source = mr.stream(one_by_one(clicks, spark), event_time="at", watermark="9 minutes")
    joined = source.join(
        source, on="ad", within=("1 second", "2 minutes"), suffixes=("", "_next"), name="next"
    )
    assert joined.schema.names == ["ad", "at", "user", "at_next", "user_next"]
    found = [row for rows in run(joined, tmp_path / "location") for row in rows]
    assert sorted((row[2], row[4]) for row in found) == [(1, 2), (2, 4)]


def test_bad_joins(spark: SparkSession, tmp_path: Path) -> None:
    clicks = support.Folder(tmp_path / "clicks", CLICKS)
    shows = support.Folder(tmp_path / "shows", SHOWS)
    left, right = streams(clicks, shows, spark)
    near = ("-1 hour", "0 seconds")
    with pytest.raises(JoinError, match=r"needs within=.*within=\('-1 hour', '0 seconds'\)"):
        left.join(right, on="ad")
    with pytest.raises(JoinError, match="one of 'inner', 'left', 'right', 'full', 'semi', 'anti'"):
        left.join(right, on="ad", within=near, how="outer")
    with pytest.raises(JoinError, match="Swap them"):
        left.join(right, on="ad", within=("1 hour", "0 seconds"))
    with pytest.raises(JoinError, match="months and years"):
        left.join(right, on="ad", within=("-1 month", "0 seconds"))
    with pytest.raises(EventTimeError, match=r"join\(\), on the right, needs an event time"):
        left.join(mr.stream(shows.stream(spark)), on="ad", within=near)
    dropped = left.transform(lambda df: df.drop("at"))
    with pytest.raises(EventTimeError, match="on the left, needs the event time 'at', which"):
        dropped.join(right, on="ad", within=near)
    text = right.transform(lambda df: df.withColumn("time", F.col("time").cast("string")))
    with pytest.raises(EventTimeError, match="has made a string"):
        left.join(text, on="ad", within=near)
    counts = right.key_by("ad").aggregate(n=mr.count())
    with pytest.raises(EventTimeError, match="on the right, needs an event time"):
        left.join(counts, on="ad", within=near)
    early = right.key_by("ad").window("1 minute").aggregate(n=mr.count(), emit="update")
    with pytest.raises(EventTimeError, match="on the right, needs an event time"):
        left.join(early, on="ad", within=near)
    with pytest.raises(UnknownColumnError, match="no column 'user'"):
        left.join(right, on=["ad", "user"], within=near)
    number = right.transform(lambda df: df.withColumn("ad", F.lit(1)))
    with pytest.raises(JoinError, match="'ad' is of type string on the left and int"):
        left.join(number, on="ad", within=near)
    nested = [
        s.transform(lambda df: df.withColumn("m", F.create_map("ad", "ad"))) for s in (left, right)
    ]
    with pytest.raises(UnhashableKeyError):
        nested[0].join(nested[1], on="m", within=near)
    with pytest.raises(DuplicateNameError, match=r"two columns 'user'.*suffixes=\('', '_right'\)"):
        left.join(
            right.transform(lambda df: df.withColumnRenamed("place", "user")), on="ad", within=near
        )
    with pytest.raises(DuplicateNameError, match="two columns 'at_x'"):
        left.transform(lambda df: df.withColumn("at_x", F.lit(1))).join(
            left, on="ad", within=near, suffixes=("_x", "_y")
        )
    with pytest.raises(JoinError, match="give two texts"):
        left.join(right, on="ad", within=near, suffixes="_x")  # type: ignore[arg-type]
    with pytest.raises(DuplicateNameError, match="names a column twice"):
        left.join(right, on=["ad", "ad"], within=near)
    for on in (F.col("ad"), [], [1]):
        with pytest.raises(JoinError, match="Give the name of a column"):
            left.join(right, on=on, within=near)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"join\(\) takes a stream, not KeyedStream"):
        left.join(right.key_by("ad"), on="ad", within=near)  # type: ignore[arg-type]
    joined = left.join(right, on="ad", within=near, name="j")
    with pytest.raises(DuplicateNameError, match="two operators are called 'j'"):
        joined.join(right, on="ad", within=near, name="j", suffixes=("", "_2"))
    with pytest.raises(UsageError, match="two Spark sessions"):
        left.join(streams(clicks, shows, spark.newSession())[1], on="ad", within=near)
    # A full join's rows may be of either stream, so they have no event time.
    full = left.join(right, on="ad", within=near, how="full")
    windows = left.key_by("ad").window("1 minute").aggregate(n=mr.count())
    with pytest.raises(EventTimeError, match="this stream has none"):
        full.key_by("ad").window("1 minute")
    with pytest.raises(UnknownOutputError, match="'right' is the second stream of a join"):
        windows.late("right")
    assert left.join(right, on="ad", within=near, how="right").key_by("ad").window("1 minute")


class Counting(mr.Processor):
    """How many rows a key has had; a timer for each must be in the future."""

    rows = mr.Value("long", default=0)
    due = mr.EventTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        self.rows.set(self.rows.get() + len(rows))
        for row in rows:
            self.due.set(row.at + dt.timedelta(microseconds=1), label=str(row.shares))

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> None:
        assert timer.label


@pytest.mark.stress
def test_as_of_is_the_newest_at_a_time_through_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And a processor behind it gets all rows, which come just as the watermark reaches them."""
    trades = support.Folder(tmp_path / "trades", "symbol string, at timestamp, shares int")
    quotes = support.Folder(tmp_path / "quotes", "symbol string, quoted timestamp, price int")
    chance = random.Random(4)
    outputs: support.Outputs = {}
    location = str(tmp_path / "location")
    for epoch, parallelism in enumerate((2, 3, 1)):
        for folder in (trades, quotes):
            # A row may be five minutes behind the newest, and none of these is late.
            times = [at(epoch * 4 + chance.randint(0, 16) / 4) for _ in range(15)]
            rows = [(chance.choice("abc"), t, 100 * epoch + n) for n, t in enumerate(times)]
            folder.drop(rows)
        left = mr.stream(
            trades.stream(spark).select(*trades.columns), event_time="at", watermark="9 minutes"
        )
        right = mr.stream(
            quotes.stream(spark).select(*quotes.columns), event_time="quoted", watermark="9 minutes"
        )
        priced = left.as_of(right, on="symbol", tolerance="2 minutes", name="priced")
        counted = priced.key_by("symbol").process(Counting(), "symbol string", name="counted")
        writer = priced.for_each_batch(support.record(outputs)).also(counted.to("noop"))
        query = writer.start(location, parallelism=parallelism)
        query.process_all_available()
        query.stop()
    for folder in (trades, quotes):
        folder.drop([("z", at(600), 0)])
    query = writer.start(location, parallelism=2)
    query.process_all_available()
    counts = query.sql("select sum(rows) as rows from counted where symbol <> 'z'").to_pylist()
    query.stop()
    assert counts == [{"rows": 45}]
    every = [row for table in outputs.values() for row in table.to_pylist()]
    found = sorted((r["symbol"], r["shares"], r["price"]) for r in every if r["symbol"] != "z")
    newest = {}
    for quote in quotes.batch(spark).toArrow().to_pylist():
        newest.setdefault(quote["symbol"], []).append(
            (quote["quoted"], quote["_seq"], quote["price"])
        )
    expected = []
    for trade in trades.batch(spark).where("symbol <> 'z'").toArrow().to_pylist():
        oldest = trade["at"] - dt.timedelta(minutes=2)
        fit = [q for q in newest.get(trade["symbol"], []) if oldest <= q[0] <= trade["at"]]
        price = max(fit)[2] if fit else None
        expected.append((trade["symbol"], trade["shares"], price))
    assert found == sorted(expected, key=lambda row: row[:2])
    assert len(found) == 45


def test_a_lookup_finds_the_newest_row_and_its_state_is_one_row_per_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = support.Folder(tmp_path / "orders", "customer string, amount int")
    customers = support.Folder(tmp_path / "customers", "customer string, name string")
    outputs: dict[str, support.Outputs] = {"lookup": {}, "latest": {}}
    location = str(tmp_path / "location")
    epochs: list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
        ([("A", 1), ("b", 2)], [("a", "Ann")]),
        ([("a", 3), ("b", 4), (None, 5)], [("A", "Anna"), ("b", "Bob"), (None, "none")]),
        ([("a", 6)], []),
    ]
    for number, (ordered, changed) in enumerate(epochs):
        orders.drop(ordered)
        if changed:
            customers.drop(changed)
        left = mr.stream(
            orders.stream(spark).select(F.lower("customer").alias("customer"), "amount")
        )
        right = mr.stream(customers.stream(spark).select("customer", "name"))
        newest = right.key_by(F.lower("customer").alias("customer")).latest()
        enriched = left.lookup(newest, on="customer", name="enriched")
        assert enriched.schema.names == ["customer", "amount", "name"]
        writer = enriched.for_each_batch(support.record(outputs["lookup"]))
        if number == 0:
            assert [op.name for op in Pipeline(branches(writer).paths).operators] == ["enriched"]
        writer = writer.also(newest.for_each_batch(support.record(outputs["latest"])))
        query = writer.start(location, parallelism=1 + number)
        query.process_all_available()
        query.stop()
    found = [
        sorted(map(tuple, map(dict.values, t.to_pylist())), key=repr)
        for t in outputs["lookup"].values()
    ]
    assert found == [
        [("a", 1, "Ann"), ("b", 2, None)],
        sorted([("a", 3, "Anna"), ("b", 4, "Bob"), (None, 5, None)], key=repr),
        [("a", 6, "Anna")],
    ]
    emitted = [r["name"] for t in outputs["latest"].values() for r in t.to_pylist()]
    assert sorted(emitted) == ["Ann", "Anna", "Bob", "none"]
    kept = mr.open(location).to_arrow("enriched").to_pylist()
    assert {"customer": "a", "name": "Anna"} in kept


def test_latest_is_by_event_time_where_there_is_one(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "k string, at timestamp, v int")
    stream = mr.stream(
        folder.stream(spark).select(*folder.columns), event_time="at", watermark="1 day"
    )
    query = (
        stream.key_by("k")
        .latest(name="newest")
        .to("noop")
        .start(str(tmp_path / "location"), parallelism=2)
    )
    folder.drop([("a", at(5), 1), ("a", at(3), 2), ("b", None, 3), ("c", at(1), 4)])
    query.process_all_available()
    folder.drop([("a", at(4), 5), ("b", at(0), None), ("c", None, 6), ("c", at(1), 7)])
    query.process_all_available()
    query.stop()
    found = support.by_key(mr.open(str(tmp_path / "location")).to_arrow("newest"), ["k"], "")
    assert {key[0]: row["v"] for key, row in found.items()} == {"a": 1, "b": None, "c": 7}
    assert found["a",]["at"] == at(5)


def test_bad_as_ofs_and_lookups(spark: SparkSession, tmp_path: Path) -> None:
    clicks = support.Folder(tmp_path / "clicks", CLICKS)
    shows = support.Folder(tmp_path / "shows", SHOWS)
    left, right = streams(clicks, shows, spark)
    with pytest.raises(JoinError, match="cannot be negative"):
        left.as_of(right, on="ad", tolerance="-1 second")
    with pytest.raises(EventTimeError, match=r"as_of\(\), on the right, needs an event time"):
        left.as_of(mr.stream(shows.stream(spark)), on="ad")
    with pytest.raises(UsageError, match=r"as_of\(\) takes a stream, not DataFrame"):
        left.as_of(shows.stream(spark), on="ad")  # type: ignore[arg-type]
    newest = right.key_by("ad").latest()
    for other in (right, right.key_by("ad"), newest.transform(lambda df: df)):
        with pytest.raises(JoinError, match=r"key_by\('customer'\).latest\(\)"):
            left.lookup(other, on="ad")  # type: ignore[arg-type]
    with pytest.raises(JoinError, match=r"newest row per ad.*key_by\('user'\).latest\(\)"):
        left.lookup(newest, on="user")
    with pytest.raises(JoinError, match="one of 'left', 'inner'"):
        left.lookup(newest, on="ad", how="anti")
    with pytest.raises(UsageError, match="none but the key"):
        right.transform(lambda df: df.select("ad")).key_by("ad").latest()
    assert left.lookup(newest, on="ad").key_by("ad").window("1 minute")
    assert left.as_of(right, on="ad").key_by("ad").window("1 minute")
