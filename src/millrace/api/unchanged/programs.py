"""`mr.enable(spark)`, `mr.write_stream(df)` and `mr.explain(df)`: unchanged programs on Millrace.

A stateful query whose plan can be cut runs on Millrace. Others run on Spark's own engine, with one
line in the log that says why; with `strict=True` that is an error. Queries without state are
Spark's, and nothing is said about them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millrace.api.origin import origin
from millrace.api.starting import parse_bytes, start_query
from millrace.api.stream import Stream
from millrace.api.unchanged.building import build
from millrace.api.unchanged.query import UnchangedQuery
from millrace.api.unchanged.tables import table_path
from millrace.api.unchanged.writing import (
    PARALLELISM,
    Location,
    Wanted,
    check_location,
    is_millrace,
    location_of,
    make_sink,
    told,
    trigger_of,
)
from millrace.errors import (
    MillraceError,
    NotStreamingError,
    SessionError,
    UnsupportedPlanError,
    UsageError,
)
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.plans.describing import describe
from millrace.plans.rules import Cut, cut
from millrace.reconfigure.cluster import DirectorOptions
from millrace.repeating import first_line
from millrace.spark.idle_batches import IdleBatches
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.plan_reader import Reading, read_plan
from millrace.spark.sinks import Sink

_CHECKS = "spark.sql.streaming.unsupportedOperationCheck"
_LEGACY_PATH = "spark.sql.legacy.pathOptionBehavior.enabled"

_log = logging.getLogger("millrace")


@dataclass(frozen=True)
class _Settings:
    strict: bool


_enabled: dict[str, _Settings] = {}
"""Sessions whose stateful queries run on Millrace, by Spark's id of the session."""

_spark_start = DataStreamWriter.start
_spark_to_table = DataStreamWriter.toTable
_spark_foreach_batch = DataStreamWriter.foreachBatch


class Enabled:
    """Unchanged programs of a session run on Millrace until `disable`, or the end of a `with`."""

    def __init__(self, session: str) -> None:
        self._session = session

    def disable(self) -> None:
        """From here on queries start on Spark's own engine again; running ones go on."""
        _enabled.pop(self._session, None)

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disable()


def enable(spark: SparkSession, *, strict: bool = False) -> Enabled:
    """Run the stateful queries that this session starts from here on on Millrace.

    What has no operator here runs on Spark's own engine, and the log says why; with `strict` it
    raises an `UnsupportedPlanError`.
    """
    session = _session_id(spark)
    _patch()
    _enabled[session] = _Settings(strict)
    return Enabled(session)


def write_stream(df: DataFrame) -> UnchangedWriter:
    """Spark's `df.writeStream`, for a query that runs on Millrace."""
    _check_streaming(df, "write_stream()")
    return UnchangedWriter(df)


def explain(df: DataFrame, outputMode: str | None = None) -> None:
    """Print which node of a plan runs on which operator, what stays Spark's, and why.

    Without an output mode, it is the first of append, update and complete that Spark accepts.
    """
    _check_streaming(df, "explain()")
    reading = read_plan(df)
    print(describe(cut(reading.root, outputMode or _accepted_mode(reading))))


def _accepted_mode(reading: Reading) -> str:
    modes = ("append", "update")
    for mode in modes:
        try:
            _check_by_spark(reading, mode)
        except Exception:
            continue
        return mode
    return "complete"


class UnchangedWriter(DataStreamWriter):
    """Every method of Spark's `DataStreamWriter`; `start` starts a query on Millrace."""

    _millrace_function: Any = None

    def foreachBatch(self, func: Any) -> UnchangedWriter:
        self._millrace_function = func
        super().foreachBatch(func)
        return self

    def start(self, path: str | None = None, *args: Any, **options: Any) -> Any:
        _apply(self, *args, **options)
        return _started_here(_start(self, path, None, strict=True))

    def toTable(self, tableName: str, *args: Any, **options: Any) -> Any:
        _apply(self, *args, **options)
        return _started_here(_start(self, None, tableName, strict=True))


@dataclass(frozen=True)
class _Left:
    """A query that is left to Spark, to start or to refuse."""

    error: UsageError
    """What to say where Spark may not have it."""


def _started_here(found: UnchangedQuery | _Left) -> UnchangedQuery:
    if isinstance(found, _Left):
        raise found.error
    return found


def _apply(
    writer: DataStreamWriter,
    format: str | None = None,
    outputMode: str | None = None,
    partitionBy: str | list[str] | None = None,
    queryName: str | None = None,
    **options: Any,
) -> None:
    """What may be said in the call that starts a query, as in Spark."""
    writer.options(**options)
    if outputMode is not None:
        writer.outputMode(outputMode)
    if partitionBy is not None:
        writer.partitionBy(partitionBy)
    if format is not None:
        writer.format(format)
    if queryName is not None:
        writer.queryName(queryName)


def _patch() -> None:
    """Let every writer ask whether its session is enabled; a session that is not pays a look-up."""

    def start(self: DataStreamWriter, path: str | None = None, *args: Any, **options: Any) -> Any:
        settings = _settings(self)
        if settings is None or isinstance(self, UnchangedWriter):
            return _spark_start(self, path, *args, **options)
        _apply(self, *args, **options)
        found = _start(self, path, None, strict=settings.strict)
        return _spark_start(self, path) if isinstance(found, _Left) else found

    def to_table(self: DataStreamWriter, tableName: str, *args: Any, **options: Any) -> Any:
        settings = _settings(self)
        if settings is None or isinstance(self, UnchangedWriter):
            return _spark_to_table(self, tableName, *args, **options)
        _apply(self, *args, **options)
        found = _start(self, None, tableName, strict=settings.strict)
        return _spark_to_table(self, tableName) if isinstance(found, _Left) else found

    def foreach_batch(self: DataStreamWriter, func: Any) -> DataStreamWriter:
        self._millrace_function = func  # type: ignore[attr-defined]
        return _spark_foreach_batch(self, func)

    DataStreamWriter.start = start  # type: ignore[method-assign]
    DataStreamWriter.toTable = to_table  # type: ignore[method-assign]
    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign]


