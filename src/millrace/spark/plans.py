"""The plans of a query's operators, kept between epochs.

Analysing, optimising and planning an operator takes longer than running a small epoch, so the plan
of an operator under an assignment is made once, ahead of the epoch that needs it where possible.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.epoch.report import ShardReport
from millrace.epoch.shard import ShardTask
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal
from millrace.operators.process.outputs import LATE
from millrace.spark.outputs import sent_schema
from millrace.spark.pipeline import Flow, Pipeline
from millrace.spark.shard import ReportParam, decode_times, shard_function
from millrace.spark.steps import Exchange, OperatorStep
from millrace.spark.template import PlanTemplate, at_moment, is_bare

KEPT_TEMPLATES = 4
"""Plans kept per operator: the one in use, and those of the assignments before and after it."""


@dataclass(frozen=True)
class Layout:
    """Where one epoch runs."""

    assignments: Mapping[OperatorName, Assignment]
    locations: Mapping[OperatorName, str]
    """Operator -> Spark's preferred locations of its shards."""


class PlanCache:
    """Plans by operator and assignment."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        pipeline: Pipeline,
        *,
        memory_bytes: int,
        ansi: bool,
    ) -> None:
        self._journal = journal
        self._pipeline = pipeline
        self._memory_bytes = memory_bytes
        self._ansi = ansi
        self._specs = {op.name: json.dumps(op.spec(), sort_keys=True) for op in pipeline.operators}
        self._accumulator = spark.sparkContext.accumulator([], ReportParam())
        self._templates: dict[tuple[OperatorName, Assignment], PlanTemplate] = {}
        self._inputs: dict[OperatorName, DataFrame] = {}
        """The newest batch of each operator whose plan is made from a template."""
        self._fixed_width: dict[OperatorName, bool] = {}
        """Whether all rows that an operator was sent in its first epoch are of one width."""

    def forget(self) -> None:
        """Drop all plans: batches come from another session from now on."""
        self._templates.clear()
        self._inputs.clear()
        self._pipeline.forget_plans()

    def over(self, df: DataFrame, moment: str, layout: Layout, *, is_first: bool) -> Flow:
        """Plan all steps over a batch; nothing runs yet. The first epoch brings initial state."""
        self._accumulator.value = []
        return self._pipeline.over(
            df, moment, functools.partial(self._plan, layout=layout, is_first=is_first)
        )

    def are_fixed_width(self, batch: DataFrame) -> bool:
        """Whether all rows of a query's batches, and all that operators get, are of one width."""
        return all(self._fixed_width.values()) and is_fixed_width(batch.schema)

    def reports(self) -> list[ShardReport]:
        """What the shards of the last plan have reported so far."""
        return self._accumulator.value

    def _plan(
        self, step: OperatorStep, df: DataFrame, moment: str, *, layout: Layout, is_first: bool
    ) -> DataFrame:
        name = step.operator.name
        assignment, locations = layout.assignments[name], layout.locations.get(name, "")
        first = step.first if is_first else None
        if step.late is not None or step.before is not None:
            late_us = decode_times(json.loads(moment)).watermark(name).before_us or 0
            if step.before is not None:
                step.before(late_us)
            if step.late is not None and LATE in self._pipeline.outputs[name]:
                built = self._build(step, step.late(late_us), df, assignment)
                return at_moment(built, moment, locations)
        # A user's function may give another plan for every batch; bare rows cannot.
        if first is not None or not is_bare(df):
            built = self._build(step, first or step.exchange, df, assignment)
            return at_moment(built, moment, locations)
        self._inputs[name] = df
        return self._template(step, assignment).over(df, moment, locations)

    def _template(self, step: OperatorStep, assignment: Assignment) -> PlanTemplate:
        """The plan of an operator under an assignment, whoever asked for it first."""
        name = step.operator.name
        key = (name, assignment)
        template = self._templates.get(key)
        if template is None:
            template = PlanTemplate(
                self._inputs[name],
                lambda batch: self._build(step, step.exchange, batch, assignment),
            )
            kept = [k for k in self._templates if k[0] == name]
            for old in kept[: max(0, len(kept) - KEPT_TEMPLATES + 1)]:
                self._templates.pop(old, None)
            self._templates[key] = template
        return template

    def _build(
        self, step: OperatorStep, exchange: Exchange, df: DataFrame, assignment: Assignment
    ) -> DataFrame:
        outputs = self._pipeline.outputs[step.operator.name]
        task = self._task(step, assignment)
        function: Any = shard_function(task, outputs, self._accumulator)
        exchanged = exchange(df, assignment, self._journal.identity.scheme)
        if step.operator.name not in self._fixed_width:
            self._fixed_width[step.operator.name] = is_fixed_width(exchanged.schema)
        return exchanged.mapInArrow(function, sent_schema(step.operator, outputs))

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make the plans of future assignments, so that no epoch waits for that."""
        for step in self._pipeline.steps:
            assignment = assignments.get(step.operator.name)
            if assignment is not None and step.operator.name in self._inputs:
                self._template(step, assignment)

    def tasks(self) -> dict[OperatorName, ShardTask]:
        """What a worker needs to follow each operator's state, whichever key groups."""
        return {step.operator.name: self._task(step, None) for step in self._pipeline.steps}

    def _task(self, step: OperatorStep, assignment: Assignment | None) -> ShardTask:
        return ShardTask.of(
            self._journal,
            step.operator,
            assignment,
            self._memory_bytes,
            spec=self._specs[step.operator.name],
            code=step.code,
            ansi=self._ansi,
        )


def is_fixed_width(data_type: T.DataType) -> bool:
    """Whether all values of a type take the same number of bytes."""
    if isinstance(data_type, T.StructType):
        return all(is_fixed_width(field.dataType) for field in data_type.fields)
    return isinstance(
        data_type,
        T.NumericType
        | T.BooleanType
        | T.DateType
        | T.TimestampType
        | T.TimestampNTZType
        | T.DayTimeIntervalType
        | T.TimeType,
    )
