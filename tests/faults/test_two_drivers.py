"""Two drivers on one location: each epoch is committed once, and the loser knows."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests import processes
from tests.faults import driver
from tests.faults.lives import EPOCHS, Case, Truth
from tests.spark import support
from tests.waiting import DEADLINE, until

import millrace as mr
from millrace.errors import FencedError
from millrace.log import Journal, open_store
from millrace.spark import run as run_module
from millrace_lab.processes import send


def runs(location: Path) -> list[str]:
    """Which run committed each epoch."""
    journal = Journal.open(open_store(str(location)))
    return [journal.read(epoch)[0].run for epoch in journal.epochs()]


@pytest.fixture
def fenced_at_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that begin in this process do not look for others beside their epochs."""
    monkeypatch.setattr(run_module, "FENCE_SECONDS", 2 * DEADLINE)


@pytest.mark.usefixtures("fenced_at_commit")
def test_the_slower_driver_is_fenced(spark: SparkSession, truth: Truth, tmp_path: Path) -> None:
    """One driver hangs in its sink while another, elsewhere, takes the location over."""
    case = Case(spark, truth, tmp_path, "function")
    hanging, resume = threading.Event(), threading.Event()
    write = driver.WriteByBatchId(case.path)

    def hang_in_second(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            df.count()
            hanging.set()
            assert resume.wait(DEADLINE)
        else:
            write(df, batch_id)

    source = spark.readStream.schema(driver.SCHEMA).option("maxFilesPerTrigger", 1)
    slow = (
        mr.stream(source.parquet(f"{truth.folder.path}/*"))
        .key_by(*driver.KEYS)
        .aggregate(name="totals", **driver.AGGREGATES)
        .for_each_batch(hang_in_second)
        .start(str(case.location), parallelism=2)
    )
    try:
        assert hanging.wait(DEADLINE), slow.exception()
        program = case.start()
        assert program.wait() == 0, program.output()
        program.assert_nobody_survives()
        case.assert_exact()
    finally:
        resume.set()
    winner = runs(case.location)[1]
    with pytest.raises(FencedError, match=rf"epoch 2 .* was committed by run {winner} "):
        slow.process_all_available()
    assert not slow.is_active
    assert isinstance(slow.exception(), FencedError)
    first, *others = runs(case.location)
    assert len(others) == EPOCHS - 1
    assert first not in others
    assert len(set(others)) == 1
    case.assert_exact()


def test_a_second_start_in_one_session_takes_over(
    spark: SparkSession, truth: Truth, tmp_path: Path
) -> None:
    """Spark ends the older run of a checkpoint when a younger one starts.

    It does not wait for the older one's epoch, so either may commit it; the other is fenced.
    """
    case = Case(spark, truth, tmp_path, "parquet")
    build = driver.build(spark, truth.folder.path, "parquet", case.path)
    older = build.start(str(case.location), parallelism=2)
    younger = build.start(str(case.location), parallelism=3)
    with contextlib.suppress(FencedError):
        younger.process_all_available()
    younger.stop()
    assert not older.is_active
    case.finish_here()
    if len(runs(case.location)) == EPOCHS:
        case.assert_exact()
    else:
        # Interrupted between its log of files and its log of batches, the older run has left both
        # files to one batch of the younger one.
        assert len(runs(case.location)) == len(case.assert_adds_up())


def hanging(spark: SparkSession, case: Case, folder: Path) -> tuple[mr.Query, driver.HangInSecond]:
    """A query whose tasks hang in its second batch."""
    hang = driver.HangInSecond(folder)
    sinked = driver.build(spark, case.truth.folder.path, "parquet", case.path, hang)
    return sinked.start(str(case.location), parallelism=2), hang


@pytest.mark.stress
@pytest.mark.usefixtures("fenced_at_commit")
def test_a_fenced_driver_adds_nothing_to_the_file_sink(
    spark: SparkSession, truth: Truth, tmp_path: Path
) -> None:
    """It has looked for the batch, found nothing, and is still writing when the other is done."""
    case = Case(spark, truth, tmp_path, "parquet")
    slow, hang = hanging(spark, case, tmp_path)
    try:
        until(lambda: hang.writing.exists() or not slow.is_active, "writing the second batch")
        assert slow.is_active, slow.exception()
        program = case.start()
        assert program.wait() == 0, program.output()
        case.assert_exact()
    finally:
        hang.resume.touch()
    with pytest.raises(FencedError):
        slow.process_all_available()
    case.assert_exact()


@pytest.mark.stress
@pytest.mark.usefixtures("fenced_at_commit")
def test_whom_spark_fences_learns_who_won(spark: SparkSession, tmp_path: Path) -> None:
    """Between two epochs, another driver takes the next batch: Spark's log refuses it first."""
    folder = support.Folder(tmp_path / "in", "k string, g int, v long, d decimal(9,2), s string")
    row = ("a", 1, 1, Decimal(1), "x")
    folder.drop([row])
    query = driver.build(spark, folder.path, "parquet", tmp_path / "sink").start(
        str(tmp_path / "location"), parallelism=1
    )
    query.process_all_available()
    journal = Journal.open(open_store(str(tmp_path / "location")))
    trail = journal.trail(journal.head())
    journal.commit(
        trail,
        run="the-other",
        batch_id=1,
        watermark_ms=None,
        operators={},
        specs=trail.specs,
        full=True,
    )
    offsets = tmp_path / "location" / "spark" / "offsets"
    shutil.copy(offsets / "0", offsets / "1")
    folder.drop([row])
    with pytest.raises(FencedError, match=r"run the-other has committed epoch 2 of .*/location"):
        query.process_all_available()
    assert isinstance(query.exception(), FencedError)
    assert not query.is_active


@pytest.mark.stress
def test_a_zombie_without_new_rows_ends_by_itself(
    spark: SparkSession, truth: Truth, tmp_path: Path
) -> None:
    """It sleeps, its successor commits, and nothing ever makes it try to commit again."""
    case = Case(spark, truth, tmp_path, "parquet")
    zombie = processes.start(
        "tests.faults.idle_driver",
        truth.folder.path,
        case.location,
        case.path,
        log=tmp_path / "zombie",
    )
    until(lambda: case.committed() == 1 or zombie.process.poll() is not None, "an epoch")
    # Spark's commit comes after the manifest; the successor would else run the batch again.
    commits = case.location / "spark" / "commits" / "0"
    until(lambda: commits.exists() or zombie.process.poll() is not None, "Spark's commit")
    members = [zombie.process.pid, *zombie.others()]
    send(members, signal.SIGSTOP)
    case.finish_here()
    case.assert_exact()
    send(members, signal.SIGCONT)
    assert zombie.wait() == 0, zombie.output()
    first, winner, _ = runs(case.location)
    assert first != winner
    said = rf"FencedError epoch 3 of .*/location was committed by run {winner} "
    assert re.search(said, zombie.output()), zombie.output()
    zombie.assert_nobody_survives()
    case.assert_exact()


@pytest.mark.stress
def test_an_epoch_that_hangs_does_not_keep_a_fenced_driver(
    spark: SparkSession, truth: Truth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks never end, as when they wait for executors, so it never gets to its commit."""
    monkeypatch.setattr(run_module, "FENCE_SECONDS", 0.5)
    case = Case(spark, truth, tmp_path, "parquet")
    slow, hang = hanging(spark, case, tmp_path)
    try:
        until(lambda: hang.writing.exists() or not slow.is_active, "writing the second batch")
        program = case.start()
        assert program.wait() == 0, program.output()
        with pytest.raises(FencedError, match=r"was committed by run"):
            slow.await_termination()
        assert not slow.is_active
    finally:
        hang.resume.touch()
        slow.stop()
    case.assert_exact()
