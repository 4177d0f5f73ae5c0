"""What a `DataStreamWriter` was told, and the sink, trigger and location that follow from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millrace import clock
from millrace.errors import ForeignCheckpointError, UnsupportedPlanError, UsageError
from millrace.log import open_store
from millrace.log.layout import IDENTITY
from millrace.spark import jvm
from millrace.spark.sinks import ForEachBatch, Sink
from millrace.spark.sinks.streaming import TableSink, sink_of_format

CHECKPOINT = "checkpointLocation"
PARALLELISM = "millrace.parallelism"
"""The option that says how many shards a new query has."""

MEMORY, FOREACH, FOREACH_BATCH = "memory", "foreach", "foreachBatch"
_ONE_TIME = (MEMORY, FOREACH, FOREACH_BATCH, "console", "noop")
"""Sinks for which Spark makes up a location if there is none."""

_TRIGGERS = "Use trigger(processingTime=...), trigger(availableNow=True) or none"

_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"

BatchFunction = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class Wanted:
    """What a writer was told."""

    source: str
    mode: Any
    """Spark's output mode."""
    trigger: Any
    options: Mapping[str, str]
    partitions: tuple[str, ...]
    java: Any
    """Spark's writer itself."""
    foreach_writer: Any
    foreach_encoder: Any

    def option(self, name: str) -> str | None:
        """An option, whatever the case of its name."""
        found = [value for key, value in self.options.items() if key.lower() == name.lower()]
        return found[-1] if found else None

    @property
    def mode_name(self) -> str:
        return str(self.mode.toString()).lower()


@dataclass(frozen=True)
class Location:
    """Where a query keeps its state."""

    url: str
    is_temporary: bool


def told(spark: SparkSession, writer: DataStreamWriter) -> Wanted:
    """Read what a writer was told, from Spark's own writer behind it."""
    package = jvm.load(spark)
    java: Any = writer._jwrite

    def field(name: str) -> Any:
        return package.PlanCuts.field(java, name)

    columns = field("partitioningColumns")
    return Wanted(
        str(field("source")),
        field("outputMode"),
        field("trigger"),
        {
            str(k): str(v)
            for k, v in dict(package.StreamSinks.options(field("extraOptions"))).items()
        },
        () if columns.isEmpty() else tuple(map(str, package.PlanCuts.list(columns.get()))),
        java,
        field("foreachWriter"),
        field("foreachWriterEncoder"),
    )


def make_sink(
    wanted: Wanted, df: DataFrame, path: str | None, function: BatchFunction | None
) -> Sink:
    """The sink that a writer would write to."""
    spark = df.sparkSession
    java: Any = spark._jvm
    options = dict(wanted.options) if path is None else {**wanted.options, "path": path}
    if wanted.source == MEMORY:
        memory = java.org.apache.spark.sql.execution.streaming.sources.MemorySink()
        name = wanted.option("queryName") or ""
        return TableSink(memory, wanted.mode, options, name)
    if wanted.source == FOREACH_BATCH:
        if function is None:
            raise UnsupportedPlanError(
                "foreachBatch() was called before mr.enable(), so that its function is not known."
            )
        return ForEachBatch(function)
    if wanted.source == FOREACH:
        package = jvm.load(spark).StreamSinks
        table = package.foreach(wanted.foreach_writer, wanted.foreach_encoder)
        return TableSink(table, wanted.mode, options)
    return sink_of_format(spark, wanted.java, wanted.source, wanted.mode, options, df.schema)


def trigger_of(wanted: Wanted) -> str | None:
    """The trigger, as `start` takes it; raises for those that run no batches."""
    kind = str(wanted.trigger.getClass().getSimpleName()).removesuffix("$")
    if kind == "AvailableNowTrigger":
        return "available_now"
    if kind == "OneTimeTrigger":
        return "once"
    if kind == "ProcessingTimeTrigger":
        interval = int(wanted.trigger.intervalMs())
        return f"{interval} milliseconds" if interval else None
    if kind == "RealTimeTrigger":
        raise UnsupportedPlanError(
            f"the real-time trigger: unchanged programs run in micro-batches. {_TRIGGERS}, or "
            "write the query with mr.stream, whose start() takes trigger='real time 10 seconds'."
        )
    if kind == "ContinuousTrigger":
        raise UnsupportedPlanError(
            "the continuous trigger: it runs no micro-batches, and an epoch of Millrace is one. "
            f"{_TRIGGERS}."
        )
    raise UnsupportedPlanError(f"{kind}: Millrace does not know this trigger. {_TRIGGERS}.")


def location_of(spark: SparkSession, wanted: Wanted) -> Location | None:
    """Where the state goes; None if Spark demands that the program says it."""
    given = wanted.option(CHECKPOINT)
    if given is not None:
        return Location(given, is_temporary=False)
    root = spark.conf.get(_DEFAULT_LOCATION, None)
    if root:
        name = wanted.option("queryName") or clock.fresh_id()
        return Location(f"{root.rstrip('/')}/{name}", is_temporary=False)
    if wanted.source in _ONE_TIME:
        folder = f"millrace-temporary-{clock.fresh_id()}"
        return Location(os.path.join(tempfile.gettempdir(), folder), is_temporary=True)
    return None


def check_location(location: str, wanted: Wanted) -> None:
    """Refuse a location of Spark's own engine, or one from which the sink cannot continue."""
    store = open_store(location)
    if store.size(IDENTITY) is None:
        if store.size("metadata") is not None or store.list("offsets"):
            raise ForeignCheckpointError(
                f"{location} has a checkpoint of Spark's own engine, which Millrace does not "
                "touch. Give the query another checkpointLocation, or import the state and the "
                "offsets with mr.import_spark."
            )
    elif wanted.source == MEMORY and wanted.mode_name != "complete":
        raise UsageError(
            f"{location} was used before, and a table in memory begins empty: as in Spark, such a "
            "query cannot go on unless its output mode is complete. Choose a new "
            "checkpointLocation."
        )


def is_millrace(location: str) -> bool:
    """Whether a location has a state of Millrace's."""
    return open_store(location).size(IDENTITY) is not None