def _settings(writer: DataStreamWriter) -> _Settings | None:
    return _enabled.get(_session_id(writer._spark)) if _enabled else None


def _start(
    writer: DataStreamWriter, path: str | None, table: str | None, *, strict: bool
) -> UnchangedQuery | _Left:
    """A query on Millrace, unless it is Spark's own engine's."""
    df = writer._df
    spark = df.sparkSession
    reading = read_plan(df)
    wanted = told(spark, writer)
    decided = cut(reading.root, wanted.mode_name)
    if not decided.decisions:
        return _Left(
            UnsupportedPlanError(f"{decided.reason} Use df.writeStream, which is Spark's.")
        )
    _check_by_spark(reading, wanted.mode_name)
    location = location_of(spark, wanted)
    if location is None:
        return _Left(
            UsageError(
                "the query has no location for its state: set option('checkpointLocation', ...), "
                "or spark.sql.streaming.checkpointLocation for all queries of the session."
            )
        )
    if path is not None and wanted.option("path") is not None and not _path_overrides(spark):
        return _Left(
            UsageError("the path is given twice: by start(path) and by option('path'). Give one.")
        )
    try:
        start = _planned(writer, wanted, reading, decided, path, table)
    except MillraceError as error:
        reason = decided.reason or first_line(error)
        if strict or is_millrace(location.url):
            hint = " mr.explain(df) shows its plan." if decided.reason else ""
            raise UnsupportedPlanError(
                f"the query cannot run on Millrace: {reason}{hint}"
            ) from error
        name = wanted.option("queryName")
        query = "a query" if name is None else f"the query {name!r}"
        _log.warning("%s runs on Spark's own engine: %s", query, " ".join(reason.split()))
        return _Left(UnsupportedPlanError(reason))
    check_location(location.url, wanted)
    return start(location)


def _planned(
    writer: DataStreamWriter,
    wanted: Wanted,
    reading: Reading,
    decided: Cut,
    path: str | None,
    table: str | None,
) -> Callable[[Location], UnchangedQuery]:
    """Everything that may be without an operator, done before anything starts."""
    trigger = trigger_of(wanted)
    stream = build(reading, decided)
    df = writer._df
    function = getattr(writer, "_millrace_function", None)
    if table is not None:
        path = table_path(df, wanted, table)
    sink = make_sink(wanted, df, path, function)
    batches = IdleBatches(decided.waits_for_watermark, decided.always_runs)

    def start(location: Location) -> UnchangedQuery:
        return _started(stream, sink, wanted, trigger, batches, location)

    return start


def _started(
    stream: Stream,
    sink: Sink,
    wanted: Wanted,
    trigger: str | None,
    batches: IdleBatches,
    location: Location,
) -> UnchangedQuery:
    shards = wanted.option(PARALLELISM)
    query = start_query(
        Pipeline([Path(origin(stream).point, stream.schema, sink)]),
        location.url,
        parallelism=None if shards is None else int(shards),
        trigger=trigger,
        key_groups=DEFAULT_KEY_GROUPS,
        retain_epochs=100,
        memory="2 GiB",
        query_name=wanted.option("queryName"),
        director_options=DirectorOptions(
            standby=0,
            elastic=False,
            spare_executors=0,
            follow_bytes_per_second=parse_bytes("256 MB", "follow_rate"),
        ),
        idle_batches=batches,
        kind=UnchangedQuery,
    )
    assert isinstance(query, UnchangedQuery)
    return query.with_extras(batches, location.url if location.is_temporary else None)


def _path_overrides(spark: SparkSession) -> bool:
    """Whether `start(path)` replaces the option, as it did in old versions of Spark."""
    return str(spark.conf.get(_LEGACY_PATH, "false")).lower() == "true"


def _check_by_spark(reading: Reading, mode: str) -> None:
    """Let Spark refuse what it does not support in an output mode."""
    spark = reading.spark
    if str(spark.conf.get(_CHECKS, "true")).lower() != "true":
        return
    java: Any = spark._jvm
    catalyst = java.org.apache.spark.sql.catalyst
    checker = getattr(getattr(catalyst.analysis, "UnsupportedOperationChecker$"), "MODULE$")
    modes = getattr(getattr(catalyst.streaming, "InternalOutputModes$"), "MODULE$")
    checker.checkForStreaming(reading.analysed, modes.apply(mode))


def _check_streaming(df: object, what: str) -> None:
    if not isinstance(df, DataFrame) or not df.isStreaming:
        raise NotStreamingError(
            f"{what} takes a streaming DataFrame, such as spark.readStream gives."
        )
    _session_id(df.sparkSession)


def _session_id(spark: Any) -> str:
    """Spark's own id of a session; refuses Spark Connect, which has no JVM to read plans from."""
    if not isinstance(spark, SparkSession) or not hasattr(spark, "_jsparkSession"):
        raise SessionError(
            f"{type(spark).__module__}.{type(spark).__name__} is not a classic Spark session. "
            "Millrace reads the plan in the driver's JVM, which Spark Connect hides: create the "
            "session with mr.session() or without remote()."
        )
    return str(spark._jsparkSession.sessionUUID())
