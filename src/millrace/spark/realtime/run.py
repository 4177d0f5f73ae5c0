"""A run of a real-time query: Spark calls at both ends of each batch, not with its rows.

    begin    before the first task: the epoch's number, times and assignments
    commit   after the last: the manifest, and only then do Spark's own logs get the batch

Invariant: a batch of Spark's is committed here before Spark knows how far it has read. The manifest
therefore has the batch's offsets, and a start after a crash in between gives them to Spark
(`logs`). A batch that is in a manifest never begins again.

An epoch whose tasks lost a process, of a shard or a whole executor, runs again by itself, from the
state before it: Spark, which repeats no task of such a plan, has its query started again.

Between two batches the run's lock stays taken until the next one asks to begin, so that a stop
finds Spark's logs complete.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import clock, hooks
from millrace.errors import EpochFailedError, StoppingError
from millrace.spark import jvm
from millrace.spark.bookkeeping import checkpoint_files, wait_for_sources
from millrace.spark.epoch import RunningEpoch
from millrace.spark.executors import slots
from millrace.spark.failures import unwrapped
from millrace.spark.interruption import await_stop, interrupted, is_interruption
from millrace.spark.realtime.checks import (
    check_slots,
    explained,
    is_cause,
    is_loss,
    slots_needed,
    symptom_stage,
)
from millrace.spark.realtime.plan import RealTimePlan
from millrace.spark.realtime.settings import RealTimeOptions, settings
from millrace.spark.run import Run
from millrace.spark.shard import encode_times

_log = logging.getLogger("millrace")

BEGIN_SECONDS = 120.0
"""How long a start waits for the first batch, which comes by itself."""
POLL_SECONDS = 0.02
CAUSE_SECONDS = 2.0
"""How long a failure that is a symptom of another waits for that one."""

REPEATS = 3
"""How often in a row an epoch that lost a process runs again."""
LOST_SECONDS = 2.0
"""How long a failed batch waits for what Spark hears of its tasks."""
SLOTS_SECONDS = 60.0
"""How long another plan waits for the slots of an executor that is gone."""

FORMAT = f"{jvm.PACKAGE}.RealTimeSink"


class RealTimeRun(Run):
    """Runs the epochs of a real-time query."""

    def real_time(self, spark: SparkSession, options: RealTimeOptions) -> None:
        """Start; `options` are those of Spark's query."""
        self._spark = spark
        self._query_options = options
        self._plan: RealTimePlan | None = None
        self._running: RunningEpoch | None = None
        self._has_lock = False
        self._is_idle = False
        """Whether the last batch has read nothing."""
        self._repeats = 0
        """How often the epoch that is to be committed next has run again."""
        self._partitions: list[int] | None = None
        """Those of the sources; None before the first batch."""
        self._begun = threading.Event()
        """Set when the first batch of Spark's query has begun, or asks for another plan."""
        try:
            self.start(self._launch_query)
        except BaseException:
            jvm.load_real_time(spark).RealTimeSink.detach(self.id)
            self.director.close()
            raise

    def _launch_query(self) -> StreamingQuery:
        """Make the plan of the assignments that hold now, and hand it to Spark."""
        spark, options = self._spark, self._query_options
        package = jvm.load_real_time(spark)
        gateway: Any = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        plan = self._plan = RealTimePlan(
            spark,
            self.journal,
            options.pipeline,
            self.director.assignments(),
            memory_bytes=options.memory_bytes,
            ansi=options.ansi,
        )
        self._await_slots(plan)
        target = plan.target()
        package.RealTimeSink.attach(self.id, self, target.table)
        self._begun.clear()
        # PySpark's type hints do not have this trigger.
        writer: Any = (
            target.rows.writeStream.format(FORMAT)
            .outputMode("update")
            .options(**target.options)
            .option(package.RealTimeSink.RUN, self.id)
            .option("asyncProgressTrackingEnabled", "false")
            .option("checkpointLocation", options.checkpoint)
        )
        writer = writer.trigger(realTime=options.duration)
        if options.name is not None:
            writer = writer.queryName(options.name)
        with checkpoint_files(spark, self.journal.store), settings(spark, options.duration_ms):
            query: StreamingQuery = writer.start()
            wait_for_sources(query)
            self._await_begin(query)
        return query

    def _await_begin(self, query: StreamingQuery) -> None:
        """Return when the first batch runs; raise why it does not."""
        until = clock.stopwatch() + BEGIN_SECONDS
        while not self._begun.wait(POLL_SECONDS) and clock.stopwatch() < until:
            if query.isActive:
                continue
            error = self.failure or query.exception()
            if error is not None:
                raise self._explained(error)
            return

    def begin(self, batch: int) -> str:
        """What Spark calls before the first task of a batch; the epoch's times."""
        self._leave()
        if self.is_halting():
            await_stop(self._spark)
            raise StoppingError("the query is being stopped; this batch runs after its next start.")
        self.epoch_lock.acquire()
        self._has_lock = True
        try:
            if self.failure is not None:
                raise self.failure
            moment = self._begin(int(batch))
        except BaseException as error:
            if not isinstance(error, StoppingError):
                self.fail(error)
            self._leave()
            raise
        self._begun.set()
        return moment

    def _begin(self, batch: int) -> str:
        plan = self._plan
        assert plan is not None
        epoch = self.runner.begin(batch)
        if epoch is None:
            raise EpochFailedError(
                f"Spark has begun batch {batch} again, which is in the manifest of epoch "
                f"{self.trail.epoch} already; in real time it may now have other rows. Nothing was "
                "applied twice. Stop all queries on the location and start one: it continues "
                "after the batch."
            )
        if epoch.layout.assignments != plan.assignments:
            self._plan_again()
        self._partitions = self._source_partitions()
        check_slots(slots(self._spark), self._partitions, plan.assignments)
        for step in self._query_options.pipeline.steps:
            if step.before is not None:
                step.before(epoch.times.watermark(step.operator.name).before_us or 0)
        plan.forget_reports()
        self._running = epoch
        hooks.reach(hooks.BEFORE_SINK, epoch.times.epoch)
        return encode_times(epoch.times)

    def _plan_again(self) -> None:
        """Other assignments hold from now on: this batch is for the plan that has them."""
        self._start_relaunch()
        # A start that waits for this batch has to end before the next one can begin.
        self._begun.set()
        self._leave()
        await_stop(self._spark)
        raise StoppingError("the query gets another plan; this batch runs with it.")

    def _start_relaunch(self) -> None:
        """Have another thread replace Spark's query; this one, Spark's own, has to wait for it."""
        self.halting.set()
        threading.Thread(target=self._relaunch, name="millrace-relaunch").start()

    def _relaunch(self) -> None:
        self.director.restarting.set()
        self.restart()

    def commit(self, batch: int) -> None:
        """What Spark calls when all tasks of a batch have ended."""
        epoch, plan = self._running, self._plan
        assert epoch is not None
        assert plan is not None
        try:
            hooks.reach(hooks.AFTER_SINK, epoch.times.epoch)
            epoch.phases["run"] = clock.stopwatch() - epoch.started
            offsets, before = self._offsets(), self.trail.offsets
            self.runner.commit(epoch, plan.reports(), offsets)
            self._repeats = 0
            self._is_idle = before is not None and _reached(offsets) == _reached(before)
            self._running = None
            self.note_epoch(self.runner.finish(epoch))
        except BaseException as error:
            if self.is_halting() and is_interruption(error):
                raise interrupted() from None
            self.fail(error)
            raise

    def abort(self, batch: int) -> None:
        """What Spark calls when a batch has failed."""
        self._running = None
        self._leave()
        if self.failure is None and not self.is_halting() and self._repeats < REPEATS:
            lost = self._find_loss()
            if lost is not None:
                self._repeat(batch, lost)

    def _find_loss(self) -> str | None:
        """What the batch lost, if it failed because a process is gone, or slots are."""
        context = self._spark.sparkContext
        group = context.getLocalProperty("spark.jobGroup.id")
        found = ""
        until = clock.stopwatch() + LOST_SECONDS
        while not is_loss(found) and not is_cause(found) and clock.stopwatch() < until:
            clock.sleep(POLL_SECONDS)
            java: Any = context._jsc
            found = str(jvm.load(self._spark).Executors.newestFailures(java.sc(), group))
        if not found:
            return "Spark did not run its tasks"
        if not is_loss(found):
            return None
        shard = explained(EpochFailedError(found))
        return "an executor is gone" if shard is None else str(shard)

    def _repeat(self, batch: int, lost: str) -> None:
        """Run the batch again, by another query of Spark's."""
        self._repeats += 1
        _log.warning(
            "%s: batch %d failed and runs again (%d of %d): %s",
            self.journal.store.url,
            batch,
            self._repeats,
            REPEATS,
            lost,
        )
        self._start_relaunch()
        with contextlib.suppress(StoppingError):
            await_stop(self._spark)

    def _await_slots(self, plan: RealTimePlan) -> None:
        """If an executor is gone, wait until Spark has replaced it."""
        if self._partitions is None:
            return
        needed = slots_needed(self._partitions, plan.assignments)
        until = clock.stopwatch() + SLOTS_SECONDS
        while slots(self._spark) < needed and clock.stopwatch() < until and not self.is_stopped:
            clock.sleep(POLL_SECONDS)

    def await_available(self, query: StreamingQuery) -> None:
        """Wait for a batch that begins from now on and reads nothing.

        Spark's own waiting takes the first batch of a query for one that has read nothing.
        """
        seen = self.trail.batch_id
        # The running batch may be past what has just come.
        begun = 0 if seen is None else seen + 1
        while query.isActive:
            done = self.trail.batch_id
            if done is not None and done > begun and self._is_idle:
                return
            clock.sleep(POLL_SECONDS)
        # One that is replaced may have failed; the next one repeats its batch.
        if query is self.settled_query():
            error = query.exception()
            if error is not None:
                raise error

    def _leave(self) -> None:
        if self._has_lock:
            self._has_lock = False
            self.last_batch = clock.stopwatch()
            self.epoch_lock.release()

    def _execution(self) -> Any:
        query_id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        streams: Any = self._spark._jsparkSession.streams()
        return streams.get(query_id).streamingQuery()

    def _offsets(self) -> str:
        """What Spark's log is going to say of the batch that is running."""
        execution = self._execution()
        last = execution.lastExecution()
        offsets = jvm.load_real_time(self._spark).RealTimeOffsets
        lines = offsets.reached(last.executedPlan(), execution.sources())
        return f"v1\n{last.offsetSeqMetadata().json()}\n{lines}"

    def _source_partitions(self) -> list[int]:
        offsets = jvm.load_real_time(self._spark).RealTimeOffsets
        return [
            int(n) for n in offsets.partitions(self._execution().lastExecution().executedPlan())
        ]

    def halt(self, timeout: float) -> None:
        """Stop Spark's query between two batches, or at the latest after `timeout` seconds."""
        until = clock.stopwatch() + timeout
        idle = False
        while not idle and clock.stopwatch() < until and self.spark_query.isActive:
            idle = self.epoch_lock.acquire(timeout=0.1)
        try:
            self.spark_query.stop()
        finally:
            if idle:
                self.epoch_lock.release()

    def stop(self, timeout: float) -> None:
        super().stop(timeout)
        jvm.load_real_time(self._spark).RealTimeSink.detach(self.id)

    def reason(self, error: BaseException | None = None) -> BaseException | None:
        found = super().reason(error)
        return None if found is None else self._explained(found)

    def _explained(self, error: BaseException) -> BaseException:
        others = self._other_failures(error)
        return explained(error, others) or unwrapped(error, others)

    def _other_failures(self, error: BaseException) -> str:
        """The failures that an error may be a symptom of; Spark may hear of them a little later."""
        stage = symptom_stage(error)
        if stage is None:
            return ""
        context: Any = self._spark.sparkContext._jsc
        found = ""
        until = clock.stopwatch() + CAUSE_SECONDS
        while not is_cause(found) and clock.stopwatch() < until:
            found = str(jvm.load(self._spark).Executors.failures(context.sc(), stage))
            clock.sleep(POLL_SECONDS)
        return found

    class Java:
        implements: Any = [f"{jvm.PACKAGE}.RealTimeSink$Epochs"]  # noqa: RUF012


def _reached(offsets: str) -> list[str]:
    """Where each source was at the end of a batch, without the batch's times."""
    return offsets.splitlines()[2:]
