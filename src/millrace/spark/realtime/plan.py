"""The plan of a real-time query: one streaming frame, from its sources to its sink.

A micro-batch is planned when it comes, with the assignments of its epoch. A real-time plan is made
before the first batch, so it has one assignment per operator for as long as it runs; another one
needs another plan, and Spark's query is started again with it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.epoch.report import ShardReport
from millrace.epoch.shard import ShardTask
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal
from millrace.spark import jvm
from millrace.spark.daemon import RESIDENT
from millrace.spark.outputs import sent_schema
from millrace.spark.pipeline import Pipeline
from millrace.spark.realtime.worker import ResidentTask
from millrace.spark.session import ANSWER_SECONDS, ANSWER_SECONDS_DEFAULT, DAEMON_MODULE
from millrace.spark.sinks.contract import RealTimeTarget
from millrace.spark.steps import OperatorStep


class RealTimePlan:
    """A query's operators under fixed assignments."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        pipeline: Pipeline,
        assignments: Mapping[OperatorName, Assignment],
        *,
        memory_bytes: int,
        ansi: bool,
    ) -> None:
        self.assignments = dict(assignments)
        self._spark = spark
        self._journal = journal
        self._pipeline = pipeline
        self._memory_bytes = memory_bytes
        self._ansi = ansi
        self._java = jvm.load_real_time(spark)
        context: Any = spark.sparkContext._jsc
        self._context = context.sc()
        java: Any = spark._jvm
        self._reports = java.org.apache.spark.util.CollectionAccumulator()
        self._context.register(self._reports)
        self._processes = self._java.ShardProcesses(
            spark.sparkContext.pythonExec, RESIDENT, DAEMON_MODULE, _environment(spark)
        )
        seconds = spark.sparkContext.getConf().get(ANSWER_SECONDS, ANSWER_SECONDS_DEFAULT)
        self._answer_ms = int(float(seconds or ANSWER_SECONDS_DEFAULT) * 1000)

    def target(self) -> RealTimeTarget:
        """What the query's sink gets, and how."""
        batch = self._pipeline.batches.united()
        flow = self._pipeline.over(batch, "", self._operator)
        ((sink, rows),) = flow.sinks
        return sink.real_time(rows)

    def _operator(self, step: OperatorStep, df: DataFrame, moment: str) -> DataFrame:
        """An operator's answers, as a streaming frame."""
        operator = step.operator
        assignment = self.assignments[operator.name]
        outputs = self._pipeline.outputs[operator.name]
        exchanged = step.exchange(df, assignment, self._journal.identity.scheme)
        task = ShardTask.of(
            self._journal,
            operator,
            assignment,
            self._memory_bytes,
            spec=json.dumps(operator.spec(), sort_keys=True),
            code=step.code,
            ansi=self._ansi,
        )
        frame: Any = exchanged._jdf
        java: Any = self._spark._jvm
        described = sent_schema(operator, outputs).json()
        sent = java.org.apache.spark.sql.types.DataType.fromJson(described).asNullable()
        shards = getattr(self._java, "ShardSession$Shards")(
            self._journal.identity.query,
            str(operator.name),
            ResidentTask(task, outputs).encode(),
            frame.schema(),
            sent,
            "UTC",
            self._answer_ms,
            self._processes,
            self._reports,
        )
        answers = self._java.ShardBridge.over(
            frame.sparkSession(), frame.queryExecution().analyzed(), self._java.ShardBridge(shards)
        )
        return DataFrame(answers, self._spark)

    def reports(self) -> list[ShardReport]:
        """What shards have reported since the last `forget_reports`."""
        # From the query's own processes, as what accumulators of PySpark bring.
        return [pickle.loads(bytes(report)) for report in self._reports.value()]

    def forget_reports(self) -> None:
        self._reports.reset()


def _environment(spark: SparkSession) -> dict[str, str]:
    """What the processes of shards get beside the executor's own environment."""
    return {str(k): str(v) for k, v in spark.sparkContext.environment.items()}
