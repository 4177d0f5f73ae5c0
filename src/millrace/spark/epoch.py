"""The epoch runner: what happens between Spark handing over a micro-batch and committing it.

    batch already in a manifest? -> nothing to do
    plan the pipeline over the batch -> the sinks run it -> shards report -> manifest

Invariant: state advances only by the manifest, after every shard of every operator has reported and
every sink has returned. Everything before that can be repeated.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from millrace import clock, crashpoints
from millrace.errors import EpochFailedError, MissingEpochError, StoppingError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, format_ranges
from millrace.log import Journal, OperatorCommit, Trail
from millrace.log.retention import collect
from millrace.operators.operator import MAIN, table_name
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests
from millrace.spark.background import Background
from millrace.spark.executors import SparkCluster, places
from millrace.spark.outputs import sent_schema
from millrace.spark.pipeline import Pipeline
from millrace.spark.report import EpochReport, OperatorReport, ReportParam, ShardReport
from millrace.spark.session import BATCH_SETTINGS
from millrace.spark.shard import ShardTask, encode_moment, shard_function
from millrace.spark.steps import Exchange, OperatorStep
from millrace.spark.template import PlanTemplate, at_moment, is_bare


@dataclass(frozen=True)
class RunnerOptions:
    """What `start` was told."""

    retain_epochs: int
    memory_bytes: int
    ansi: bool


KEPT_TEMPLATES = 4
"""Plans kept per operator: the one in use, and those of assignments to come or just left."""

COLLECT_EVERY = 16
"""Old files are collected every so many epochs."""

STOP_MS = 10_000
"""How long a batch that comes while the query is being stopped waits for the stop."""

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


@dataclass(frozen=True)
class _Layout:
    """Where one epoch runs."""

    assignments: Mapping[OperatorName, Assignment]
    places: Mapping[OperatorName, str]


class EpochRunner:
    """Runs the batches of one query."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        pipeline: Pipeline,
        assignments: dict[OperatorName, Assignment],
        options: RunnerOptions,
        direction: DirectorOptions,
        batch_times: Callable[[], tuple[int, int | None]],
    ) -> None:
        self.run_id = clock.fresh_id()
        self.failure: BaseException | None = None
        self.running = threading.Lock()
        """Held while an epoch runs."""
        self.stopping = threading.Event()
        self.listeners: list[Callable[[Epoch], None]] = []
        """Told of every epoch after it was committed; they must be quick."""
        self.reports: list[EpochReport] = []
        self.journal = journal
        self.trail: Trail = journal.newest()
        self._pipeline = pipeline
        self._options = options
        self._batch_times = batch_times
        self._operators = pipeline.operators
        self._specs = {op.name: op.spec() for op in self._operators}
        self._spec_texts = {n: json.dumps(s, sort_keys=True) for n, s in self._specs.items()}
        self._accumulator = spark.sparkContext.accumulator([], ReportParam())
        self._layout = _Layout(assignments, {})
        self._first = True
        self._templates: dict[tuple[OperatorName, Assignment], PlanTemplate] = {}
        self._inputs: dict[OperatorName, DataFrame] = {}
        """The newest batch of each operator whose plan is made from a template."""
        cluster = SparkCluster(spark, self._tasks, self.prepare)
        requests = Requests(journal.store)
        self.director = Director(cluster, requests, self.run_id, assignments, direction)
        self.background = Background(self.director, requests)
        self._crash_pid = os.getpid() if crashpoints.VARIABLE in os.environ else None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every micro-batch."""
        if self.stopping.is_set():
            _await_stop(df.sparkSession)
            raise StoppingError("the query is being stopped; this batch runs after its next start.")
        with self.running:
            try:
                self._run(df, batch_id)
            except BaseException as error:
                if self.stopping.is_set() and _is_interruption(error):
                    raise _interrupted() from None
                self.failure = error
                self.director.close()
                raise

    def resume(self) -> None:
        """Go on after a stop, with the plans of a new session."""
        self._first = True
        self._templates.clear()
        self._inputs.clear()
        self._pipeline.forget_plans()
        self.stopping.clear()

    def _run(self, df: DataFrame, batch_id: int) -> None:
        if self._first:
            # Another driver may have gone on between this query's start and its first batch.
            self.trail = self.journal.newest()
        expected = 0 if self.trail.batch_id is None else self.trail.batch_id + 1
        if batch_id < expected:
            return
        if batch_id > expected:
            raise MissingEpochError(
                f"Spark is at batch {batch_id}, but the last manifest of {self.journal.store.url}, "
                f"of epoch {self.trail.epoch}, ends before batch {expected}: the manifests in "
                "between are missing, and going on would lose their rows. Restore the folder "
                "'manifests' and 'segments' from a backup, or start over at a new location."
            )
        started = clock.stopwatch()
        phases: dict[str, float] = {}
        epoch = Epoch(self.trail.epoch + 1)
        if self._first:
            for key, value in BATCH_SETTINGS.items():
                df.sparkSession.conf.set(key, value)
        self._accumulator.value = []
        assignments, executors = self.director.before_epoch(self.trail.epoch)
        where = {name: places(executors, a.executors) for name, a in assignments.items()}
        self._layout = _Layout(assignments, where)
        batch_ms, watermark = self._batch_times()
        # Where a clock was set back, time stands still: what has expired stays so, swept or not.
        time_ms = max(batch_ms, self.trail.processing_ms)
        watermark_us = None if watermark is None else watermark * 1000
        before = self.trail.watermark_ms
        late_us = None if before is None else before * 1000
        moment = encode_moment(self.trail.epoch, time_ms * 1000, watermark_us, late_us)
        flow = self._pipeline.over(df, moment, self._plan_operator)
        phases["plan"] = clock.stopwatch() - started
        crashpoints.reach(crashpoints.BEFORE_SINK, epoch)
        at = clock.stopwatch()
        try:
            flow.write(batch_id)
        finally:
            flow.release()
        phases["run"] = clock.stopwatch() - at
        crashpoints.reach(crashpoints.AFTER_SINK, epoch)
        at = clock.stopwatch()
        reports = self._collect_reports(epoch)
        crashpoints.reach(crashpoints.BEFORE_MANIFEST, epoch)
        self.journal.commit(
            self.trail,
            run=self.run_id,
            batch_id=batch_id,
            watermark_ms=watermark,
            operators=self._commits(reports),
            specs=self._specs,
            full=self._first,
            figures={
                "seconds": round(clock.stopwatch() - started, 4),
                "inputRows": {
                    name: sum(r.input_rows for r in shards.values())
                    for name, shards in reports.items()
                },
            },
            processing_ms=time_ms,
            wanted=self.director.wanted(),
        )
        self._first = False
        phases["manifest"] = clock.stopwatch() - at
        crashpoints.reach(crashpoints.AFTER_MANIFEST, epoch)
        if epoch % COLLECT_EVERY == 0:
            at = clock.stopwatch()
            collect(self.journal, self._options.retain_epochs)
            phases["collect"] = clock.stopwatch() - at
        seconds = clock.stopwatch() - started
        self.director.after_epoch(epoch, seconds, self._group_rows(reports))
        self._remember(
            EpochReport(
                epoch,
                batch_id,
                seconds,
                phases,
                {
                    name: OperatorReport.of(shards, self.trail.operator(name).rows)
                    for name, shards in reports.items()
                },
                watermark,
            )
        )
        for listener in self.listeners:
            listener(epoch)
        crashpoints.reach(crashpoints.BEFORE_COMMIT, epoch)

    def _plan_operator(self, step: OperatorStep, df: DataFrame, moment: str) -> DataFrame:
        name = step.operator.name
        assignment = self._layout.assignments[name]
        where = self._layout.places.get(name, "")
        # A user's function may give another plan for every batch; rows as they come cannot.
        if self._exchange(step) is not step.exchange or not is_bare(df):
            return at_moment(self._build(step, df, assignment), moment, where)
        self._inputs[name] = df
        return self._template(step, assignment).over(df, moment, where)

    def _template(self, step: OperatorStep, assignment: Assignment) -> PlanTemplate:
        """The plan of an operator under an assignment, whoever asked for it first."""
        name = step.operator.name
        key = (name, assignment)
        template = self._templates.get(key)
        if template is None:
            sample = self._inputs[name]
            template = PlanTemplate(sample, lambda batch: self._build(step, batch, assignment))
            kept = [k for k in self._templates if k[0] == name]
            for old in kept[: max(0, len(kept) - KEPT_TEMPLATES + 1)]:
                self._templates.pop(old, None)
            self._templates[key] = template
        return template

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make the plans of assignments to come, so that no epoch waits for that."""
        for step in self._pipeline.steps:
            assignment = assignments.get(step.operator.name)
            if assignment is not None and step.operator.name in self._inputs:
                self._template(step, assignment)

    def _exchange(self, step: OperatorStep) -> Exchange:
        if self.trail.epoch == 0 and step.first is not None:
            return step.first
        return step.exchange

    def _build(self, step: OperatorStep, df: DataFrame, assignment: Assignment) -> DataFrame:
        routed = self._exchange(step)(df, assignment)
        task = self._task(step, assignment)
        function: Any = shard_function(task, self._accumulator)
        outputs = self._pipeline.outputs[step.operator.name]
        return routed.mapInArrow(function, sent_schema(step.operator, outputs))

    @property
    def specs(self) -> dict[OperatorName, dict[str, Any]]:
        """What each operator is."""
        return self._specs

    def _tasks(self) -> dict[OperatorName, ShardTask]:
        """What a worker needs to follow each operator's state."""
        return {
            step.operator.name: self._task(step, self._layout.assignments[step.operator.name])
            for step in self._pipeline.steps
        }

    def _task(self, step: OperatorStep, assignment: Assignment) -> ShardTask:
        operator = step.operator
        return ShardTask(
            location=self.journal.store.url,
            query=self.journal.identity.query,
            operator=operator.name,
            spec=self._spec_texts[operator.name],
            code=step.code,
            key_groups=self.journal.identity.key_groups,
            groups=tuple(
                format_ranges(assignment.groups_of(Shard(s)).tolist())
                for s in range(assignment.shards)
            ),
            index_budget=self._options.memory_bytes,
            ansi=self._options.ansi,
            outputs=self._pipeline.outputs[operator.name],
            driver=self._crash_pid,
        )

    def _collect_reports(self, epoch: Epoch) -> dict[OperatorName, dict[Shard, ShardReport]]:
        """One report per operator and shard; of a shard that ran twice, either will do."""
        found: dict[OperatorName, dict[Shard, ShardReport]] = {
            op.name: {} for op in self._operators
        }
        for report in self._accumulator.value:
            if report.epoch == epoch:
                found[report.operator][report.shard] = report
        for name, shards in found.items():
            missing = set(range(self._layout.assignments[name].shards)) - set(shards)
            if missing:
                raise EpochFailedError(
                    f"epoch {epoch}: shards {sorted(missing)} of operator {name!r} did not report, "
                    "so the epoch was not committed. Start the query again: it repeats the batch."
                )
        return found

    def _commits(
        self, reports: dict[OperatorName, dict[Shard, ShardReport]]
    ) -> dict[OperatorName, OperatorCommit]:
        """What the epoch did to every table that it changed, and to every main table."""
        commits: dict[OperatorName, OperatorCommit] = {}
        for operator in self._operators:
            shards = [reports[operator.name][s] for s in sorted(reports[operator.name])]
            for table in operator.tables:
                written = [r.tables[table] for r in shards if table in r.tables]
                if written or table == MAIN:
                    name = table_name(operator.name, table)
                    grown = sum(w.added_rows - w.removed_rows for w in written)
                    commits[name] = OperatorCommit(
                        self._layout.assignments[operator.name],
                        tuple(w.segment for w in written),
                        self.trail.operator(name).rows + grown,
                    )
        return commits

    def _group_rows(
        self, reports: dict[OperatorName, dict[Shard, ShardReport]]
    ) -> dict[OperatorName, npt.NDArray[np.float64]]:
        found = {}
        for name, shards in reports.items():
            rows = found[name] = np.zeros(self.journal.identity.key_groups)
            for report in shards.values():
                for group, count in report.group_rows.items():
                    rows[group] += count
        return found

    def _remember(self, report: EpochReport) -> None:
        self.reports.append(report)
        del self.reports[:-1000]


def _await_stop(spark: SparkSession) -> None:
    """Sleep on the stream's own thread until the stop interrupts it."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.sleep(STOP_MS)
    except Py4JJavaError as error:
        raise _interrupted() if _is_interruption(error) else error from None


def _is_interruption(error: BaseException) -> bool:
    return any(name in str(error) for name in INTERRUPTIONS)


def _interrupted() -> StoppingError:
    """What Spark takes for the interruption of a query that is being stopped.

    It looks for these words in the text of the error. The error that py4j raises has them too, but
    with a Java stack trace behind them, on which Spark's search runs out of stack.
    """
    return StoppingError(
        "the query is being stopped; this batch runs after its next start "
        f"(py4j.protocol.Py4JJavaError: An error occurred while calling it: {INTERRUPTIONS[0]})"
    )
