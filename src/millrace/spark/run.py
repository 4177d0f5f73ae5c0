"""A run: one driver's life with a query, from its start to its end.

It owns the journal, the director and the threads beside the epochs, and it starts and stops Spark's
query. A rescale by `restart` stops that query and starts another within the same run.

Invariant: once `stop` was called, or the location was lost to another run, no batch is begun and
Spark's query is not started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import clock, hooks
from millrace.epoch.report import EpochReport
from millrace.errors import FencedError, StoppingError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal, Trail
from millrace.log.collector import Collector
from millrace.log.fence import Fence
from millrace.log.leases import keeping
from millrace.reconfigure.autoscale.recording import Records
from millrace.reconfigure.autoscale.scaler import Autoscaler
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.background import Background
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests
from millrace.repeating import Repeating, first_line, problems
from millrace.spark.epoch import BatchTimes, EpochRunner
from millrace.spark.executors import SparkCluster
from millrace.spark.failures import fenced, unwrapped
from millrace.spark.interruption import await_stop, interrupted, is_interruption
from millrace.spark.pipeline import Pipeline
from millrace.spark.plans import PlanCache
from millrace.spark.scaling import EndedEpoch, ScalingThread
from millrace.spark.source_limits import SourceLimits, read_limits

KEPT_REPORTS = 1000

IDLE_SECONDS = 1.0
"""Idle time after which moves proceed without a batch."""
IDLE_POLL_SECONDS = 0.2

RESTART_SECONDS = 60.0
"""How long a restart waits for the epoch that is running."""

FENCE_SECONDS = 10.0
"""How often a run that does not commit looks whether another one does."""

_log = logging.getLogger("millrace")


@dataclass(frozen=True)
class RunOptions:
    """The options of `start` that concern the run."""

    retain_epochs: int
    memory_bytes: int
    ansi: bool
    director: DirectorOptions
    autoscale: Settings | None = None
    trigger_seconds: float = 0.0


class Run:
    """Runs the batches that Spark hands over; Spark calls it for each of them.

    `runner`, `epoch_lock`, `halting` and `last_batch`, and the methods that begin and end what
    they stand for, are also there for the run of a real-time query, which Spark calls otherwise.
    """

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        pipeline: Pipeline,
        assignments: Mapping[OperatorName, Assignment],
        options: RunOptions,
        batch_times: BatchTimes,
    ) -> None:
        self.id = clock.fresh_id()
        self.spark = spark
        self.journal = journal
        self.operators = pipeline.operators
        self.failure: BaseException | None = None
        """Why an epoch or a restart failed, which ends the run."""
        self.reports: list[EpochReport] = []
        """Those of recent epochs, oldest first."""
        self.listeners: list[Callable[[Epoch], None]] = []
        """Called with every epoch after its commit; they must be quick."""
        plans = PlanCache(
            spark, journal, pipeline, memory_bytes=options.memory_bytes, ansi=options.ansi
        )
        requests = Requests(journal.store)
        cluster = SparkCluster(spark, plans)
        self.director = Director(cluster, requests, self.id, assignments, options.director)
        self._background = Background(self.director, requests)
        self.runner = EpochRunner(
            journal,
            self.operators,
            plans,
            self.director,
            batch_times,
            pipeline.watermarks,
            run_id=self.id,
        )
        self.scaling: ScalingThread | None = None
        """Autoscaling, if the query was started with it."""
        if options.autoscale is not None:
            self.scaling = ScalingThread(
                Autoscaler(self.director, options.autoscale, Records(journal.store)),
                self.director,
                lambda: self.spark_query.lastProgress,
                options.trigger_seconds,
                SourceLimits(journal.store, lambda: read_limits(spark, self.spark_query)),
            )
        self._collector = Collector(journal, options.retain_epochs)
        self._fence = Fence(journal, self.id)
        self._fence_thread = Repeating("fence", self._watch_fence)
        self._idle = Repeating("idle", self._step_without_rows)
        self.last_batch = clock.stopwatch()
        """When the last batch ended."""
        self.epoch_lock = threading.Lock()
        """Held while an epoch runs."""
        self._switch_lock = threading.Lock()
        """Held while Spark's query is being stopped or started."""
        self._stopped = threading.Event()
        self._lost = threading.Event()
        """Set when another run was seen to have the location."""
        self.halting = threading.Event()
        """Set while Spark's query is being stopped for a restart."""
        self._launch: Callable[[], StreamingQuery] | None = None
        self._spark_query: StreamingQuery | None = None

    def start(self, launch: Callable[[], StreamingQuery]) -> None:
        """Begin: `launch` starts Spark's query, now and after each restart."""
        self._launch = launch
        with self._switch_lock:
            self._spark_query = launch()
        try:
            self._background.start()
            self._collector.start()
            self.last_batch = clock.stopwatch()
            self._idle.start()
            self._fence_thread.start()
            if self.scaling is not None:
                self.scaling.thread.start()
        except BaseException:
            # Nobody gets a handle on what Spark has started.
            self.stop(0.0)
            raise

    @property
    def spark_query(self) -> StreamingQuery:
        assert self._spark_query is not None, "the run was not started"
        return self._spark_query

    @property
    def specs(self) -> dict[OperatorName, dict[str, Any]]:
        """What each operator is, as manifests describe it."""
        return {operator.name: operator.spec() for operator in self.operators}

    @property
    def trail(self) -> Trail:
        """What is live at the last committed epoch."""
        return self.runner.trail

    @property
    def is_active(self) -> bool:
        """Whether epochs run or will: also while a restart has stopped one query of Spark's."""
        while True:
            query = self.spark_query
            if query.isActive:
                return True
            if self._stopped.is_set() or self.failure is not None:
                return False
            if self.director.restarting.is_set() or self._switch_lock.locked():
                return True
            # A restart may have ended since Spark was asked.
            if query is self.spark_query:
                return False

    def await_end(self, timeout: float | None) -> bool:
        """Wait for the run to end, at most `timeout` seconds; True if it has ended.

        Raises what Spark raises for a query of its own that failed; `reason` has the rest.
        """
        deadline = None if timeout is None else clock.stopwatch() + timeout
        while True:
            query, failed = self.spark_query, None
            try:
                if not _await_query(query, _left(deadline)):
                    return False
            except StreamingQueryException as error:
                failed = error
            # Spark's query has ended, maybe for a restart.
            if not self._await_switch(_left(deadline)):
                return False
            if query is not self.spark_query:
                continue
            if failed is not None:
                raise failed
            return True

    def settled_query(self) -> StreamingQuery:
        """Spark's query; if a restart is about to start the next one, that."""
        self._await_switch(None)
        return self.spark_query

    def await_available(self, query: StreamingQuery) -> None:
        """Wait until everything the sources have now is committed, or the query has ended."""
        query.processAllAvailable()

    def _await_switch(self, timeout: float | None) -> bool:
        """Wait while Spark's query is being stopped or started; False if that takes longer."""
        free = self._switch_lock.acquire(timeout=-1 if timeout is None else timeout)
        if free:
            self._switch_lock.release()
        return free

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    @property
    def problem(self) -> str | None:
        """What fails outside the epochs, such as taking requests; None if nothing does."""
        threads = [self._collector.thread, self._idle, self._fence_thread, keeping()]
        if self.scaling is not None:
            threads.append(self.scaling.thread)
        return problems([*self._background.threads, *threads])

    def _is_over(self) -> bool:
        """Whether no batch may begin any more."""
        return self._stopped.is_set() or self._lost.is_set()

    def is_halting(self) -> bool:
        """Whether Spark's query is being stopped, for good or for a restart."""
        return self._is_over() or self.halting.is_set()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """What Spark calls for every micro-batch."""
        if self.is_halting():
            await_stop(df.sparkSession)
            raise StoppingError("the query is being stopped; this batch runs after its next start.")
        with self.epoch_lock:
            if self.failure is not None:
                # Outside of a batch, and Spark's query may not be stopped yet.
                raise self.failure
            try:
                self._run(df, batch_id)
            except BaseException as error:
                if self.is_halting() and is_interruption(error):
                    raise interrupted() from None
                self.fail(error)
                raise
            finally:
                self.last_batch = clock.stopwatch()

    def _run(self, df: DataFrame, batch_id: int) -> None:
        report = self.runner.run(df, batch_id)
        if report is not None:
            self.note_epoch(report)

    def note_epoch(self, report: EpochReport) -> None:
        """Tell all who want to know that an epoch is committed."""
        self.reports.append(report)
        del self.reports[:-KEPT_REPORTS]
        self._after_epoch(report.epoch)
        if self.scaling is not None:
            self.scaling.after_epoch(
                EndedEpoch(
                    report.epoch,
                    report.batch_id,
                    clock.now_ms() / 1000,
                    report.seconds,
                    self.runner.last_began,
                    self.runner.last_reports,
                    self._state_bytes(),
                )
            )
        if self.director.restarting.is_set():
            threading.Thread(target=self.restart, name="millrace-restart").start()
        hooks.reach(hooks.BEFORE_COMMIT, report.epoch)

    def _state_bytes(self) -> int:
        logs = self.trail.operators.values()
        return sum(entry.bytes for log in logs for entry in log.segments().values())

    def _after_epoch(self, epoch: Epoch) -> None:
        self._collector.after_epoch(epoch)
        for listener in self.listeners:
            listener(epoch)

    def _step_without_rows(self) -> float | None:
        """Let a move that waits for an epoch go on although no batch comes."""
        if self.director.is_closed:
            return None
        idle = clock.stopwatch() - self.last_batch >= IDLE_SECONDS
        if not idle or not self.director.waits_for_epoch:
            return IDLE_POLL_SECONDS
        if not self.epoch_lock.acquire(blocking=False):
            return IDLE_POLL_SECONDS
        lost: FencedError | None = None
        try:
            if self.is_halting() or self.failure is not None:
                return IDLE_POLL_SECONDS
            epoch = self.runner.run_without_rows()
            if epoch is not None:
                self._after_epoch(epoch)
        except FencedError as error:
            lost = error
        finally:
            self.epoch_lock.release()
        if lost is not None:
            self._lose(lost)
            return None
        if self.director.restarting.is_set():
            self.restart()
        return IDLE_POLL_SECONDS

    def fail(self, error: BaseException) -> None:
        """End the run because of an error; no further epoch begins."""
        # What comes after the first is its consequence.
        self.failure = self.failure or error
        self.director.close()

    def _watch_fence(self) -> float | None:
        if self._stopped.is_set() or (self.failure is not None and not self._lost.is_set()):
            return None
        try:
            self._fence.check(self.trail.epoch, has_committed=bool(self.reports))
        except FencedError as error:
            # A run that has ended normally, such as one of all that is available, loses nothing.
            if self.is_active:
                self._lose(error)
            return None
        return FENCE_SECONDS

    def _lose(self, error: FencedError) -> None:
        """End although no epoch fails: one that is running is interrupted, it cannot commit."""
        _log.error("%s", error)
        self.fail(error)
        self._lost.set()
        with self._switch_lock:
            self.spark_query.stop()

    def restart(self) -> None:
        """Stop between epochs and start again, with the assignments that were asked for."""
        with self._switch_lock:
            if self._is_over() or not self.director.restarting.is_set():
                return
            self.halting.set()
            try:
                self.halt(RESTART_SECONDS)
                self.director.adopt()
                self.runner.restart()
                # The next query's first batch may come before its start returns.
                self.halting.clear()
                # A stop that came meanwhile waits for the lock, and must find nothing running.
                if not self._is_over():
                    assert self._launch is not None
                    self._spark_query = self._launch()
            except BaseException as error:
                # Nobody waits for this thread: the run has to say it.
                _log.error("%s: the restart failed: %s", self.journal.store.url, first_line(error))
                self.fail(error)
            finally:
                self.halting.clear()

    def stop(self, timeout: float) -> None:
        """Stop between epochs; one that runs longer than `timeout` seconds is interrupted."""
        self._stopped.set()
        with self._switch_lock:
            self.halt(timeout)
        self._idle.close()
        self._background.close()
        self._collector.close()
        self._fence_thread.close()
        if self.scaling is not None:
            self.scaling.close()

    def halt(self, timeout: float) -> None:
        """Stop Spark's query between epochs, or at the latest after `timeout` seconds."""
        idle = self.epoch_lock.acquire(timeout=timeout)
        try:
            self.spark_query.stop()
        finally:
            if idle:
                self.epoch_lock.release()

    def reason(self, error: BaseException | None = None) -> BaseException | None:
        """Why the run ended, if it failed; `error` is what Spark says about it."""
        if self.failure is not None:
            return unwrapped(self.failure)
        error = error or self.spark_query.exception()
        return error if error is None else fenced(error, self.journal, self.id)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - clock.stopwatch())


def _await_query(query: StreamingQuery, timeout: float | None) -> bool:
    if timeout is None:
        query.awaitTermination()
        return True
    # PySpark's own takes whole seconds.
    java: Any = query._jsq
    return bool(java.awaitTermination(max(1, round(timeout * 1000))))
