"""`top` beside Spark's own `row_number` over all rows, per key, window and session."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from tests.spark import support
from tests.stress import few

import millrace as mr
from millrace import errors

START = dt.datetime(2024, 3, 10, 6, 50, tzinfo=dt.UTC)
SCHEMA = "shop string, at timestamp, item string, amount double"


def fill(folder: support.Folder, seed: int, epochs: int = 3) -> None:
    chance = random.Random(seed)
    for number in range(epochs):
        rows: list[tuple[Any, ...]] = []
        for _ in range(60):
            at = START + dt.timedelta(minutes=number * 7 + chance.random() * 7)
            amount = chance.choice([None, float("nan"), *map(float, range(12))])
            item = chance.choice([None, *"abcdefghij"])
            rows.append((chance.choice([None, "a", "b", "c"]), at, item, amount))
        folder.drop(rows, files=2)


def ranked(df: DataFrame, k: int, *groups: str) -> list[tuple[Any, ...]]:
    """Spark's answer: larger items first among equal amounts."""
    order = Window.partitionBy(*groups).orderBy(F.desc("amount"), F.desc("item"))
    rows = df.where("amount is not null").withColumn("rank", F.row_number().over(order))
    found = rows.where(F.col("rank") <= k).select(*groups, "rank", "amount", "item")
    return sorted(map(plain, found.collect()), key=repr)


def plain(row: Any) -> tuple[Any, ...]:
    values = row.values() if isinstance(row, dict) else row
    return tuple("nan" if v != v else v for v in map(bounds, values))


def bounds(value: Any) -> Any:
    """A window as its start, in UTC."""
    if isinstance(value, dict) or hasattr(value, "start"):
        value = value["start"]
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def test_the_top_of_a_key_is_that_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    location = str(tmp_path / "location")
    tables: dict[tuple[Any, int], tuple[Any, ...]] = {}
    for parallelism in (2, 3):
        fill(folder, seed=parallelism)
        outputs: support.Outputs = {}
        best = (
            mr.stream(folder.stream(spark))
            .key_by("shop")
            .top(4, F.col("amount"), "item", name="best")
        )
        assert best.schema.names == ["shop", "rank", "amount", "item"]
        query = best.for_each_batch(support.record(outputs)).start(
            location, parallelism=parallelism
        )
        try:
            query.process_all_available()
            # Nothing that comes now is among the best of a key.
            folder.drop([("a", START, "a", -1.0), ("b", START, None, None)])
            query.process_all_available()
        finally:
            query.stop()
        # A row of a key and rank replaces the one before.
        for number in sorted(outputs):
            for row in outputs[number].to_pylist():
                tables[row["shop"], row["rank"]] = plain(row)
        expected = ranked(folder.batch(spark), 4, "shop")
        assert sorted(tables.values(), key=repr) == expected
        assert outputs[max(outputs)].num_rows == 0
    # The same state, of which nothing comes out.
    folder.drop([("new", START, "z", 99.0)])
    silent: support.Outputs = {}
    best = (
        mr.stream(folder.stream(spark))
        .key_by("shop")
        .top(4, F.col("amount"), "item", name="best", emit="none")
    )
    query = best.for_each_batch(support.record(silent)).start(location)
    query.process_all_available()
    query.stop()
    assert [table.num_rows for table in silent.values()] == [0]
    with mr.open(location) as state:
        arrays = {row["shop"]: row["top"] for row in state.to_arrow().to_pylist()}
        assert {shop: len(rows) for shop, rows in arrays.items()} == dict.fromkeys(
            [None, "a", "b", "c"], 4
        ) | {"new": 1}
        assert arrays["new"] == [{"amount": 99.0, "item": "z"}]


@pytest.mark.parametrize("kind", few(["window", "session"], "window"))
def test_the_top_of_a_window_or_session(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    fill(folder, seed=9)
    folder.drop([("end", START + dt.timedelta(days=1), "", 0.0)])
    keyed = mr.stream(
        folder.stream(spark, maxFilesPerTrigger="2"), event_time="at", watermark="1 hour"
    ).key_by("shop")
    if kind == "window":
        best = keyed.window("5 minutes").top(3, "amount", "item", name="best")
        column = F.window("at", "5 minutes")
    else:
        best = keyed.session("20 seconds").top(3, "amount", "item", name="best")
        column = F.session_window("at", "20 seconds")
    outputs: support.Outputs = {}
    query = best.for_each_batch(support.record(outputs)).start(
        str(tmp_path / "location"), parallelism=2
    )
    try:
        query.process_all_available()
    finally:
        query.stop()
    emitted = [plain(row) for table in outputs.values() for row in table.to_pylist()]
    batch = folder.batch(spark).where("shop is null or shop <> 'end'")
    if kind == "window":
        expected = ranked(batch.withColumn("window", column), 3, "shop", "window")
    else:
        sold = F.collect_list(F.struct("amount", "item")).alias("r")
        grouped = batch.groupBy("shop", column).agg(sold)
        rows = grouped.select("shop", "session_window", F.explode("r").alias("r"))
        rows = rows.select("shop", "session_window", "r.amount", "r.item")
        expected = ranked(rows, 3, "shop", "session_window")
    assert sorted(emitted, key=repr) == expected
    assert len(expected) > 20
    assert best.late().schema.names[:2] == ["shop", "at"]


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "shop string, rank int, m map<string,int>, v int")
    keyed = mr.stream(folder.stream(spark)).key_by("shop")
    for k in (0, -1, 10_001, 2.5, "3"):
        with pytest.raises(errors.AggregateParameterError, match=r"top\(k="):
            keyed.top(k, "v", "v")  # type: ignore[arg-type]
    with pytest.raises(errors.UnknownColumnError, match="'nope'"):
        keyed.top(3, "nope")
    with pytest.raises(errors.UnknownColumnError, match="'nope'"):
        keyed.top(3, "v", "nope")
    with pytest.raises(errors.UnsupportedTypeError, match="map<string,int>"):
        keyed.top(3, "m", "v")
    with pytest.raises(errors.UnsupportedTypeError, match="map<string,int>"):
        keyed.top(3, "v", "m")
    with pytest.raises(errors.DuplicateNameError, match="two columns called 'rank'"):
        keyed.top(3, "v", "rank")
    with pytest.raises(errors.DuplicateNameError, match="two columns called 'shop'"):
        keyed.top(3, "v", "shop")
    with pytest.raises(errors.DuplicateNameError, match="names the column 'v' twice"):
        keyed.aggregate(best=mr.top(3, "v", "v"))
