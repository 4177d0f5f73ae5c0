"""The epoch runner: what happens between Spark handing over a micro-batch and committing it.

    batch already in a manifest? -> nothing to do
    plan the operators over the batch -> sink runs the plan -> shards report -> manifest

Invariant: state advances only by the manifest, after every shard of every operator has reported and
the sink has returned. Everything before that can be repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace import clock, crashpoints
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, format_ranges
from millrace.log import Journal, OperatorCommit, Trail
from millrace.log.retention import collect
from millrace.operators import AggregateOperator
from millrace.spark.exchange import AggregateExchange
from millrace.spark.report import ReportParam, ShardReport
from millrace.spark.session import BATCH_SETTINGS
from millrace.spark.shard import VERSION_PROPERTY, ShardTask, shard_function
from millrace.spark.sinks import Sink
from millrace.spark.template import PlanTemplate


@dataclass(frozen=True)
class TransformStep:
    """Stateless Spark after an operator, applied to every batch."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class AggregateStep:
    """A keyed aggregate and the exchange in front of it."""

    operator: AggregateOperator
    exchange: AggregateExchange


Step = TransformStep | AggregateStep


@dataclass(frozen=True)
class EpochReport:
    """What one epoch did."""

    epoch: Epoch
    batch_id: int
    seconds: float
    phases: dict[str, float]
    operators: dict[OperatorName, OperatorReport]
    watermark_ms: int | None


@dataclass(frozen=True)
class OperatorReport:
    """What one epoch did to one operator, in Spark's names where Spark has them."""

    shards: int
    input_rows: int
    num_rows_updated: int
    num_rows_total: int
    bytes_written: int
    merged_rows: int
    heap_bytes: int
    shard_seconds: dict[str, float] = field(default_factory=dict)
    """The slowest shard's time in each phase."""


@dataclass(frozen=True)
class RunnerOptions:
    """What `start` was told."""

    retain_epochs: int
    memory_bytes: int
    ansi: bool


COLLECT_EVERY = 16
"""Old files are collected every so many epochs."""


