"""The handle of a running query, and reading its state from another process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests import processes
from tests.spark import cluster_program, support
from tests.waiting import DEADLINE, until

import millrace as mr
from millrace.errors import QueryStoppedError, UnknownEpochError, UnknownOperatorError
from millrace.log import Journal, open_store
from millrace.log.store import Store
from millrace.reconfigure.requests import Requests
from millrace.spark import run as run_module
from millrace.spark.plans import PlanCache

READ = """
import json, sys
import millrace as mr
reader = mr.open(sys.argv[1])
print(json.dumps([reader.epoch, sorted(reader.to_arrow("t").to_pylist(), key=str)]))
from pyspark import SparkContext
assert SparkContext._gateway is None, "reading state started a JVM"
"""


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "in", "k string, v int")


def counting(spark: SparkSession, folder: support.Folder, **options: str) -> mr.StreamWriter:
    stream = mr.stream(folder.stream(spark, **options)).key_by("k")
    return stream.aggregate(n=mr.count(), name="t").to("noop")


def read_elsewhere(location: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(location)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_life_of_a_query(spark: SparkSession, folder: support.Folder, tmp_path: Path) -> None:
    location = tmp_path / "l"
    query = counting(spark, folder).start(
        str(location), parallelism=2, query_name="counting", trigger="100 milliseconds"
    )
    assert query.is_active
    assert query.epoch == 0
    assert query.progress() is None
    assert query.recent_progress() == []
    assert "running" in repr(query)
    assert query.spark_query.name == "counting"
    with pytest.raises(UnknownEpochError, match="no committed epoch yet"):
        mr.open(str(location))
    query.process_all_available()
    assert query.epoch == 0, "there was nothing to process"

    folder.drop([("a", 1), ("b", 2), ("a", 3)])
    query.process_all_available()
    assert query.epoch == 1
    assert read_elsewhere(location) == [1, [{"k": "a", "n": 2}, {"k": "b", "n": 1}]]
    folder.drop([("a", 1), (None, 1)])
    query.process_all_available()
    assert not query.await_termination(1)
    assert query.exception() is None

    progress = query.progress()
    assert progress is not None
    assert progress["epoch"] == 2
    assert progress["batch_id"] == 1
    assert progress["seconds"] > 0
    assert progress["numInputRows"] == 2
    assert progress["durationMs"]["triggerExecution"] >= 0
    assert {"plan", "run", "manifest"} <= progress["phases"].keys()
    totals = progress["operators"]["t"]
    assert totals["shards"] == 2
    assert totals["input_rows"] == 2
    assert totals["num_rows_updated"] == 2
    assert totals["num_rows_total"] == 3
    assert totals["bytes_written"] > 0
    assert [p["epoch"] for p in query.recent_progress()] == [1, 2]

    query.stop()
    query.stop()
    assert not query.is_active
    assert query.await_termination(1)
    assert "stopped epoch=2" in repr(query)
    with pytest.raises(QueryStoppedError, match="start it again"):
        query.process_all_available()
    after = [{"k": "a", "n": 3}, {"k": "b", "n": 1}, {"k": None, "n": 1}]
    assert read_elsewhere(location) == [2, after]


def test_a_batch_that_comes_during_a_stop_is_no_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    handed_over = threading.Event()
    await_stop = run_module.await_stop

    def noted(session: SparkSession) -> None:
        handed_over.set()
        try:
            await_stop(session)
        except BaseException:
            texts.append(traceback.format_exc())
            raise

    monkeypatch.setattr(run_module, "await_stop", noted)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = mr.stream(source).key_by("value").aggregate(n=mr.count(), name="t")
    query = counts.to("noop").start(str(tmp_path / "l"), parallelism=1)
    until(lambda: query.epoch >= 1, "a committed epoch")
    # As in `stop`, but Spark hands over the next batch first.
    query._run._stopped.set()
    assert handed_over.wait(DEADLINE)
    query.stop()
    assert query.spark_query.exception() is None
    assert query.exception() is None
    # Spark finds in it what it looks for, and does not run out of stack on the way.
    [text] = texts
    jvm: Any = spark._jvm
    execution = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    assert execution.PROXY_ERROR().pattern().matcher(text).find()


def test_a_stop_during_a_restart_stops(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = mr.stream(source).key_by("value").aggregate(n=mr.count(), name="t")
    query = counts.to("noop").start(str(tmp_path / "l"), parallelism=1)
    stopping = threading.Thread(target=query.stop)
    forget = PlanCache.forget

    def stop_meanwhile(plans: PlanCache) -> None:
        """Spark's query has ended, and the next one has not started."""
        forget(plans)
        stopping.start()
        until(lambda: query.is_stopping, "the stop")

    monkeypatch.setattr(PlanCache, "forget", stop_meanwhile)
    query.rescale(2, strategy="restart")
    until(lambda: stopping.ident is not None, "the restart")
    stopping.join()
    assert not query.is_active
    assert not spark.streams.active
    assert query.exception() is None
    assert query.await_termination(1)


