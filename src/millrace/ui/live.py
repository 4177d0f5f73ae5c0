"""What a query's own process knows beyond the location: executors, source rows, why it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from millrace.ui.watch import Live

if TYPE_CHECKING:
    from millrace.api.query import Query


class LiveQuery:
    """A query in this process, asked once in a while."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._last = Live("running")
        self._batches: dict[int, int] = {}

    def look(self) -> Live:
        """How it is now; after its end, how it was, and why it ended."""
        if self._last.state == "running":
            try:
                self._last = self._now()
            except (Py4JError, OSError):
                # Spark's JVM has ended, and the query with it.
                self._last = Live("stopped", "", (), self._last.figures)
        return self._last

    def _now(self) -> Live:
        query = self._query
        if not query.is_active:
            error = None if query.is_stopping else query.exception()
            state = "stopped" if error is None else "failed"
            reason = "" if error is None else str(error).split("\n", 1)[0]
            return Live(state, reason, (), self._figures())
        return Live("running", "", tuple(query.executors()), self._figures())

    def _figures(self) -> dict[int, tuple[int | None, float | None]]:
        """Of the epochs that Spark has published its own figures for."""
        epochs = {r["batch_id"]: r["epoch"] for r in self._query.recent_progress()[-200:]}
        found: dict[int, tuple[int | None, float | None]] = {}
        for progress in self._query.spark_query.recentProgress:
            epoch = epochs.get(progress["batchId"])
            if epoch is not None:
                took = progress["durationMs"].get("triggerExecution")
                found[epoch] = (progress["numInputRows"], None if took is None else float(took))
        return found
