"""A query by the names of Spark's `StreamingQuery`, so that code written for one takes the other.

What Spark knows of a query comes from Spark's own handle. What it cannot know, the state, is filled
in: `stateOperators` has an entry per operator, from the epoch's report, in Spark's own class.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from millrace.epoch.report import EpochReport, OperatorReport

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.run import Run


class SparkNames:
    """The names of `StreamingQuery`, for a class that has a run."""

    _run: Run
    _own_sources: int

    @property
    def spark_query(self) -> StreamingQuery:
        raise NotImplementedError

    @property
    def runId(self) -> str:
        """Of Spark's query; another one after every start."""
        return self.spark_query.runId

    @property
    def name(self) -> str | None:
        """The query's name, if it was given one."""
        return self.spark_query.name

    @property
    def isActive(self) -> bool:
        return self._run.is_active

    @property
    def status(self) -> dict[str, Any]:
        """What Spark's query is doing now."""
        return self.spark_query.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The figures of the last batch, with those of its operators."""
        recent = self.spark_query.lastProgress
        return None if recent is None else self._with_operators([recent])[0]

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The figures of recent batches, oldest first."""
        return self._with_operators(self.spark_query.recentProgress)

    def _with_operators(self, published: Sequence[Any]) -> list[StreamingQueryProgress]:
        reports = {report.batch_id: report for report in self._run.reports}
        return [
            progress_of(each, reports.get(each["batchId"]), self._own_sources) for each in published
        ]

    def explain(self, extended: bool = False) -> None:
        """Print the plan of Spark's part of the last batch."""
        self.spark_query.explain(extended)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; with a timeout in seconds, say whether it has come."""
        ended = self.await_termination(timeout)
        return None if timeout is None else ended

    def await_termination(self, timeout: float | None = None) -> bool:
        raise NotImplementedError

    def processAllAvailable(self) -> None:
        """Wait until everything that the sources have now is committed."""
        self.process_all_available()

    def process_all_available(self) -> None:
        raise NotImplementedError


def progress_of(
    published: Any, report: EpochReport | None, own_sources: int
) -> StreamingQueryProgress:
    """Spark's figures of a batch, with the operators of the epoch and the program's sources."""
    figures: dict[str, Any] = json.loads(published.json)
    if own_sources:
        figures["sources"] = figures["sources"][:-own_sources]
    if report is not None:
        figures["stateOperators"] = [
            _operator_progress(str(name), operator) for name, operator in report.operators.items()
        ]
    return StreamingQueryProgress.fromJson(figures)


def _operator_progress(name: str, report: OperatorReport) -> dict[str, Any]:
    """An operator's report in the fields of Spark's `StateOperatorProgress`."""
    milliseconds = {phase: round(1000 * each) for phase, each in report.shard_seconds.items()}
    counters = report.counters
    return {
        "operatorName": name,
        "numRowsTotal": report.num_rows_total,
        "numRowsUpdated": report.num_rows_updated,
        "numRowsRemoved": counters.get("evicted", 0) + counters.get("expired", 0),
        "allUpdatesTimeMs": milliseconds.get("apply", 0),
        # Rows go without being removed one by one.
        "allRemovalsTimeMs": 0,
        "commitTimeMs": milliseconds.get("segment", 0),
        "memoryUsedBytes": report.heap_bytes,
        "numRowsDroppedByWatermark": counters.get("late", 0),
        "numShufflePartitions": report.shards,
        "numStateStoreInstances": report.shards,
        "customMetrics": {**counters, "bytesWritten": report.bytes_written},
    }
