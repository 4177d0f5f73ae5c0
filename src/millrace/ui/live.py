"""What only a query's own process knows: its executors, its source rows, why it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from millrace.ui.histogram import Histogram
from millrace.ui.watch import QueryStatus, SourceLag

if TYPE_CHECKING:
    from millrace.api.query import Query


Figures = tuple[int | None, float | None]
"""Rows that the sources gave, and milliseconds from trigger to commit."""

KEPT = 200
"""Batches whose figures are kept."""


class LiveQuery:
    """A query in this process, asked for its status now and then."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._last = QueryStatus("running")
        self._epochs: dict[int, int] = {}
        """Batch -> epoch."""
        self._published: dict[int, Figures] = {}
        """Batch -> what Spark has published of it."""
        self._last_published: tuple[int, str] = (-1, "")
        self._shard_seconds: dict[str, Histogram] = {}

    def status(self) -> QueryStatus:
        """How it is now; after its end, how it was, and why it ended."""
        if self._last.state == "running":
            try:
                self._last = self._now()
            except (Py4JError, OSError):
                # Spark's JVM has ended, and the query with it.
                self._last = QueryStatus("stopped", "", (), self._last.figures)
        return self._last

    def _now(self) -> QueryStatus:
        query = self._query
        if not query.is_active:
            error = None if query.is_stopping else query.exception()
            state = "stopped" if error is None else "failed"
            reason = "" if error is None else str(error).split("\n", 1)[0]
            return QueryStatus(state, reason, (), self._figures())
        problem, executors = query.problem or "", tuple(query.executors())
        scaling = query.scaling() if query.is_autoscaled else None
        sources = tuple(SourceLag(**lag) for lag in query.lag())
        return QueryStatus(
            "running", problem, executors, self._figures(), sources, self._shard_seconds, scaling
        )

    def _figures(self) -> dict[int, Figures]:
        """Of the epochs that Spark has published its own figures for."""
        # Both lists are long and expensive, so ask only for what is new.
        newest = max(self._epochs.values(), default=0)
        for report in self._query.recent_progress(after=newest):
            self._epochs[report["batch_id"]] = report["epoch"]
            for name, operator in report["operators"].items():
                took = self._shard_seconds.setdefault(name, Histogram())
                took.add(sum(operator["shard_seconds"].values()))
        for progress in self._new_progress():
            took = progress["durationMs"].get("triggerExecution")
            figures = (progress["numInputRows"], None if took is None else float(took))
            self._published[progress["batchId"]] = figures
        for known in (self._epochs, self._published):
            for batch in sorted(known)[:-KEPT]:
                del known[batch]
        both = self._epochs.keys() & self._published.keys()
        return {self._epochs[batch]: self._published[batch] for batch in sorted(both)}

    def _new_progress(self) -> list[Any]:
        """What Spark has published since; it publishes an idle batch again when it has rows."""
        query: Any = self._query.spark_query
        last = query.lastProgress
        if last is None:
            return []
        batch, _ = before = self._last_published
        self._last_published = (last["batchId"], last["timestamp"])
        if self._last_published == before:
            return []
        return [last] if last["batchId"] in (batch, batch + 1) else list(query.recentProgress)
