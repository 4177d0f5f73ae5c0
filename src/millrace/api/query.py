"""A running query: Spark's StreamingQuery, Millrace's epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millrace import clock
from millrace.errors import FencedError, QueryStoppedError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.reading.reader import Reader, follow_live
from millrace.reading.views import View, Views
from millrace.reconfigure.moves import Move
from millrace.spark.epoch import EpochRunner
from millrace.spark.failures import unwrapped

if TYPE_CHECKING:
    from millrace.ui import Page

_TAKEN = "CONCURRENT_STREAM_LOG_UPDATE"
"""How Spark calls it that a batch is in its log already."""


@dataclass(frozen=True)
class _OpenState:
    """What reads the state of a running query."""

    reader: Reader
    views: Views


class Query:
    """A query that was started. Spark runs it; `spark_query` is Spark's own handle."""

    def __init__(
        self,
        launch: Callable[[], StreamingQuery],
        runner: EpochRunner,
        location: str,
        beats: bool = False,
    ) -> None:
        self.location = location
        self._runner = runner
        self._beats = beats
        self._launch = launch
        self._is_restarting = False
        self._state: _OpenState | None = None
        self._state_lock = threading.Lock()
        self.spark_query = launch()
        runner.director.restart = self._restart
        runner.background.start()

    @property
    def id(self) -> str:
        """Stays the same across restarts from one location."""
        return self._runner.journal.identity.query

    @property
    def epoch(self) -> Epoch:
        """The last committed epoch."""
        return self._runner.trail.epoch

    @property
    def is_active(self) -> bool:
        between = self._runner.director.restarting.is_set() or self._is_restarting
        return self.spark_query.isActive or between

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, or has stopped because of that."""
        return self._runner.stopping.is_set() and not self._is_restarting

    def rescale(
        self, parallelism: int, *, strategy: str = "live", operator: str | None = None
    ) -> Move:
        """Change the number of shards while the stream goes on.

        Of all operators, or of one. The strategy says how state gets to its new owners; see the
        guide. The request is written to the location first, so it survives this driver.
        """
        return self._submit("rescale", strategy, parallelism=parallelism, operator=operator)

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
        """Let an executor have key groups again."""
        return self._submit("undrain", strategy, executor=executor)

    def assignment(self) -> dict[str, Assignment]:
        """Operator -> which key groups its shards have, and where they run."""
        return {str(k): v for k, v in self._runner.director.assignments().items()}

    def executors(self) -> list[str]:
        """The live executors, by the names that `move` and `drain` take."""
        return [executor.name for executor in self._runner.director.executors()]

    def _submit(self, kind: str, strategy: str, **details: Any) -> Move:
        if not self.is_active:
            raise QueryStoppedError(
                f"the query on {self.location} is stopped, so there is nothing to {kind}. Start it "
                "again; parallelism= sets the number of shards it starts with."
            )
        given = {key: value for key, value in details.items() if value is not None}
        return self._runner.director.submit(kind, strategy, **given)

    def _restart(self) -> None:
        """Stop between epochs and start again, with the assignment that was asked for."""
        self._is_restarting = True
        try:
            self._halt(60.0)
            self._runner.director.adopt()
            self._runner.resume()
            self.spark_query = self._launch()
        except BaseException as error:
            self._runner.failure = error
            self._runner.director.close()
            raise
        finally:
            self._is_restarting = False

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pa.Table:
        """The result of a query on the state at the last committed epoch, in DuckDB's SQL.

        The state is kept warm between calls and follows the log, as any replica does; the stream
        goes on meanwhile. `mr.open(query.location)` reads it from elsewhere, or at other epochs.
        """
        return self._open_state().reader.sql_at(query, self.epoch, parameters)[1]

    def view(self, name: str, sql: str, *, every: int = 1) -> View:
        """Keep the result of a query up to date, at most every so many epochs.

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
                journal = self._runner.journal
                reader = follow_live(journal, self._runner.specs)
                self._state = _OpenState(reader, Views(reader, journal.store))
                self._runner.listeners.append(self._state.views.after_epoch)
            return self._state

    def _close_state(self) -> None:
        with self._state_lock:
            if self._state is not None:
                self._runner.listeners.remove(self._state.views.after_epoch)
                self._state.views.close()
                self._state.reader.close()
                self._state = None

    def process_all_available(self) -> None:
        """Wait until everything the sources have now is committed. Raises what the query raised."""
        if not self.spark_query.isActive:
            self._raise_failure()
            raise QueryStoppedError(
                "the query is stopped; start it again from its location to process more."
            )
        try:
            if self._beats:
                self._await_idle_batch()
            else:
                self.spark_query.processAllAvailable()
        except StreamingQueryException as error:
            self._raise_failure(error)

    def _await_idle_batch(self) -> None:
        """Wait for a batch, begun from now on, that brought nothing but the heartbeat.

        Spark's own waiting is for a moment without news, which a heartbeat may never leave.
        """
        seen = self._runner.trail.batch_id
        begun = -1 if seen is None else seen + 1
        while self.spark_query.isActive:
            for progress in self.spark_query.recentProgress:
                # The batch that runs now may have begun before there was something to see.
                if progress["batchId"] > begun and _is_idle(progress["sources"][:-1]):
                    return
            clock.sleep(0.05)
        error = self.spark_query.exception()
        if error is not None:
            raise error

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the query to end, at most `timeout` seconds; True if it has ended."""
        try:
            if timeout is None:
                self.spark_query.awaitTermination()
                return True
            return bool(self.spark_query.awaitTermination(max(1, round(timeout))))
        except StreamingQueryException as error:
            self._raise_failure(error)
            return True

    def stop(self, timeout: float = 60.0) -> None:
        """Stop between epochs. What is committed stays; the query can be started again.

        An epoch that runs is waited for, at most `timeout` seconds; then it is interrupted, and
        runs again after the next start.
        """
        self._halt(timeout)
        self._runner.background.close()
        self._close_state()

    def _halt(self, timeout: float) -> None:
        self._runner.stopping.set()
        idle = self._runner.running.acquire(timeout=timeout)
        try:
            self.spark_query.stop()
        finally:
            if idle:
                self._runner.running.release()

    def exception(self) -> BaseException | None:
        """Why the query ended, if it failed."""
        if self._runner.failure is not None:
            return unwrapped(self._runner.failure)
        return self._fenced(self.spark_query.exception())

    def ui(self, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Page:
        """Open the live page of this query; `url` is where it is, `close()` ends it.

        It only reads. Without a token it is for this machine alone: any other `host` needs one.
        Port 0 takes a free one.
        """
        # Executors import this module too, and have no use for a web server.
        from millrace.ui import open_page
        from millrace.ui.live import LiveQuery

        return open_page(self.location, LiveQuery(self), host=host, port=port, token=token)

    def progress(self) -> dict[str, Any] | None:
        """The last epoch's figures, with Spark's own for the same batch; None before the first."""
        if not self._runner.reports:
            return None
        report = self._runner.reports[-1]
        progress: dict[str, Any] = asdict(report)
        for spark_progress in reversed(self.spark_query.recentProgress):
            if spark_progress["batchId"] == report.batch_id:
                progress["numInputRows"] = spark_progress["numInputRows"]
                progress["durationMs"] = dict(spark_progress["durationMs"])
                break
        return progress

    def recent_progress(self) -> list[dict[str, Any]]:
        """The figures of up to a thousand recent epochs, oldest first."""
        return [asdict(report) for report in self._runner.reports]

    def _raise_failure(self, error: StreamingQueryException | None = None) -> None:
        if self._runner.failure is not None:
            raise unwrapped(self._runner.failure)
        fenced = self._fenced(error)
        if fenced is not None:
            raise fenced

    def _fenced(self, error: BaseException | None) -> BaseException | None:
        """Spark may notice a second driver first, at its own logs: then, too, name who won."""
        if error is None or _TAKEN not in str(error):
            return error
        journal, run = self._runner.journal, self._runner.run_id
        head = journal.head()
        winner = journal.read(head)[0].run if head else run
        others = f"run {winner} has committed" if winner != run else "another run has begun"
        after = head if winner != run else head + 1
        fenced = FencedError(
            f"{others} epoch {after} of {self.location}, and its batch is in Spark's log; this "
            f"run, {run}, has lost the location and stops. Nothing is lost: only one query may run "
            "on a location, so stop one of the two."
        )
        fenced.__cause__ = error
        return fenced

    def __repr__(self) -> str:
        state = "running" if self.is_active else "stopped"
        return f"<Query {self.location} {state} epoch={self.epoch}>"


def _is_idle(sources: list[dict[str, Any]]) -> bool:
    return all(source["startOffset"] == source["endOffset"] for source in sources)
