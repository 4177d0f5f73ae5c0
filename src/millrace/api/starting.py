"""Starting a query: check the options, open the location, hand the query to Spark.

Nothing is written before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.api.query import Query
from millrace.errors import OperatorSetChangedError, UsageError
from millrace.ids import OperatorName
from millrace.keygroups import check_key_groups
from millrace.log import Journal, Trail, open_store
from millrace.log.layout import IDENTITY, SPARK
from millrace.log.spark_logs import check_logs, is_interrupted
from millrace.log.store import check_create
from millrace.operators import Operator
from millrace.operators.process.durations import duration_us
from millrace.operators.registry import check_change
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.placement import starting_assignments
from millrace.spark import kafka_sources
from millrace.spark.bookkeeping import checkpoint_files, wait_for_sources
from millrace.spark.failures import unwrapped
from millrace.spark.heartbeat import continue_heartbeat, with_heartbeat
from millrace.spark.idle_batches import IdleBatches, with_idle_batches
from millrace.spark.pipeline import Pipeline
from millrace.spark.realtime import logs
from millrace.spark.realtime.checks import check_cluster, check_options, check_pipeline
from millrace.spark.realtime.run import RealTimeRun
from millrace.spark.realtime.settings import RealTimeOptions, parse_duration
from millrace.spark.run import Run, RunOptions
from millrace.spark.session import check_real_time, check_session, check_versions
from millrace.spark.uniting import count_sources


def start_query(
    pipeline: Pipeline,
    location: str,
    *,
    parallelism: int | Mapping[str, int] | None,
    trigger: str | None,
    key_groups: int,
    retain_epochs: int,
    memory: str | int,
    query_name: str | None,
    director_options: DirectorOptions,
    autoscale: Settings | None = None,
    idle_batches: IdleBatches | None = None,
    kind: type[Query] = Query,
) -> Query:
    """Check everything, open the location, and hand the query to Spark.

    With `idle_batches`, batches without rows come when Spark's own engine would run them, instead
    of every second. `kind` is what the query is for the program.
    """
    spark = pipeline.batches.feeds[0].sparkSession
    check_versions()
    check_session(spark)
    store = open_store(location)
    check_create(store)
    kafka_sources.check_sources(spark, pipeline.batches.feeds)
    duration_ms = parse_duration(trigger) if isinstance(trigger, str) else None
    trigger_options = parse_trigger(trigger) if duration_ms is None else {}
    if duration_ms is not None:
        check_options(director_options, autoscale)
        # A job beside the epochs would take a slot that the next one needs.
        director_options = replace(director_options, restarts_only=True)
        check_real_time(spark)
        check_cluster(spark)
        kafka_sources.check_real_time(spark, pipeline.batches.feeds)
    options = RunOptions(
        retain_epochs=_positive("retain_epochs", retain_epochs),
        memory_bytes=parse_bytes(memory),
        ansi=spark.conf.get("spark.sql.ansi.enabled", "true") == "true",
        director=director_options,
        autoscale=autoscale,
        trigger_seconds=0.0 if autoscale is None else _trigger_seconds(trigger_options),
    )
    check_key_groups(key_groups)
    exists = store.size(IDENTITY) is not None
    journal = Journal.open(store) if exists else None
    trail = Trail(key_groups) if journal is None else journal.newest()
    if autoscale is not None:
        autoscale.check_query(trail.key_groups, options.trigger_seconds)
    if duration_ms is not None:
        check_pipeline(pipeline, is_new=trail.epoch == 0)
    names = [operator.name for operator in pipeline.operators]
    # Refuse a wrong parallelism before anything is written.
    default = spark.sparkContext.defaultParallelism
    if autoscale is not None:
        # A new query begins with few: more come when they are needed.
        default = autoscale.min
    elif duration_ms is not None:
        # In real time sources and all operators have slots of their own.
        default = max(1, default // (len(names) + 1))
    assignments = starting_assignments(store.url, trail, names, parallelism, default)
    if journal is None:
        journal = Journal.create(store, key_groups)
        if journal.identity.key_groups != key_groups:
            # Another driver has just created the location, with its own number.
            trail = journal.newest()
            assignments = starting_assignments(store.url, trail, names, parallelism, default)
    _check_operators(store.url, trail, pipeline.operators)
    logs.complete(store, trail, real_time=duration_ms is not None)
    check_logs(store, trail.batch_id)
    for path in pipeline.paths:
        path.sink.locate(store)
        path.sink.open(spark, journal.identity.query, path.schema)
    source = pipeline.batches.united()
    # With every trigger but real time, where batches come by themselves, although a run that ends
    # by itself does not need it: Spark refuses to continue from a checkpoint with another number of
    # sources.
    runs_without_rows = any(op.runs_without_rows for op in pipeline.operators)
    beats = duration_ms is None and idle_batches is None and runs_without_rows
    if runs_without_rows and idle_batches is None:
        logs.fit_sources(store, count_sources(source), beats=beats)
    times = _BatchTimes(spark, idle_batches)
    if duration_ms is not None:
        real_time = RealTimeRun(spark, journal, pipeline, assignments, options, times)
        checkpoint = f"{store.url}/{SPARK}"
        real_time.real_time(
            spark,
            RealTimeOptions(
                pipeline, checkpoint, duration_ms, query_name, options.memory_bytes, options.ansi
            ),
        )
        return kind(real_time, store.url)
    run = Run(spark, journal, pipeline, assignments, options, times)
    if idle_batches is not None:
        source = with_idle_batches(source, idle_batches)
    elif beats:
        continue_heartbeat(store)
        source = with_heartbeat(source)
    writer = source.writeStream.foreachBatch(run).option(
        "checkpointLocation", f"{store.url}/{SPARK}"
    )
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger_options:
        writer = writer.trigger(**trigger_options)

    one_batch = beats and bool({"availableNow", "once"} & trigger_options.keys())

    def launch() -> StreamingQuery:
        with checkpoint_files(spark, store):
            if one_batch and is_interrupted(store):
                # Spark's rate source, which beats, has such a run make one batch only. That would
                # be the one that was interrupted, and nothing of what has come since.
                try:
                    writer.start().awaitTermination()
                except StreamingQueryException as error:
                    raise unwrapped(run.failure or error) from error
            query = writer.start()
            if store.local_path("") is None:
                wait_for_sources(query)
            return query

    run.start(launch)
    return kind(run, store.url, beats, own_sources=int(beats or idle_batches is not None))


class _BatchTimes:
    """Spark's own times of the batch that is running: both are in its offset log, so a batch that
    runs again has the same."""

    def __init__(self, spark: SparkSession, idle_batches: IdleBatches | None) -> None:
        self._spark = spark
        self._idle_batches = idle_batches

    def __call__(self) -> tuple[int, int | None]:
        """Processing time and event-time watermark, in milliseconds."""
        query_id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        streams: Any = self._spark._jsparkSession.streams()
        query = streams.get(query_id).streamingQuery()
        times = query.lastExecution().offsetSeqMetadata()
        watermark_ms = int(times.batchWatermarkMs())
        if self._idle_batches is not None:
            self._idle_batches.attach(self._spark, query, watermark_ms)
        return int(times.batchTimestampMs()), watermark_ms or None


def _check_operators(location: str, trail: Trail, operators: Sequence[Operator]) -> None:
    """Refuse a query that the location's state cannot serve."""
    if trail.epoch == 0:
        return
    before = trail.specs
    now = {operator.name: operator.spec() for operator in operators}
    gone = sorted(set(before) - set(now))
    new = sorted(set(now) - set(before))
    if gone or new:
        parts = []
        if gone:
            parts.append(f"it no longer has {', '.join(map(repr, gone))}")
        if new:
            parts.append(f"it has the new {', '.join(map(repr, new))}")
        raise OperatorSetChangedError(
            f"the location {location} belongs to a query with the operators "
            f"{', '.join(map(repr, sorted(before)))}; in this one, {' and '.join(parts)}. "
            "Operators are recognised by name=: keep the names, or choose a new checkpointLocation."
        )
    for name, spec in now.items():
        check_change(OperatorName(name), before[name], spec)


