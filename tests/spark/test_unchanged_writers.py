"""Every method of Spark's `DataStreamWriter`, through `mr.write_stream` and after `mr.enable`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.unchanged.engines import Stream, read, write_batches
from tests.stress import few

import millrace as mr
from millrace.errors import UnsupportedPlanError, UsageError

WRITE_STREAM, ENABLE = FACES = ("write_stream", "enable")

ORDERS = Stream(
    "item string, quantity int",
    [[{"item": "/", "quantity": 1}, {"item": "b", "quantity": 2}, {"item": "b", "quantity": 2}]],
)
WRITTEN = [("/", 1), ("b", 2)]


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    folder = tmp_path_factory.mktemp("orders") / "in"
    write_batches(folder, ORDERS)
    return read(spark, folder, ORDERS)


@pytest.fixture
def once(orders: DataFrame) -> DataFrame:
    return orders.dropDuplicates()


@contextmanager
def writing(df: DataFrame, face: str, *, strict: bool = False) -> Iterator[Any]:
    """A writer of a query that is to run on Millrace."""
    if face == WRITE_STREAM:
        yield mr.write_stream(df)
    else:
        with mr.enable(df.sparkSession, strict=strict):
            yield df.writeStream


def finish(query: Any) -> None:
    """Wait for the end of a query that ends by itself."""
    try:
        assert isinstance(query, mr.Query)
        query.awaitTermination()
    finally:
        query.stop()


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.select("item", "quantity").collect())


@pytest.mark.parametrize("face", few(FACES, ENABLE))
def test_to_table(face: str, spark: SparkSession, once: DataFrame, tmp_path: Path) -> None:
    table = f"orders_by_{face}"
    with writing(once, face) as writer:
        query = (
            writer.partitionBy("item")
            .queryName(table)
            .trigger(availableNow=True)
            .toTable(table, checkpointLocation=str(tmp_path / "location"))
        )
    try:
        assert query.name == table
        finish(query)
        assert rows(spark.table(table)) == WRITTEN
        columns = spark.catalog.listColumns(table)
        assert [column.name for column in columns if column.isPartition] == ["item"]
    finally:
        spark.sql(f"drop table if exists {table}")


@pytest.mark.parametrize("face", FACES)
def test_options_partitions_and_one_trigger(
    face: str, spark: SparkSession, once: DataFrame, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with writing(once, face) as writer:
        writer = writer.options(checkpointLocation=str(tmp_path / "location"), compression="none")
        writer = writer.option("path", str(out)).format("parquet").outputMode("append")
        query = writer.partitionBy("item").trigger(once=True).start()
    finish(query)
    assert rows(spark.read.parquet(str(out))) == WRITTEN
    assert sorted(each.name for each in out.iterdir() if each.is_dir()) == [
        "_spark_metadata",
        "item=%2F",
        "item=b",
    ]
    assert not list(out.rglob("*.snappy.parquet"))


@pytest.mark.parametrize("face", FACES)
def test_all_may_be_said_in_start(
    face: str, spark: SparkSession, once: DataFrame, tmp_path: Path
) -> None:
    out, location = str(tmp_path / "out"), str(tmp_path / "location")
    with writing(once.groupBy("item").count(), face) as writer:
        query = writer.trigger(availableNow=True).start(
            format="memory", outputMode="complete", queryName=f"counts_by_{face}"
        )
    finish(query)
    assert sorted(tuple(row) for row in spark.table(f"counts_by_{face}").collect()) == [
        ("/", 1),
        ("b", 1),
    ]
    with writing(once, face) as writer:
        query = writer.trigger(availableNow=True).start(
            out, format="json", partitionBy=["item"], checkpointLocation=location
        )
    finish(query)
    assert rows(spark.read.json(out)) == WRITTEN


class Notes:
    """Writes a file for each row, if `open` and `close` are called around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open_rows: list[Row] = []

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.open_rows = []
        return True

    def process(self, row: Row) -> None:
        self.open_rows.append(row)

    def close(self, error: Exception | None) -> None:
        for row in self.open_rows:
            note(self.folder, row)


def note(folder: Path, row: Row) -> None:
    (folder / f"{row.quantity}.txt").write_text(row.item)


