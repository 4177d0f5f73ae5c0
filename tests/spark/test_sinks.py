"""Sinks: every batch once, and a frame that updates state however it is used."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark import support
from tests.stress import few
from tests.targets import MakeTarget

import millrace as mr
from millrace.errors import SinkError
from millrace.spark.sinks import rows

SCHEMA = "k string, v int"
EPOCHS = [[("a", 1), ("b", 2), (None, 3)], [("a", 10)], [("b", 5), ("c", None), ("a", 1)]]
AGGREGATES = {"n": mr.count(), "total": mr.sum("v")}


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "in", SCHEMA)


def totals(spark: SparkSession, folder: support.Folder) -> mr.Stream:
    return mr.stream(folder.stream(spark)).key_by("k").aggregate(name="t", **AGGREGATES)


def feed(
    query: mr.Query, folder: support.Folder, epochs: list[list[tuple[str | None, int | None]]]
) -> None:
    for values in epochs:
        folder.drop(values)
        query.process_all_available()


def assert_exact(spark: SparkSession, folder: support.Folder, location: Path | str) -> None:
    expected = support.batch_state(folder.batch(spark), ["k"], AGGREGATES)
    support.assert_same(mr.open(str(location)).to_arrow("t"), expected, ["k"], "state")


@pytest.mark.parametrize("kind", few(["parquet", "orc", "json", "csv"], "parquet", "csv"))
def test_file_sink_has_one_directory_per_batch(
    spark: SparkSession, tmp_path: Path, folder: support.Folder, kind: str
) -> None:
    sink, location = tmp_path / "sink", str(tmp_path / "l")
    for epochs in (EPOCHS[:2], EPOCHS[2:]):
        query = totals(spark, folder).to(kind, path=str(sink)).start(location, parallelism=2)
        feed(query, folder, epochs)
        query.stop()
    assert sorted(p.name for p in sink.glob("batch_id=*")) == [f"batch_id={i}" for i in range(3)]
    schema = "k string, n bigint, total bigint"
    written = spark.read.format(kind).schema(schema + ", batch_id int").load(str(sink))
    expected = support.batch_outputs(folder.batch(spark), ["k"], AGGREGATES, 3)
    for epoch, table in expected.items():
        batch = written.where(f"batch_id = {epoch - 1}").drop("batch_id").toArrow()
        support.assert_same(batch, table, ["k"], f"{kind}, batch {epoch - 1}")
    assert_exact(spark, folder, location)


def test_memory_sink_is_a_table(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    query = (
        totals(spark, folder).to("memory", name="mill").start(str(tmp_path / "l"), parallelism=2)
    )
    feed(query, folder, EPOCHS)
    query.stop()
    tables = support.batch_outputs(folder.batch(spark), ["k"], AGGREGATES, 3)
    expected = sorted(str(row) for table in tables.values() for row in table.to_pylist())
    assert sorted(str(r) for r in spark.table("mill").toArrow().to_pylist()) == expected
    assert spark.sql("select max(total) as top from mill").collect()[0].top == 12


def test_console_prints_each_batch(
    spark: SparkSession, tmp_path: Path, folder: support.Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    query = totals(spark, folder).to("console", rows=1).start(str(tmp_path / "l"), parallelism=2)
    feed(query, folder, EPOCHS[:2])
    query.stop()
    printed = capsys.readouterr().out
    assert "batch 0: 3 rows" in printed
    assert "batch 1: 1 rows" in printed
    assert "|  a|  2|   11|" in printed
    assert "only showing top 1 row" in printed
    assert_exact(spark, folder, tmp_path / "l")


@pytest.mark.parametrize("few_batches", [1000, 0], ids=["by one job", "by partition"])
def test_a_sink_with_a_marker_runs_a_shard_once(
    spark: SparkSession,
    tmp_path: Path,
    folder: support.Folder,
    make_target: MakeTarget,
    monkeypatch: pytest.MonkeyPatch,
    few_batches: int,
) -> None:
    monkeypatch.setattr(rows, "FEW", few_batches)
    monkeypatch.setattr(rows, "BATCH_ROWS", 2)
    target = make_target("delta append")
    location = tmp_path / "l"
    for epochs in (EPOCHS[:2], EPOCHS[2:]):
        stream = totals(spark, folder).to("delta", **target.options(["k"]))
        query = stream.start(str(location), parallelism=2)
        feed(query, folder, epochs)
        query.stop()
    tables = support.batch_outputs(folder.batch(spark), ["k"], AGGREGATES, 3)
    expected = sorted(str(row) for table in tables.values() for row in table.to_pylist())
    assert sorted(str(row) for row in target.rows()) == expected
    assert_exact(spark, folder, location)
    for epoch in (1, 2, 3):
        shards = [name.split("-")[1] for name in support.segments_of(location, "t", epoch)]
        assert shards
        assert len(shards) == len(set(shards)), f"epoch {epoch} ran a shard twice"


def _twice(df: DataFrame, batch_id: int) -> None:
    assert df.count() == len(df.collect())
    df.groupBy().sum("n").collect()


def _ignore(df: DataFrame, batch_id: int) -> None:
    pass


def _one_row(df: DataFrame, batch_id: int) -> None:
    assert len(df.limit(1).collect()) == 1


def _other_thread(df: DataFrame, batch_id: int) -> None:
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(df.count()))
    thread.start()
    thread.join()
    assert counted == [len({row.k for row in df.collect()})]


def _unpersist(df: DataFrame, batch_id: int) -> None:
    df.count()
    df.unpersist()
    df.collect()


class _KeepsFrames:
    """Uses the frames of earlier batches, which are over by then."""

    def __init__(self) -> None:
        self.frames: list[DataFrame] = []

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        for frame in self.frames:
            frame.count()
        df.collect()
        for frame in self.frames:
            frame.collect()
        self.frames.append(df)


@pytest.mark.parametrize(
    ("function", "once"),
    [
        pytest.param(_twice, True, id="twice"),
        pytest.param(_ignore, True, id="not at all"),
        pytest.param(_one_row, True, id="one row"),
        pytest.param(_other_thread, True, id="in another thread"),
        pytest.param(_unpersist, False, id="unpersisted"),
        pytest.param(_KeepsFrames(), False, id="after its batch"),
    ],
)
def test_however_the_frame_is_used_the_state_is_exact(
    spark: SparkSession, tmp_path: Path, folder: support.Folder, function: object, once: bool
) -> None:
    location = tmp_path / "l"
    query = totals(spark, folder).for_each_batch(function).start(str(location), parallelism=2)  # type: ignore[arg-type]
    feed(query, folder, EPOCHS)
    query.stop()
    assert query.epoch == 3
    assert_exact(spark, folder, location)
    if once:
        # A shard that runs leaves a segment, if it has rows: three keys on two shards, then one.
        for epoch in (1, 2, 3):
            names = support.segments_of(location, "t", epoch)
            shards = [name.split("-")[1] for name in names]
            assert shards, f"epoch {epoch} wrote no segment"
            assert len(shards) == len(set(shards)), f"epoch {epoch} ran a shard twice: {names}"


def test_a_function_that_raises_stops_the_query_before_the_commit(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    location = str(tmp_path / "l")
    seen: list[int] = []

    def fail_in_second(df: DataFrame, batch_id: int) -> None:
        seen.append(df.count())
        if batch_id == 1:
            raise ValueError("the disk of the receiver is full")

    query = totals(spark, folder).for_each_batch(fail_in_second).start(location, parallelism=2)
    feed(query, folder, EPOCHS[:1])
    with pytest.raises(ValueError, match="the disk of the receiver is full"):
        feed(query, folder, EPOCHS[1:2])
    assert not query.is_active
    assert isinstance(query.exception(), ValueError)
    assert query.epoch == mr.open(location).epoch == 1
    outputs: support.Outputs = {}
    query = (
        totals(spark, folder).for_each_batch(support.record(outputs)).start(location, parallelism=3)
    )
    query.process_all_available()
    feed(query, folder, EPOCHS[2:])
    query.stop()
    assert sorted(outputs) == [1, 2]
    expected = support.batch_outputs(folder.batch(spark), ["k"], AGGREGATES, 3)
    for batch_id, table in outputs.items():
        support.assert_same(table, expected[batch_id + 1], ["k"], f"batch {batch_id}")
    assert_exact(spark, folder, location)


def test_a_file_sink_belongs_to_one_query(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    sink = str(tmp_path / "sink")
    folder.drop(EPOCHS[0])
    stream = totals(spark, folder)
    query = stream.to("parquet", path=sink).start(str(tmp_path / "one"), parallelism=1)
    query.process_all_available()
    query.stop()
    before = support.files_of(sink)
    with pytest.raises(SinkError, match="belongs to another query") as caught:
        stream.to("parquet", path=sink).start(str(tmp_path / "two"), parallelism=1)
    assert "path of its own" in str(caught.value)
    assert support.files_of(sink) == before


def test_a_file_sink_wants_an_empty_path(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    stream = totals(spark, folder)
    with pytest.raises(SinkError, match=r"not empty.*Choose an empty directory"):
        stream.to("json", path=str(tmp_path / "photos")).start(str(tmp_path / "l"))
    with pytest.raises(SinkError, match=r"cannot be written to.*permissions"):
        stream.to("json", path=str(tmp_path / "photos" / "cat.jpg")).start(str(tmp_path / "l"))
    assert support.files_of(tmp_path / "photos").keys() == {"cat.jpg"}


def test_a_sink_that_cannot_work_is_refused(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    stream = totals(spark, folder)
    for make, message in (
        (lambda: stream.to("avro"), "there is no sink 'avro'.*for_each_batch"),
        (lambda: stream.to("parquet"), "needs path="),
        (lambda: stream.to("memory"), "needs name="),
        (lambda: stream.to("noop", path="x"), "no option 'path'"),
        (lambda: stream.to("console", colour="red"), "no option 'colour'"),
        (lambda: stream.for_each_batch("print"), "takes a function"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SinkError, match=message):
            make()
    clash = stream.transform(lambda df: df.withColumnRenamed("n", "batch_id"))
    with pytest.raises(SinkError, match=r"column 'batch_id'.*transform"):
        clash.to("parquet", path=str(tmp_path / "sink")).start(str(tmp_path / "l"))