def test_a_rescale_ends_on_a_stream_without_new_rows(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    folder.drop([(f"k{i}", 1) for i in range(40)])
    counts = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count(), name="t")
    location = str(tmp_path / "l")
    query = counts.to("noop").start(location, parallelism=1)
    query.process_all_available()
    for shards, strategy in ((2, "live"), (3, "fluid"), (4, "restart")):
        query.rescale(shards, strategy=strategy).wait(DEADLINE)
        assert query.assignment()["t"].shards == shards
        with mr.open(location) as reader:
            assert reader.batch_id == 0
            assert reader.snapshot.trail.operators["t"].assignment.shards == shards
    folder.drop([(f"k{i}", 1) for i in range(40)])
    query.process_all_available()
    assert query.sql("select distinct n from t").to_pylist() == [{"n": 2}]
    query.stop()
    # A request that nobody has taken yet is carried out by the next driver, rows or not.
    asked = Requests(Journal.open(open_store(location)).store).submit("rescale", parallelism=2)
    query = counts.to("noop").start(location)
    until(lambda: query._run.director._inbox.moves.get(asked.id) is not None, "the request")
    query._run.director._inbox.moves[asked.id].wait(DEADLINE)
    assert query.assignment()["t"].shards == 2
    query.stop()


def test_a_driver_that_was_slower_takes_the_key_groups_of_the_location(
    spark: SparkSession, folder: support.Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Journal.create

    def slower(store: Store, key_groups: int) -> Journal:
        create(store, 16)
        return create(store, key_groups)

    monkeypatch.setattr(Journal, "create", staticmethod(slower))
    folder.drop([("a", 1), ("b", 1), ("a", 1)])
    counts = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count(), name="t")
    query = counts.to("noop").start(str(tmp_path / "l"), parallelism=3, key_groups=64)
    query.process_all_available()
    query.stop()
    with mr.open(str(tmp_path / "l")) as reader:
        assert reader.key_groups == 16
        assert sorted(reader.to_arrow("t").to_pylist(), key=str) == [
            {"k": "a", "n": 2},
            {"k": "b", "n": 1},
        ]


def test_a_stop_that_interrupts_an_epoch_is_no_failure(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    location, mark = str(tmp_path / "l"), tmp_path / "sleeps"
    stream = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count(), name="t")

    def sleep_once(df: DataFrame, batch_id: int) -> None:
        if not mark.exists():
            mark.touch()
            jvm: Any = df.sparkSession._jvm
            jvm.java.lang.Thread.sleep(int(DEADLINE * 1000))
        df.collect()

    folder.drop([("a", 1), ("b", 2)])
    query = stream.for_each_batch(sleep_once).start(location, parallelism=1)
    until(mark.exists, "in the function of the sink")
    query.stop(timeout=0.2)
    assert query.exception() is None
    assert query.spark_query.exception() is None
    again = stream.for_each_batch(sleep_once).start(location, parallelism=1)
    again.process_all_available()
    again.stop()
    assert read_elsewhere(location) == [1, [{"k": "a", "n": 1}, {"k": "b", "n": 1}]]


def test_available_now_processes_what_is_there_and_ends(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    for _ in range(3):
        folder.drop([("a", 1)])
    sinked = counting(spark, folder, maxFilesPerTrigger="1")
    query = sinked.start(str(tmp_path / "l"), parallelism=1, trigger="available_now")
    assert query.await_termination(DEADLINE)
    assert query.exception() is None
    assert query.epoch == 3
    again = sinked.start(str(tmp_path / "l"), parallelism=1, trigger="available_now")
    assert again.await_termination(DEADLINE)
    assert again.epoch == 3
    assert again.id == query.id
    assert mr.open(str(tmp_path / "l")).to_arrow().to_pylist() == [{"k": "a", "n": 3}]


def test_a_reader_names_what_it_does_not_find(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    location = str(tmp_path / "l")
    folder.drop([("a", 1)])
    query = counting(spark, folder).start(location, parallelism=1)
    query.process_all_available()
    query.stop()
    reader = mr.open(location)
    assert reader.operators == ["t"]
    assert reader.batch_id == 0
    with pytest.raises(UnknownOperatorError, match=r"no operator 'u'.*has 't' at epoch 1"):
        reader.to_arrow("u")
    with pytest.raises(UnknownEpochError, match="epochs 1 to 1 are retained"):
        mr.open(location, epoch=5)


def test_old_epochs_are_forgotten(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    location = str(tmp_path / "l")
    rows = [(f"k{i}", 1) for i in range(6)]
    sinked = counting(spark, folder, maxFilesPerTrigger="1")
    # The first manifest of a run is a full one, so the second run needs nothing of the first.
    for epochs in (12, 5):
        for _ in range(epochs):
            folder.drop(rows)
        query = sinked.start(location, parallelism=1, key_groups=2, retain_epochs=3)
        query.process_all_available()
        query.stop()
    assert query.epoch == 17
    with pytest.raises(UnknownEpochError, match="epochs 13 to 17 are retained"):
        mr.open(location, epoch=12)
    for epoch in (14, 15, 16, 17):
        state = mr.open(location, epoch=epoch).to_arrow()
        assert state.sort_by("k").column("n").to_pylist() == [epoch] * 6
    segments = list((tmp_path / "l" / "segments" / "t").iterdir())
    assert len(segments) < 17, "nothing was collected"


@pytest.mark.cluster
@pytest.mark.stress
def test_two_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = processes.start("tests.spark.cluster_program", tmp_path / "l", 3, log=log)
    assert program.wait() == 0, program.output()
    program.assert_nobody_survives()
    # Spark may have a last word.
    result = json.loads([line for line in log.read_text().splitlines() if line[:1] == "{"][-1])
    assert result["epoch"] >= 3
    count, total = Counter[int | None](), Counter[int | None]()
    for value in range(result["epoch"] * cluster_program.ROWS_PER_EPOCH):
        key = value % 7 or None
        count[key] += 1
        total[key] += value
    assert {r["k"]: (r["n"], r["total"]) for r in result["rows"]} == {
        key: (count[key], total[key]) for key in count
    }
