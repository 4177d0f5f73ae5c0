"""Sinks in the driver: nothing, a user's function, the console, a table in memory.

`ForEachBatch` makes sure that a function which does not run the frame still updates the state, and
that one which uses the frame several times does not run the epoch several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.errors import SinkError
from millrace.spark.jvm import java_class
from millrace.spark.sinks.contract import RealTimeTarget, Sink, run

BatchFunction = Callable[[DataFrame, int], None]


class Noop(Sink):
    """Drops the output; the state is what counts."""

    def write(self, df: DataFrame, batch_id: int) -> None:
        run(df)

    def check_real_time(self) -> None:
        return

    def real_time(self, rows: DataFrame) -> RealTimeTarget:
        jvm: Any = rows.sparkSession._jvm
        noop = getattr(jvm.org.apache.spark.sql.execution.datasources.noop, "NoopTable$")
        return RealTimeTarget(rows, getattr(noop, "MODULE$"))


class ForEachBatch(Sink):
    """Hands the batch to a function, at least once, with its batch id."""

    def __init__(self, function: BatchFunction) -> None:
        if not callable(function):
            raise SinkError(
                f"for_each_batch() takes a function of (df, batch_id), not {function!r}."
            )
        self._function = function

    def write(self, df: DataFrame, batch_id: int) -> None:
        df.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._function(df, batch_id)
            # What the function has run is cached by now; this runs what it left out.
            run(df)
        finally:
            df.unpersist()


class Console(Sink):
    """Prints each batch."""

    def __init__(self, rows: int = 20, truncate: bool = True) -> None:
        self._rows = rows
        self._truncate = truncate

    def write(self, df: DataFrame, batch_id: int) -> None:
        table = df.toArrow()
        shown = df.sparkSession.createDataFrame(table)
        print(f"-------- batch {batch_id}: {table.num_rows} rows --------")
        shown.show(self._rows, truncate=self._truncate)


class Memory(Sink):
    """Appends each batch to a table in the driver's memory, for trying things out."""

    def __init__(self, name: str) -> None:
        self.target = ("table", name)
        self._name = name
        self._sink: Any = None

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        sql = "org.apache.spark.sql"
        self._sink = java_class(spark, f"{sql}.execution.streaming.sources.MemorySink")()
        empty: Any = spark.createDataFrame([], schema)._jdf
        plan = java_class(spark, f"{sql}.execution.streaming.sources.MemoryPlan")(
            self._sink, empty.queryExecution().analyzed().output()
        )
        frame = java_class(spark, f"{sql}.classic.Dataset").ofRows(spark._jsparkSession, plan)
        frame.createOrReplaceTempView(self._name)

    def write(self, df: DataFrame, batch_id: int) -> None:
        # Spark's own memory sink; it ignores a batch id it has seen.
        self._sink.write(batch_id, False, df._jdf.collect())

    def check_real_time(self) -> None:
        return

    def real_time(self, rows: DataFrame) -> RealTimeTarget:
        # It collects rows in the tasks, and adds them to the table after the commit.
        return RealTimeTarget(rows, self._sink)
