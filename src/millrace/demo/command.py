"""`millrace demo`: run the readings through a query, restart it half-way, check the result.

The work is done in a thread of its own. Ctrl-C only sets an event that this thread looks at
between its steps: an exception in the middle of a call to the JVM would leave the connection
unusable, and then nothing could be stopped properly. Whatever Spark, its JVM and its workers print
goes to a file, so the terminal belongs to the table; the file is named when something fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

import millrace as mr
from millrace.demo.board import Board, EpochLine
from millrace.demo.compare import differences
from millrace.demo.readings import KEYS, OPERATOR, recomputed, totals

CHECK_SECONDS = 5
"""Roughly what the comparison at the end takes, so that the whole fits `--seconds`."""

MIN_EPOCHS = 3
"""On a busy machine, rather late than with nothing to see: so many before and after the restart."""

RETAIN_EPOCHS = 10
POLL_SECONDS = 0.1
INTERRUPTED = 130


@dataclass
class Demo:
    """One run of the demonstration."""

    console: Console
    folder: Path
    seconds: float
    rows_per_epoch: int
    parallelism: int
    stopping: threading.Event = field(default_factory=threading.Event)
    spark: SparkSession | None = None
    failure: BaseException | None = None
    equal: bool | None = None

    @property
    def location(self) -> str:
        return str(self.folder / "location")

    def run(self) -> None:
        """The whole story; what goes wrong is left in `failure`."""
        end = time.monotonic() + self.seconds - CHECK_SECONDS
        try:
            self.console.print("starting Spark ...")
            self.spark = session(self.folder)
            self._stream(end)
            if not self.stopping.is_set():
                self._check()
        except Exception as error:
            self.failure = error
        finally:
            self._end()

    def _stream(self, end: float) -> None:
        board = Board(self.console)
        first, second = self.parallelism, 2 * self.parallelism
        with board.open():
            self._epochs(board, first, end, share=0.5)
            if self.stopping.is_set():
                return
            board.mark(
                f"stopped at epoch {mr.open(self.location).epoch}; restarted from the location "
                f"with parallelism {second}"
            )
            self._epochs(board, second, end, share=1.0)
            board.status("stopped")

    def _epochs(self, board: Board, parallelism: int, end: float, share: float) -> None:
        """Run the query for a share of the time that is left, and at least for some epochs.

        The first epoch is not counted: it starts the Python workers and may compile kernels.
        """
        assert self.spark is not None
        board.status(f"parallelism {parallelism}: waiting for the first epoch ...")
        query = (
            totals(self.spark, self.rows_per_epoch)
            .to("noop")
            .start(self.location, parallelism=parallelism, retain_epochs=RETAIN_EPOCHS)
        )
        shown = enough = 0
        until: float | None = None
        try:
            while not self.stopping.is_set():
                if not query.is_active:
                    # Asked before it is stopped here: an epoch cut short then counts as a failure.
                    raise query.exception() or mr.MillraceError("the query ended by itself")
                shown = self._show(board, query, shown, settled=False)
                now = time.monotonic()
                if shown and until is None:
                    until = now + share * max(end - now, 2)
                    enough = query.recent_progress()[0]["epoch"] + MIN_EPOCHS - 1
                if until is not None:
                    board.status(f"parallelism {parallelism}: {max(until - now, 0):.0f} s left")
                    if now >= until and shown >= enough:
                        break
                time.sleep(POLL_SECONDS)
        finally:
            query.stop()
        self._show(board, query, shown, settled=True)

    def _show(self, board: Board, query: mr.Query, shown: int, *, settled: bool) -> int:
        """Show epochs that were not shown yet; Spark's own figures for one come a little later."""
        reports = [r for r in query.recent_progress() if r["epoch"] > shown]
        if not reports:
            return shown
        spark = {p["batchId"]: p for p in query.spark_query.recentProgress}
        for report in reports:
            progress = spark.get(report["batch_id"])
            if progress is None and not settled:
                break
            board.add(self._line(report, progress))
            shown = report["epoch"]
        return shown

    def _line(self, report: dict[str, Any], progress: Any) -> EpochLine:
        operator = report["operators"][OPERATOR]
        latency = progress["durationMs"]["triggerExecution"] if progress else None
        return EpochLine(
            epoch=report["epoch"],
            rows=progress["numInputRows"] if progress else self.rows_per_epoch,
            latency_ms=latency if latency is not None else report["seconds"] * 1000,
            state_rows=operator["num_rows_total"],
            state_bytes=bytes_below(os.path.join(self.location, "segments")),
            bytes_written=operator["bytes_written"],
            shards=operator["shards"],
            shard_ms={name: s * 1000 for name, s in operator["shard_seconds"].items()},
        )

    def _check(self) -> None:
        assert self.spark is not None
        state = mr.open(self.location)
        rows = self.rows_per_epoch * state.epoch
        self.console.print(
            f"recomputing all {rows:,} rows of {state.epoch} epochs in one Spark batch ..."
        )
        found = state.to_arrow(OPERATOR)
        expected = recomputed(self.spark, rows).toArrow()
        wrong = differences(found, expected, KEYS, inexact=("total", "avg"))
        self.equal = not wrong
        for line in wrong:
            self.console.print(f"  {line}", style="red", soft_wrap=True)
        verdict = "equal" if self.equal else "NOT equal"
        self.console.print(
            f"state at epoch {state.epoch} ({found.num_rows:,} keys) and batch recomputation "
            f"({expected.num_rows:,} keys): {verdict}",
            style="bold green" if self.equal else "bold red",
            soft_wrap=True,
        )

    def _end(self) -> None:
        """Stop Spark and wait until its JVM is gone."""
        if self.spark is None:
            return
        self.spark.stop()
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if process is None:
            return
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        if process.stdin:
            process.stdin.close()
        process.wait(30)


