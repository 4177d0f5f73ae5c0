"""The epoch runner: what happens between Spark handing over a micro-batch and committing it.

    begin     is the batch in a manifest already? else: its number, times and assignments
    plan      the pipeline over the batch
    execute   the sinks run it, and with it the shards
    commit    all shards have reported: the manifest
    finish    the director hears of the epoch, and its report is made

Invariant: state advances only by the manifest, after every shard of every operator has reported and
every sink has returned. Everything before that can be repeated.

While no batch comes, `run_without_rows` commits epochs that only record new assignments, so that a
rescale ends on an idle stream too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from millrace import clock, hooks
from millrace.epoch.commit import (
    Commit,
    Times,
    collect_reports,
    commit_epoch,
    commit_without_rows,
    figures_of,
    group_loads,
)
from millrace.epoch.report import EpochReport, OperatorReport, Reports, ShardReport
from millrace.errors import MissingEpochError, MissingFileError
from millrace.ids import Epoch, OperatorName, table_name
from millrace.log import Journal, Trail
from millrace.log.spark_logs import is_planned
from millrace.operators import Operator
from millrace.reconfigure.director import Director
from millrace.spark.executors import preferred_locations
from millrace.spark.pipeline import Flow
from millrace.spark.plans import Layout, PlanCache
from millrace.spark.session import BATCH_SETTINGS, FIXED_WIDTH_SETTINGS
from millrace.spark.shard import encode_times

BatchTimes = Callable[[], tuple[int, int | None]]
"""Processing time and event-time watermark of the batch that is running, in milliseconds."""

Watermarks = Callable[[int | None, int | None], dict[OperatorName, int | None]]
"""The watermark of each operator, given that of the sources, in microseconds."""


@dataclass(eq=False)
class RunningEpoch:
    """An epoch between its beginning and its commit."""

    batch_id: int
    times: Times
    layout: Layout
    started: float
    phases: dict[str, float] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)


class EpochRunner:
    """Turns micro-batches into epochs, one at a time."""

    def __init__(
        self,
        journal: Journal,
        operators: list[Operator],
        plans: PlanCache,
        director: Director,
        batch_times: BatchTimes,
        watermarks: Watermarks,
        *,
        run_id: str,
    ) -> None:
        self.trail: Trail = journal.newest()
        self._journal = journal
        self._operators = operators
        self._plans = plans
        self._director = director
        self._batch_times = batch_times
        self._watermarks = watermarks
        self._run_id = run_id
        self.last_reports: Reports = {}
        """What the shards of the last epoch reported."""
        self.last_began = 0.0
        """When the last epoch began, on the stopwatch."""
        self._is_first = True
        self._is_unsure = False
        """Whether an epoch without rows may have been committed although that failed."""

    def restart(self) -> None:
        """Spark's query is about to be started again: nothing of its session is used any more."""
        self._is_first = True
        self._plans.forget()

    def run(self, df: DataFrame, batch_id: int) -> EpochReport | None:
        """Run a batch and commit it; None if it was committed before."""
        epoch = self.begin(batch_id)
        if epoch is None:
            return None
        flow = self._plan(epoch, df)
        self._execute(epoch, flow)
        self.commit(epoch, self._plans.reports())
        return self.finish(epoch)

    def begin(self, batch_id: int) -> RunningEpoch | None:
        """Number, times and assignments of a batch's epoch; None if it was committed before."""
        if self._is_first:
            # Another driver may have committed epochs between this query's start and its first
            # batch.
            self.trail = self._journal.newest()
        self._settle()
        # Also of a batch that is done: what asks for batches without rows hears of it here.
        processing_ms, watermark_ms = self._batch_times()
        expected = 0 if self.trail.batch_id is None else self.trail.batch_id + 1
        if batch_id < expected:
            return None
        if batch_id > expected:
            raise MissingEpochError(
                f"Spark is at batch {batch_id}, but the last manifest of "
                f"{self._journal.store.url}, of epoch {self.trail.epoch}, ends before batch "
                f"{expected}: the manifests in between are missing, and continuing would lose "
                "their rows. Restore the folders 'manifests' and 'segments' from a backup, or "
                "start over at a new location."
            )
        started = clock.stopwatch()
        assignments, executors = self._director.before_epoch(self.trail.epoch)
        locations = {
            name: preferred_locations(executors, a.executors) for name, a in assignments.items()
        }
        watermark_us = None if watermark_ms is None else watermark_ms * 1000
        before_ms = self.trail.watermark_ms
        watermarks = self._watermarks(watermark_us, before_ms and before_ms * 1000)
        times = Times.after(self.trail, processing_ms * 1000, watermark_us, watermarks)
        return RunningEpoch(batch_id, times, Layout(assignments, locations), started)

    def _plan(self, epoch: RunningEpoch, df: DataFrame) -> Flow:
        is_first = epoch.times.version == 0
        if self._is_first:
            for key, value in BATCH_SETTINGS.items():
                df.sparkSession.conf.set(key, value)
        flow = self._plans.over(df, encode_times(epoch.times), epoch.layout, is_first=is_first)
        if self._is_first and self._plans.are_fixed_width(df):
            for key, value in FIXED_WIDTH_SETTINGS.items():
                df.sparkSession.conf.set(key, value)
        epoch.phases["plan"] = clock.stopwatch() - epoch.started
        return flow

    def _execute(self, epoch: RunningEpoch, flow: Flow) -> None:
        hooks.reach(hooks.BEFORE_SINK, epoch.times.epoch)
        at = clock.stopwatch()
        try:
            flow.write(epoch.batch_id)
        finally:
            flow.release()
        epoch.phases["run"] = clock.stopwatch() - at
        hooks.reach(hooks.AFTER_SINK, epoch.times.epoch)

    def commit(
        self, epoch: RunningEpoch, reports: Iterable[ShardReport], offsets: str | None = None
    ) -> None:
        """Create the manifest of an epoch whose shards have reported.

        `offsets` is what Spark's log will say of the batch, if it does not say so yet.
        """
        at = clock.stopwatch()
        assignments, number = epoch.layout.assignments, epoch.times.epoch
        epoch.reports = collect_reports(number, assignments, reports)
        hooks.reach(hooks.BEFORE_MANIFEST, number)
        commit = self._new_commit(epoch.batch_id, epoch.started, epoch.reports)
        commit = replace(commit, offsets=offsets)
        commit_epoch(
            self._journal,
            self.trail,
            epoch.times,
            self._operators,
            assignments,
            epoch.reports,
            commit,
        )
        self._is_first = False
        epoch.phases["manifest"] = clock.stopwatch() - at
        hooks.reach(hooks.AFTER_MANIFEST, number)

    def _new_commit(self, batch_id: int | None, started: float, reports: Reports) -> Commit:
        return Commit(
            run=self._run_id,
            batch_id=batch_id,
            full=self._is_first,
            figures=figures_of(clock.stopwatch() - started, reports),
            unmet_parallelism=self._director.unmet_parallelism(),
        )

    def run_without_rows(self) -> Epoch | None:
        """Take the director a step further without a batch; the epoch, if that needed one."""
        self._settle()
        if self.trail.epoch == 0:
            # There is no state to own, and the first epoch may bring an initial one.
            return None
        if self._is_first and self._journal.has(self.trail.epoch + 1):
            # Another driver has committed since the start. If it is still there, Spark's logs say
            # so when the first batch comes; an epoch without one must not get in its way.
            return None
        batch = self.trail.batch_id
        if is_planned(self._journal.store, 0 if batch is None else batch + 1):
            # It comes next, here or to another driver that has begun it: then an epoch without rows
            # would take the epoch that it needs.
            return None
        started = clock.stopwatch()
        assignments, _ = self._director.before_epoch(self.trail.epoch)
        if not self._director.needs_epoch(self.trail):
            return None
        hooks.reach(hooks.BEFORE_MANIFEST, self.trail.epoch + 1)
        commit = self._new_commit(self.trail.batch_id, started, {})
        self._is_unsure = True
        commit_without_rows(self._journal, self.trail, self._operators, assignments, commit)
        self._is_unsure = False
        hooks.reach(hooks.AFTER_MANIFEST, self.trail.epoch)
        self._director.after_epoch(self.trail.epoch, clock.stopwatch() - started, {})
        return self.trail.epoch

    def _settle(self) -> None:
        """Find out whether an epoch without rows is there whose commit raised an error."""
        if not self._is_unsure:
            return
        try:
            manifest, checksum = self._journal.read(Epoch(self.trail.epoch + 1))
        except MissingFileError:
            manifest = None
        if manifest is not None and manifest.run == self._run_id:
            self.trail.advance(manifest, checksum)
        # Else nothing is there, or another run's: then the next commit finds out.
        self._is_unsure = False

    def finish(self, epoch: RunningEpoch) -> EpochReport:
        """Tell the director of an epoch that is committed."""
        number = epoch.times.epoch
        seconds = clock.stopwatch() - epoch.started
        loads = group_loads(epoch.reports, self._journal.identity.key_groups)
        self._director.after_epoch(number, seconds, loads)
        self.last_reports, self.last_began = epoch.reports, epoch.started
        return EpochReport(
            number,
            epoch.batch_id,
            seconds,
            epoch.phases,
            {
                name: OperatorReport.of(
                    shards,
                    self.trail.operator(table_name(name)).rows,
                    epoch.times.watermark(name).now_us,
                )
                for name, shards in epoch.reports.items()
            },
            epoch.times.watermark_ms,
        )
