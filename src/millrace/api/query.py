"""A running query: Spark's StreamingQuery, Millrace's epochs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millrace import clock
from millrace.api.spark_names import SparkNames
from millrace.errors import AutoscaleError, QueryStoppedError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.reading.reader import Reader, follow_live
from millrace.reading.views import View, Views
from millrace.reconfigure.autoscale.scaler import Scaling
from millrace.reconfigure.moves import Move
from millrace.spark.lag import LagHistory, source_lags
from millrace.spark.run import Run

if TYPE_CHECKING:
    from millrace.ui import Page


@dataclass(frozen=True)
class _OpenState:
    """What reads the state of a running query."""

    reader: Reader
    views: Views


class Query(SparkNames):
    """A query that was started. Spark runs it; `spark_query` is Spark's own handle.

    It also has the names of Spark's `StreamingQuery`.
    """

    def __init__(
        self, run: Run, location: str, beats: bool = False, *, own_sources: int | None = None
    ) -> None:
        """`own_sources` of Spark's sources are not the program's, but there for batches."""
        self.location = location
        self._run = run
        self._beats = beats
        self._lag_history = LagHistory()
        self._own_sources = int(beats) if own_sources is None else own_sources
        self._state: _OpenState | None = None
        self._state_lock = threading.Lock()

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own handle; another one after a rescale by `restart`."""
        return self._run.spark_query

    @property
    def id(self) -> str:
        """Stays the same across restarts from one location."""
        return self._run.journal.identity.query

    @property
    def epoch(self) -> Epoch:
        """The last committed epoch."""
        return self._run.trail.epoch

    @property
    def is_active(self) -> bool:
        return self._run.is_active

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, whether or not the query has stopped by now."""
        return self._run.is_stopped

    @property
    def problem(self) -> str | None:
        """What fails outside the epochs, such as taking requests; None if nothing does.

        It is retried while epochs continue.
        """
        return self._run.problem

    def rescale(
        self,
        parallelism: int | Mapping[str, int],
        *,
        strategy: str = "live",
        operator: str | None = None,
    ) -> Move:
        """Change the number of shards while the stream runs.

        Of all operators, or of one; a dict has the numbers of several. The strategy says how state
        gets to its new owners; see the guide. The request is written to the location first, so it
        survives this driver.
        """
        given = dict(parallelism) if isinstance(parallelism, Mapping) else parallelism
        return self._submit("rescale", strategy, parallelism=given, operator=operator)

    def move(
        self,
        key_groups: Sequence[int],
        to: str,
        *,
        strategy: str = "live",
        operator: str | None = None,
    ) -> Move:
        """Give key groups to an executor, such as `"executor-3"`."""
        groups = [int(group) for group in key_groups]
        return self._submit("move", strategy, key_groups=groups, to=to, operator=operator)

    def drain(self, executor: str, *, strategy: str = "live") -> Move:
        """Move everything away from an executor, and give it nothing until `undrain`."""
        return self._submit("drain", strategy, executor=executor)

    def undrain(self, executor: str, *, strategy: str = "live") -> Move:
        """Allow an executor key groups again."""
        return self._submit("undrain", strategy, executor=executor)

    def scaling(self) -> Scaling:
        """Autoscaling now: what it sees, what it would do and why, and what it has done.

        Printed, it is an explanation.
        """
        if self._run.scaling is None:
            raise AutoscaleError(
                f"the query on {self.location} was started without autoscale=, so nothing scales "
                "it. Start it with autoscale=mr.autoscale(...)."
            )
        return self._run.scaling.scaler.state()

    @property
    def is_autoscaled(self) -> bool:
        """Whether it was started with `autoscale=`."""
        return self._run.scaling is not None

    def assignment(self) -> dict[str, Assignment]:
        """Operator -> which key groups its shards have, and where they run."""
        return {str(k): v for k, v in self._run.director.assignments().items()}

    def executors(self) -> list[str]:
        """The live executors, by the names that `move` and `drain` take."""
        return [executor.name for executor in self._run.director.executors()]

    def _submit(self, kind: str, strategy: str, **details: Any) -> Move:
        if not self.is_active:
            raise QueryStoppedError(
                f"the query on {self.location} is stopped, so there is nothing to {kind}. Start it "
                "again; parallelism= sets the number of shards it starts with."
            )
        given = {key: value for key, value in details.items() if value is not None}
        return self._run.director.submit(kind, strategy, **given)

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pa.Table:
        """The result of a query on the state at the last committed epoch, in DuckDB's SQL.

        The state stays warm between calls and follows the log, as any replica does. The stream
        keeps running. `mr.open(query.location)` reads it from elsewhere, or at other epochs.
        """
        return self._open_state().reader.sql_at(query, self.epoch, parameters)[1]

    def view(self, name: str, sql: str, *, every: int = 1) -> View:
        """Keep the result of a query up to date; it is updated at most every `every` epochs.

        It is readable by name: here by `view_result`, on any process by
        `mr.open(location).view(name)` or as `views.<name>` in SQL.
        """
        state = self._open_state()
        return state.views.add(name, sql, every, self.epoch)

    def view_result(self, name: str) -> pa.Table:
        """The newest result of a view of this query."""
        return self._open_state().views.get(name).result()

    def _open_state(self) -> _OpenState:
        with self._state_lock:
            if self._state is None:
                journal = self._run.journal
                reader = follow_live(journal, self._run.specs)
                self._state = _OpenState(reader, Views(reader, journal.store))
                self._run.listeners.append(self._state.views.after_epoch)
            return self._state

    def _close_state(self) -> None:
        with self._state_lock:
            if self._state is not None:
                self._run.listeners.remove(self._state.views.after_epoch)
                self._state.views.close()
                self._state.reader.close()
                self._state = None

    def process_all_available(self) -> None:
        """Wait until everything the sources have now is committed. Raises what the query raised."""
        query = self._run.settled_query()
        if not query.isActive:
            self._raise_failure()
            raise QueryStoppedError(
                "the query is stopped; start it again from its location to process more."
            )
        try:
            while True:
                if self._beats:
                    self._await_idle_batch(query)
                else:
                    self._run.await_available(query)
                # A restart ends the waiting, too; what it stopped is left to the next query.
                if query is self._run.settled_query():
                    self._raise_end()
                    return
                query = self.spark_query
        except StreamingQueryException as error:
            self._raise_failure(error)

    def _await_idle_batch(self, query: StreamingQuery) -> None:
        """Wait for a batch that starts from now on and brings nothing but the heartbeat.

        Spark's own waiting is for a moment without news, which a heartbeat may never leave.
        """
        seen = self._run.trail.batch_id
        begun = 0 if seen is None else seen + 1
        while query.isActive:
            for progress in query.recentProgress:
                # The running batch may have started before there was something to see.
                if progress["batchId"] > begun and _is_idle(progress["sources"][:-1]):
                    return
            clock.sleep(0.05)
        error = query.exception()
        if error is not None:
            raise error

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the query to end, at most `timeout` seconds; True if it has ended.

        Raises what the query raised.
        """
        try:
            ended = self._run.await_end(timeout)
        except StreamingQueryException as error:
            self._raise_failure(error)
            return True
        if ended:
            self._raise_end()
        return ended

    def stop(self, timeout: float = 60.0) -> None:
        """Stop between epochs. What is committed stays; the query can be started again.

        A running epoch gets up to `timeout` seconds to finish. Then it is interrupted, and runs
        again after the next start.
        """
        self._run.stop(timeout)
        self._close_state()

    def exception(self) -> BaseException | None:
        """Why the query ended, if it failed."""
        return self._run.reason()

    def ui(self, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Page:
        """Open the live page of this query; `url` is where it is, `close()` ends it.

        It only reads. Without a token it is for this machine alone: any other `host` needs one.
        Port 0 picks a free one.
        """
        # Executors import this module too, and have no use for a web server.
        from millrace.ui import open_page
        from millrace.ui.live import LiveQuery

        return open_page(self.location, LiveQuery(self), host=host, port=port, token=token)

    def progress(self) -> dict[str, Any] | None:
        """The last epoch's figures, with Spark's own for the same batch; None before the first.

        `sources` says of each source how far the query is behind: rows and seconds when its last
        batch was planned, None where the source does not tell.
        """
        if not self._run.reports:
            return None
        report = self._run.reports[-1]
        progress: dict[str, Any] = asdict(report)
        published = self.spark_query.recentProgress
        progress["sources"] = self._lags(published)
        for spark_progress in reversed(published):
            if spark_progress["batchId"] == report.batch_id:
                progress["numInputRows"] = spark_progress["numInputRows"]
                progress["durationMs"] = dict(spark_progress["durationMs"])
                break
        return progress

    def rows_behind(self) -> dict[str, int]:
        """Source -> rows that it had when the last batch was planned, and that batch left.

        Sources that do not tell are not in it. `progress()` has seconds, too, and costs more.
        """
        last = self.spark_query.lastProgress
        found = {lag["source"]: lag["rows_behind"] for lag in self._lags([last] if last else [])}
        return {source: rows for source, rows in found.items() if rows is not None}

    def lag(self) -> list[dict[str, Any]]:
        """How far the query is behind each source: its description, rows and seconds.

        As in `progress()`, but cheap enough to ask for every second. Seconds count from the last
        time that somebody asked and nothing of what is unread now was there.
        """
        last = self.spark_query.lastProgress
        if last is None:
            return []
        self._lag_history.take(last)
        return self._lag_history.lags(len(last["sources"]) - self._own_sources)

    def _lags(self, published: Sequence[Any]) -> list[dict[str, Any]]:
        if not published:
            return []
        # What asks for batches is the last source, and nobody's.
        number = len(published[-1]["sources"]) - self._own_sources
        return source_lags(published, number)

    def recent_progress(self, after: int = 0) -> list[dict[str, Any]]:
        """The figures of up to a thousand recent epochs, oldest first; only those after `after`."""
        return [asdict(report) for report in self._run.reports if report.epoch > after]

    def _raise_end(self) -> None:
        """Raise why the run ended outside of a batch, of which Spark knows nothing."""
        if not self.is_stopping:
            self._raise_failure()

    def _raise_failure(self, error: StreamingQueryException | None = None) -> None:
        reason = self._run.reason(error)
        if reason is not None:
            raise reason

    def __repr__(self) -> str:
        state = "running" if self.is_active else "stopped"
        return f"<Query {self.location} {state} epoch={self.epoch}>"


def _is_idle(sources: list[dict[str, Any]]) -> bool:
    return all(source["startOffset"] == source["endOffset"] for source in sources)