def session(folder: Path) -> SparkSession:
    """A small local session that keeps everything it writes in one folder."""
    spark = mr.session(
        "millrace-demo",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "spark"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.numRecentProgressUpdates": "50",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def bytes_below(folder: str) -> int:
    """Bytes of all files below a folder, while others add and remove some."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """This process's standard error, and that of all it starts, into a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)


@contextmanager
def interrupts_set(event: threading.Event) -> Iterator[None]:
    """Ctrl-C and a termination request set the event and do nothing else."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, lambda *_: event.set()) for s in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def watch(demo: Demo) -> None:
    """Run the demonstration in a thread; after Ctrl-C, help it to an end."""
    thread = threading.Thread(target=demo.run, name="millrace-demo")
    thread.start()
    announced = False
    while thread.is_alive():
        thread.join(0.1)
        if demo.stopping.is_set() and thread.is_alive():
            if not announced:
                demo.console.print("stopping ...")
                announced = True
            spark = demo.spark
            if spark is not None:
                try:
                    spark.sparkContext.cancelAllJobs()
                except Exception:
                    # The session is being stopped by the other thread: that is what is wanted.
                    thread.join(0.5)


@click.command()
@click.option("--seconds", default=45.0, show_default=True, help="How long it takes, roughly.")
@click.option(
    "--rows-per-epoch",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Readings in each epoch.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(1, 128),
    default=2,
    show_default=True,
    help="Shards before the restart; there are twice as many after it.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the location and Spark's log in this directory, which must be new or empty.",
)
def demo(seconds: float, rows_per_epoch: int, parallelism: int, keep: Path | None) -> None:
    """Watch a keyed aggregate on local Spark, restarted half-way, and check its result."""
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise click.UsageError(f"{keep} is not empty; --keep needs a new or empty directory.")
    folder = keep or Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "spark.log"
    run = Demo(Console(), folder.resolve(), seconds, rows_per_epoch, parallelism)
    with interrupts_set(run.stopping), stderr_to(log):
        watch(run)
    interrupted = run.stopping.is_set()
    failed = run.failure is not None and not interrupted
    if failed:
        click.echo(f"the demonstration failed: {run.failure}\nSpark's log is {log}", err=True)
    shutil.rmtree(folder / "spark", ignore_errors=True)
    if keep is not None:
        click.echo(f'kept in {keep}; read it with millrace.open("{run.location}")')
    elif not failed:
        shutil.rmtree(folder, ignore_errors=True)
    if interrupted:
        click.echo("interrupted; nothing is left running")
        sys.exit(INTERRUPTED)
    if failed or not run.equal:
        sys.exit(1)
