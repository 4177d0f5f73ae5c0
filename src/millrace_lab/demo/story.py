"""What the demonstration does, act by act, and what it found.

    2 shards -> rescale to 4 -> a kill -> SQL on live state -> rescale to 2 -> compare with a batch

Everything is a real query on real executors; the figures in the summary are measured on the way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console

import millrace as mr
from millrace import clock
from millrace.log.layout import SEGMENTS
from millrace.reconfigure.moves import Move
from millrace.ui import Page
from millrace_lab.demo import cluster
from millrace_lab.demo.board import Board, EpochLine
from millrace_lab.demo.compare import differences
from millrace_lab.demo.readings import KEYS, OPERATOR, Pace, recomputed, totals
from millrace_lab.demo.summary import Act, Summary

EXECUTORS = 4
FEW, MANY = 2, 4
TRIGGER_MS = 1000
RETAIN_EPOCHS = 20
MIN_EPOCHS = 2
"""Epochs in every act, at least: on a busy machine it is late rather than empty."""
POLL_SECONDS = 0.1
RECOVERY_SECONDS = 120.0
HEALING_SHARE = 0.25
"""Of the whole time: how long the replacement of a killed executor is waited for, at most."""

SQL = f"""
SELECT metric, count(*) AS devices, sum(n)::BIGINT AS readings, max(peak) AS peak, max(seen) AS seen
FROM {OPERATOR}
GROUP BY metric
ORDER BY readings DESC
"""


class Interrupted(Exception):
    """Ctrl-C: on to the end."""


@dataclass
class Demo:
    """One run of the demonstration."""

    console: Console
    folder: Path
    seconds: float
    rows_per_epoch: int
    port: int = 0
    on_page: Callable[[str], object] | None = None
    """Called with the page's address once it is there."""
    stopping: threading.Event = field(default_factory=threading.Event)
    spark: SparkSession | None = None
    failure: str | None = None
    summary: Summary = field(default_factory=Summary)
    _page: Page | None = None
    _shown: int = 0

    @property
    def location(self) -> str:
        return str(self.folder / "location")

    def run(self) -> None:
        """The whole story; what goes wrong is left in `failure`."""
        try:
            self.console.print(f"starting Spark with {EXECUTORS} executors ...")
            self.spark = cluster.session(self.folder, EXECUTORS)
            pace = Pace(clock.now_ms(), self.rows_per_epoch * 1000 / TRIGGER_MS)
            self._stream(pace)
            self._check(pace)
            self.summary.show(self.console)
        except Interrupted:
            pass
        except Exception as error:
            # An error of Spark's is only readable while its JVM is there.
            self.failure = str(error) or type(error).__name__
        finally:
            try:
                if self._page is not None:
                    self._page.close()
            finally:
                if self.spark is not None:
                    cluster.end(self.spark)

    def _stream(self, pace: Pace) -> None:
        assert self.spark is not None
        board = Board(self.console)
        with board.open():
            board.status("waiting for the first epoch ...")
            query = (
                totals(self.spark, self.rows_per_epoch, pace)
                .to("noop")
                .start(
                    self.location,
                    parallelism=FEW,
                    trigger=f"{TRIGGER_MS} milliseconds",
                    retain_epochs=RETAIN_EPOCHS,
                )
            )
            try:
                self._page = query.ui(port=self.port)
                board.mark(f"the live page is {self._page.url}")
                if self.on_page is not None:
                    self.on_page(self._page.url)
                self._acts(board, query)
            finally:
                query.stop()
            self._show(board, query, settled=True)
            board.status("stopped")

    def _acts(self, board: Board, query: mr.Query) -> None:
        # The first epoch starts the Python workers and may compile kernels; it belongs to no act.
        self._await(board, query, lambda: self._shown > 0)
        until = time.monotonic() + self.seconds
        self._act(board, query, f"{FEW} shards", until, 4)
        self._rescale(board, query, MANY)
        self._act(board, query, f"{MANY} shards", until, 3)
        self._kill(board, query)
        self._act(board, query, "after the kill", until, 2)
        self._heal(board, query)
        self._ask(board, query)
        self._rescale(board, query, FEW)
        self._act(board, query, f"{FEW} shards again", until, 1)

    def _act(self, board: Board, query: mr.Query, name: str, until: float, left: int) -> None:
        """Let the query run for its share of the time that is left, when `left` acts are."""
        share = max(until - time.monotonic(), 0) / left
        end, enough = time.monotonic() + share, self._shown + MIN_EPOCHS
        act = self.summary.begin(name)

        def is_over() -> bool:
            board.status(f"{name}: {max(end - time.monotonic(), 0):.0f} s left")
            return time.monotonic() >= end and self._shown >= enough

        self._await(board, query, is_over, act)

    def _rescale(self, board: Board, query: mr.Query, parallelism: int) -> None:
        before = query.assignment()[OPERATOR].shards
        act = self.summary.begin(f"while {before} \u2192 {parallelism}")
        board.status(f"rescaling to {parallelism} ...")
        move = query.rescale(parallelism)
        self._await(board, query, lambda: not move.is_open, act)
        move.wait(0)
        self._tell(board, move)

    def _tell(self, board: Board, move: Move) -> None:
        report = move.report
        (old, new) = report.shards[OPERATOR]
        self._fact(
            board,
            f"rescaled {old} \u2192 {new} while the stream went on: {report.key_groups} key groups "
            f"and {report.bytes / 1e6:.1f} MB in {report.seconds:.1f} s, {report.epochs} epochs",
        )

    def _fact(self, board: Board, text: str) -> None:
        """A fact, now and in the summary."""
        board.mark(text)
        self.summary.facts.append(text)

    def _kill(self, board: Board, query: mr.Query) -> None:
        owners = query.assignment()[OPERATOR]
        victim = owners.executors[-1]
        groups = sum(owners.executor_of(shard) == victim for shard in owners.owners)
        if not cluster.kill(victim):
            raise mr.MillraceError(f"{victim} is gone already; there is nothing to kill.")
        board.mark(f"SIGKILL to {victim}, which has {groups} key groups")
        act = self.summary.begin("while it is killed")
        killed, epoch = time.monotonic(), query.epoch
        board.status("recovering ...")

        def has_recovered() -> bool:
            if time.monotonic() - killed > RECOVERY_SECONDS:
                raise mr.MillraceError(f"no epoch without {victim} in {RECOVERY_SECONDS:.0f} s.")
            gone = victim not in query.assignment()[OPERATOR].executors
            return gone and query.epoch > epoch + 1

        self._await(board, query, has_recovered, act)
        self._fact(
            board,
            f"{victim} was killed: its {groups} key groups went to others, and epochs went on "
            f"within {time.monotonic() - killed:.1f} s",
        )

    def _heal(self, board: Board, query: mr.Query) -> None:
        """Spark starts another executor in place of the dead one; wait for it, but not forever."""
        until = time.monotonic() + self.seconds * HEALING_SHARE
        act = self.summary.begin("while it heals")
        board.status("waiting for the new executor to take its share ...")

        def is_over() -> bool:
            return query.assignment()[OPERATOR].shards == MANY or time.monotonic() > until

        self._await(board, query, is_over, act)
        if query.assignment()[OPERATOR].shards == MANY:
            board.mark(f"a new executor has taken its share: {MANY} shards again")

    def _ask(self, board: Board, query: mr.Query) -> None:
        started = time.perf_counter()
        epoch, answer = query.epoch, query.sql(SQL)
        ms = (time.perf_counter() - started) * 1000
        self._fact(board, f"SQL on the state of epoch {epoch}, while the query ran: {ms:.0f} ms")
        for line in table_lines(answer):
            board.say(line)
        assert self._page is not None
        self._page.note("note", "SQL on live state", f"{answer.num_rows} rows in {ms:.0f} ms")

    def _await(
        self,
        board: Board,
        query: mr.Query,
        is_over: Callable[[], bool],
        act: Act | None = None,
    ) -> None:
        """Show epochs until something is so."""
        while not is_over():
            if self.stopping.is_set():
                raise Interrupted
            if not query.is_active:
                # Asked before it is stopped here: an epoch cut short then counts as a failure.
                raise query.exception() or mr.MillraceError("the query ended by itself")
            self._show(board, query, act=act)
            time.sleep(POLL_SECONDS)

    def _show(
        self, board: Board, query: mr.Query, *, act: Act | None = None, settled: bool = False
    ) -> None:
        """Show epochs that were not shown yet; Spark's own figures for one come a little later."""
        reports = [r for r in query.recent_progress() if r["epoch"] > self._shown]
        if not reports:
            return
        spark = {p["batchId"]: p for p in query.spark_query.recentProgress}
        for report in reports:
            progress = spark.get(report["batch_id"])
            if progress is None and not settled:
                break
            line = self._line(report, progress)
            board.add(line)
            self._shown = report["epoch"]
            if act is not None:
                act.lines.append(line)

    def _line(self, report: dict[str, Any], progress: Any) -> EpochLine:
        operator = report["operators"][OPERATOR]
        latency = progress["durationMs"]["triggerExecution"] if progress else None
        return EpochLine(
            epoch=report["epoch"],
            rows=progress["numInputRows"] if progress else self.rows_per_epoch,
            latency_ms=latency if latency is not None else report["seconds"] * 1000,
            state_rows=operator["num_rows_total"],
            state_bytes=bytes_below(os.path.join(self.location, SEGMENTS)),
            bytes_written=operator["bytes_written"],
            shards=operator["shards"],
            shard_ms={name: s * 1000 for name, s in operator["shard_seconds"].items()},
        )

    def _check(self, pace: Pace) -> None:
        assert self.spark is not None
        if self.stopping.is_set():
            raise Interrupted
        state = mr.open(self.location)
        rows = self.rows_per_epoch * state.epoch
        self.console.print(
            f"recomputing all {rows:,} rows of {state.epoch} epochs in one Spark batch ..."
        )
        found = state.to_arrow(OPERATOR)
        expected = recomputed(self.spark, rows, pace).toArrow()
        wrong = differences(found, expected, KEYS, inexact=("total", "avg"))
        for line in wrong:
            self.console.print(f"  {line}", style="red", soft_wrap=True)
        self.summary.verdict(state.epoch, rows, found.num_rows, expected.num_rows, not wrong)


def table_lines(table: pa.Table) -> list[str]:
    """A small table as lines of text."""
    rows = [table.column_names] + [
        [
            "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
            for value in row
        ]
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(table.num_columns)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


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