class EpochRunner:
    """Runs the batches of one query."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        steps: tuple[Step, ...],
        sink: Sink,
        parallelism: int,
        options: RunnerOptions,
        watermark: Callable[[], int | None],
    ) -> None:
        self.run_id = clock.fresh_id()
        self.failure: BaseException | None = None
        self.reports: list[EpochReport] = []
        self.journal = journal
        self.trail: Trail = journal.trail(journal.head())
        self._steps = steps
        self._sink = sink
        self._options = options
        self._watermark = watermark
        self._operators = [s.operator for s in steps if isinstance(s, AggregateStep)]
        self._specs = {op.name: op.spec() for op in self._operators}
        self._spec_texts = {n: json.dumps(s, sort_keys=True) for n, s in self._specs.items()}
        self._accumulator = spark.sparkContext.accumulator([], ReportParam())
        self._assignment = Assignment.even(journal.identity.key_groups, parallelism)
        self._first = True
        self._template: PlanTemplate | None = None
        # A user's function between operators may give another plan for every batch.
        self._templated = not any(isinstance(s, TransformStep) for s in steps)
        self._crash_pid = os.getpid() if crashpoints.VARIABLE in os.environ else None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every micro-batch."""
        try:
            self._run(df, batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def _run(self, df: DataFrame, batch_id: int) -> None:
        if self.trail.batch_id is not None and batch_id <= self.trail.batch_id:
            return
        started = clock.stopwatch()
        phases: dict[str, float] = {}
        epoch = Epoch(self.trail.epoch + 1)
        if self._first:
            for key, value in BATCH_SETTINGS.items():
                df.sparkSession.conf.set(key, value)
        self._accumulator.value = []
        df.sparkSession.sparkContext.setLocalProperty(VERSION_PROPERTY, str(self.trail.epoch))
        output = self._plan(df)
        phases["plan"] = clock.stopwatch() - started
        crashpoints.reach(crashpoints.BEFORE_SINK, epoch)
        at = clock.stopwatch()
        self._sink.write(output, batch_id)
        phases["run"] = clock.stopwatch() - at
        crashpoints.reach(crashpoints.AFTER_SINK, epoch)
        at = clock.stopwatch()
        reports = self._collect_reports(epoch)
        crashpoints.reach(crashpoints.BEFORE_MANIFEST, epoch)
        watermark = self._watermark()
        self.journal.commit(
            self.trail,
            run=self.run_id,
            batch_id=batch_id,
            watermark_ms=watermark,
            operators={op.name: self._commit(op.name, reports) for op in self._operators},
            specs=self._specs,
            full=self._first,
        )
        self._first = False
        phases["manifest"] = clock.stopwatch() - at
        crashpoints.reach(crashpoints.AFTER_MANIFEST, epoch)
        if epoch % COLLECT_EVERY == 0:
            at = clock.stopwatch()
            collect(self.journal, self._options.retain_epochs)
            phases["collect"] = clock.stopwatch() - at
        seconds = clock.stopwatch() - started
        self._remember(
            EpochReport(
                epoch,
                batch_id,
                seconds,
                phases,
                {op.name: self._operator_report(op.name, reports) for op in self._operators},
                watermark,
            )
        )
        crashpoints.reach(crashpoints.BEFORE_COMMIT, epoch)

    def _plan(self, df: DataFrame) -> DataFrame:
        if not self._templated:
            return self._build(df)
        if self._template is None:
            self._template = PlanTemplate(df, self._build)
            self._templated = self._template.usable
            if not self._templated:
                return self._build(df)
        return self._template.over(df)

    def _build(self, df: DataFrame) -> DataFrame:
        for step in self._steps:
            if isinstance(step, TransformStep):
                df = step.function(df)
            else:
                routed = step.exchange(df, self._assignment)
                function: Any = shard_function(self._task(step.operator), self._accumulator)
                df = routed.mapInArrow(function, step.operator.output_schema)
        return df

    def _task(self, operator: AggregateOperator) -> ShardTask:
        return ShardTask(
            location=self.journal.store.url,
            query=self.journal.identity.query,
            operator=operator.name,
            spec=self._spec_texts[operator.name],
            key_groups=self.journal.identity.key_groups,
            groups=tuple(
                format_ranges(self._assignment.groups_of(Shard(s)).tolist())
                for s in range(self._assignment.shards)
            ),
            index_budget=self._options.memory_bytes,
            ansi=self._options.ansi,
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
            missing = set(range(self._assignment.shards)) - set(shards)
            if missing:
                raise EpochFailedError(
                    f"epoch {epoch}: shards {sorted(missing)} of operator {name!r} did not report, "
                    "so the epoch was not committed. Start the query again: it repeats the batch."
                )
        return found

    def _commit(
        self, name: OperatorName, reports: dict[OperatorName, dict[Shard, ShardReport]]
    ) -> OperatorCommit:
        mine = [reports[name][s] for s in sorted(reports[name])]
        rows = self.trail.operator(name).rows + sum(r.added_rows - r.removed_rows for r in mine)
        segments = tuple(r.segment for r in mine if r.segment is not None)
        return OperatorCommit(self._assignment, segments, rows)

    def _operator_report(
        self, name: OperatorName, reports: dict[OperatorName, dict[Shard, ShardReport]]
    ) -> OperatorReport:
        mine = list(reports[name].values())
        phases = sorted({phase for r in mine for phase in r.seconds})
        return OperatorReport(
            shards=len(mine),
            input_rows=sum(r.input_rows for r in mine),
            num_rows_updated=sum(r.changed_rows for r in mine),
            num_rows_total=self.trail.operator(name).rows,
            bytes_written=sum(r.segment.bytes for r in mine if r.segment),
            merged_rows=sum(r.merged_rows for r in mine),
            heap_bytes=max(r.heap_bytes for r in mine),
            shard_seconds={p: max(r.seconds.get(p, 0.0) for r in mine) for p in phases},
        )

    def _remember(self, report: EpochReport) -> None:
        self.reports.append(report)
        del self.reports[:-1000]