@pytest.mark.parametrize(
    ("face", "kind"),
    few(
        [(face, kind) for face in FACES for kind in ("function", "object")],
        (WRITE_STREAM, "object"),
        (ENABLE, "function"),
    ),
)
def test_foreach(face: str, kind: str, once: DataFrame, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    each: Any = Notes(notes) if kind == "object" else lambda row: note(notes, row)
    with writing(once, face) as writer:
        query = writer.foreach(each).trigger(availableNow=True).start()
    finish(query)
    found = sorted((file.read_text(), int(file.stem)) for file in notes.iterdir())
    assert found == WRITTEN


@pytest.mark.parametrize("face", few(FACES, WRITE_STREAM))
def test_foreach_batch(face: str, once: DataFrame) -> None:
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def keep(df: DataFrame, batch_id: int) -> None:
        batches[batch_id] = rows(df)

    with writing(once, face) as writer:
        query = writer.foreachBatch(keep).trigger(availableNow=True).start()
    finish(query)
    assert batches == {0: WRITTEN}


@pytest.mark.parametrize("face", FACES)
def test_a_trigger_of_processing_time(face: str, spark: SparkSession, once: DataFrame) -> None:
    name = f"often_by_{face}"
    with writing(once, face) as writer:
        writer = writer.format("memory").queryName(name).trigger(processingTime="100 milliseconds")
        query = writer.start()
    try:
        assert isinstance(query, mr.Query)
        query.processAllAvailable()
        assert rows(spark.table(name)) == WRITTEN
        assert query.isActive
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("trigger", "named"),
    [
        ({"continuous": "1 second"}, "the continuous trigger"),
        ({"realTime": "5 seconds"}, "the real-time trigger"),
    ],
)
def test_other_triggers_are_refused_by_name(
    trigger: dict[str, str],
    named: str,
    once: DataFrame,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    location = tmp_path / "location"
    for face in FACES:
        with writing(once, face, strict=True) as writer:
            writer = writer.format("console").trigger(**trigger)
            with pytest.raises(UnsupportedPlanError, match=f"{named}.*Use trigger.processingTime"):
                writer.start(checkpointLocation=str(location))
    assert not location.exists()
    with (
        caplog.at_level(logging.WARNING, "millrace"),
        writing(once, ENABLE) as writer,
        # Spark's own engine has no duplicates with these triggers either.
        pytest.raises((AnalysisException, IllegalArgumentException)),
    ):
        writer.format("console").trigger(**trigger).start(checkpointLocation=str(location))
    (line,) = [r.getMessage() for r in caplog.records if "own engine" in r.getMessage()]
    assert named in line


def test_a_query_without_a_location(once: DataFrame) -> None:
    with pytest.raises(UsageError, match="checkpointLocation"):
        mr.write_stream(once).format("parquet").start("/nowhere")
    with pytest.raises(UsageError, match="checkpointLocation"):
        mr.write_stream(once).toTable("nowhere")
    assert not once.sparkSession.catalog.tableExists("nowhere")
    with (
        writing(once, ENABLE) as writer,
        pytest.raises(AnalysisException, match="checkpointLocation"),
    ):
        writer.format("parquet").start("/nowhere")


def test_a_path_that_is_given_twice(once: DataFrame, tmp_path: Path) -> None:
    def start(writer: Any) -> None:
        writer = writer.format("parquet").option("path", str(tmp_path / "one"))
        writer.start(str(tmp_path / "two"), checkpointLocation=str(tmp_path / "location"))

    with pytest.raises(UsageError, match="twice"):
        start(mr.write_stream(once))
    with writing(once, ENABLE) as writer, pytest.raises(AnalysisException, match="path"):
        start(writer)
    assert list(tmp_path.iterdir()) == []


def test_a_query_without_state(
    spark: SparkSession, orders: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    location = str(tmp_path / "location")
    with pytest.raises(UnsupportedPlanError, match="no stateful node"):
        mr.write_stream(orders).toTable("stateless", checkpointLocation=location)
    with pytest.raises(UnsupportedPlanError, match="no stateful node"):
        mr.write_stream(orders).format("noop").start(checkpointLocation=location)
    assert not Path(location).exists()
    with caplog.at_level(logging.WARNING, "millrace"), writing(orders, ENABLE) as writer:
        query = writer.trigger(availableNow=True).toTable("stateless", checkpointLocation=location)
    try:
        query.awaitTermination()
        assert not isinstance(query, mr.Query)
        assert rows(spark.table("stateless")) == [("/", 1), ("b", 2), ("b", 2)]
        assert "own engine" not in caplog.text
    finally:
        spark.sql("drop table if exists stateless")