def parse_trigger(trigger: object) -> dict[str, Any]:
    """Spark's trigger options for ours."""
    if trigger is None:
        return {}
    text = trigger.strip() if isinstance(trigger, str) else ""
    if text in ("available_now", "availableNow"):
        return {"availableNow": True}
    if text == "once":
        return {"once": True}
    if not text[:1].isdigit():
        raise UsageError(f"trigger={trigger!r}: {_TRIGGERS}")
    return {"processingTime": trigger}


def _trigger_seconds(options: dict[str, Any]) -> float:
    """The interval of a trigger; 0 for epochs back to back."""
    interval = options.get("processingTime")
    return 0.0 if interval is None else duration_us(interval) / 1e6


_TRIGGERS = (
    'use a time such as "1 second", "real time 10 seconds", "available_now", or None to run epochs '
    "back to back."
)

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(size: str | int, name: str = "memory") -> int:
    """`"2 GiB"`, `"512m"` or a number of bytes; `name` is the option's, for the error."""
    if isinstance(size, int):
        return _positive(name, size)
    text = str(size).strip().lower().removesuffix("ib").removesuffix("b")
    number = text.rstrip("kmgt").strip()
    unit = text[len(text.rstrip("kmgt")) :]
    try:
        return _positive(name, int(float(number) * _UNITS[unit]))
    except (ValueError, KeyError, OverflowError) as error:
        raise UsageError(
            f"{name}={size!r}: give a size such as '2 GiB', '512m' or a number of bytes."
        ) from error


def _positive(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name}={value!r}: it must be a whole number above 0.")
    return value
