"""State as Spark tables: right rows, one epoch, partitions by key group, filters, change feeds."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millrace as mr


class Visits(mr.Processor):
    """Counts visits, and remembers pages and the times of the last ones."""

    total = mr.Value("long")
    pages = mr.Map("string", "long")
    recent = mr.List("long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.total.set((self.total.get() or 0) + 1)
            self.pages[row.page] = self.pages.get(row.page, 0) + 1
            self.recent.append(row.v)
        if key.user == "u-3" and self.total.get() > 3:
            self.total.clear()
            self.pages.clear()
            self.recent.clear()
        yield key.user, self.total.get()


@pytest.fixture(scope="module")
def location(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two operators after three epochs."""
    folder = tmp_path_factory.mktemp("tables")
    inbox = folder / "inbox"
    inbox.mkdir()
    events = spark.readStream.schema("user string, page string, v bigint").json(str(inbox))
    source = mr.stream(events)
    totals = source.key_by("user", "page").aggregate(n=mr.count(), s=mr.sum("v"), name="totals")
    visits = source.key_by("user").process(Visits(), "user string, total long", name="visits")
    branches = totals.to("noop").also(visits.to("noop"))
    for number in range(3):
        rows = [
            {"user": f"u-{(i * 7 + number) % 5}", "page": f"p-{i % 3}", "v": i + number}
            for i in range(12)
        ]
        (inbox / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        place = str(folder / "location")
        query = branches.start(place, parallelism=2, trigger="available_now", key_groups=64)
        query.await_termination()
    assert query.epoch == 3
    return str(folder / "location")


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    found = [tuple(row) for row in df.collect()]
    return sorted(found, key=repr)


def stated(location: str, operator: str, epoch: int | None = None, **options: Any) -> Any:
    with mr.open(location, epoch=epoch) as reader:
        table = reader.to_arrow(operator, **options)
    return sorted((tuple(r.values()) for r in table.to_pylist(maps_as_pydicts="strict")), key=repr)


def read(spark: SparkSession, location: str, **options: Any) -> DataFrame:
    return spark.read.format("millrace").options(**options).load(location)


def test_all_rows_of_an_operator(spark: SparkSession, location: str) -> None:
    df = read(spark, location, operator="totals")
    assert df.columns == ["user", "page", "n", "s"]
    assert rows(df) == stated(location, "totals")
    assert df.rdd.getNumPartitions() == 2
    finer = read(spark, location, operator="totals", numPartitions=7)
    assert finer.rdd.getNumPartitions() == 7
    assert rows(finer) == rows(df)
    by_spark = df.groupBy("user").agg(F.sum("n")).collect()
    assert sum(row[1] for row in by_spark) == 36


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_earlier_epoch(spark: SparkSession, location: str, epoch: int) -> None:
    wanted = stated(location, "totals", epoch)
    assert rows(read(spark, location, operator="totals", epoch=epoch)) == wanted
    assert rows(read(spark, location, operator="totals", batchId=epoch - 1)) == wanted


def test_collections(spark: SparkSession, location: str) -> None:
    pages = read(spark, location, operator="visits", stateVarName="pages")
    assert pages.columns == ["user", "key", "value"]
    assert rows(pages) == stated(location, "visits", state="pages")
    whole = read(spark, location, operator="visits").where("user = 'u-1'").collect()[0]
    assert whole.pages == dict(rows(pages.where("user = 'u-1'").select("key", "value")))


def test_filters(spark: SparkSession, location: str) -> None:
    df = read(spark, location, operator="totals")
    every = rows(df)
    for condition in ("user = 'u-1' and page = 'p-2'", "user in ('u-0', 'u-4') and page = 'p-0'"):
        pushed = read(spark, location, operator="totals", pushFilters=True).where(condition)
        assert rows(df.where(condition)) == rows(pushed) != []
    assert df.where("user = 'nobody' and page = 'p-0'").count() == 0
    assert rows(df) == every, "a filter is not there for good"


def replayed(feed: list[Any], keys: int) -> dict[Any, Any]:
    """What a change feed amounts to."""
    state: dict[Any, Any] = {}
    for row in sorted(feed, key=lambda row: row["_epoch"]):
        values = [v for name, v in row.asDict().items() if not name.startswith("_")]
        if row["_change"] == "delete":
            state.pop(tuple(values[:keys]), None)
        else:
            state[tuple(values[:keys])] = tuple(values[keys:])
    return state


def test_a_change_feed_amounts_to_the_state(spark: SparkSession, location: str) -> None:
    options = {"operator": "totals", "readChangeFeed": "true"}
    feed = read(spark, location, **options, changeStartBatchId=0).collect()
    assert {row["_epoch"] for row in feed} == {1, 2, 3}
    wanted = {row[:2]: row[2:] for row in stated(location, "totals")}
    assert replayed(feed, 2) == wanted
    part = read(spark, location, **options, changeStartBatchId=1, changeEndBatchId=1).collect()
    assert {row["_epoch"] for row in part} == {2}
    gone = read(
        spark, location, operator="visits", readChangeFeed="true", changeStartBatchId=0
    ).collect()
    assert "delete" in {row["_change"] for row in gone}
    assert replayed(gone, 1) == {
        (row[0],): (row[1],) for row in stated(location, "visits", columns=["user", "total"])
    }


def test_a_stream_of_changes(spark: SparkSession, location: str, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("millrace")
        .options(operator="totals", readChangeFeed="true", maxEpochsPerTrigger=1)
        .load(location)
    )
    collected: list[Any] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        collected.extend(df.collect())

    def run(source: DataFrame) -> None:
        writer = source.writeStream.foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run(stream)
    assert replayed(collected, 2) == {row[:2]: row[2:] for row in stated(location, "totals")}
    seen = len(collected)
    run(stream)
    assert len(collected) == seen, "nothing new"


BAD = [
    ({"operator": "nothing"}, "there is no operator 'nothing'"),
    ({"operator": "visits", "readRegisteredTimers": "true"}, "no collection 'timers'"),
    ({"operator": "totals", "readChangeFeed": "true"}, "changeStartBatchId"),
]


@pytest.mark.parametrize(("options", "why"), BAD, ids=[why for _, why in BAD])
def test_bad_options(spark: SparkSession, location: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(PySparkException, match=why):
        read(spark, location, **options).collect()


def test_other_bad_reads(spark: SparkSession, location: str, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="is not a Millrace location"):
        read(spark, str(tmp_path)).collect()
    plain = spark.readStream.format("millrace").option("operator", "totals").load(location)
    with pytest.raises((PySparkException, StreamingQueryException), match="readChangeFeed"):
        plain.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().processAllAvailable()


def test_a_running_session_learns_the_format(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[Any] = []
    # Which session Spark takes for the active one depends on the tests before.
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: spark)
    monkeypatch.setattr("millrace.spark.tables.register", learned.append)
    importlib.reload(mr)
    assert learned == [spark]
