"""Spark's own streaming sinks: an epoch's rows go where `writeStream` would have put them.

A sink of Spark's is either an old one, which is given a batch, or a table that can be written by
streams, of which Spark makes a write per batch. Both get the batch id, and so write a batch once if
they do so in Spark: files with their `_spark_metadata`, memory, Delta and others.

Invariant: a batch that the sink has already is still run, because running it updates the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.spark import jvm
from millrace.spark.sinks.contract import Sink, run


class OldSink(Sink):
    """A sink of the first kind: `addBatch(id, rows)`."""

    def __init__(self, spark: SparkSession, sink: Any, path: str | None) -> None:
        self.target = None if path is None else ("path", path)
        self._sink = sink
        self._cuts = jvm.load(spark).PlanCuts
        self._is_files = str(sink.getClass().getSimpleName()) == "FileStreamSink"

    def write(self, df: DataFrame, batch_id: int) -> None:
        if self._is_files and self._has(batch_id):
            run(df)
            return
        java: Any = df._jdf
        self._sink.addBatch(batch_id, java)

    def _has(self, batch_id: int) -> bool:
        """Whether the log of a sink of files has a batch."""
        latest = self._cuts.field(self._sink, "fileLog").getLatestBatchId()
        return not latest.isEmpty() and int(latest.get()) >= batch_id


class TableSink(Sink):
    """A table that streams can write to."""

    def __init__(self, table: Any, mode: Any, options: Mapping[str, str], name: str = "") -> None:
        """`name` is the view that shows what a table in memory has, or empty."""
        self.target = ("table", name) if name else None
        self._table = table
        self._mode = str(mode.toString())
        self._options = dict(options)
        self._name = name
        self._write: Any = None
        self._stream: Any = None

    def check(self, spark: SparkSession, schema: T.StructType) -> TableSink:
        """Let the table refuse an output mode, before anything starts."""
        self._writer(spark, "", schema)
        return self

    def open(self, spark: SparkSession, query: str, schema: T.StructType) -> None:
        self._write = self._writer(spark, query, schema)
        self._stream = self._write.toStreaming()
        if self._name:
            self._show(spark, schema)

    def _writer(self, spark: SparkSession, query: str, schema: T.StructType) -> Any:
        package = jvm.load(spark).StreamSinks
        datatype = self._sql(spark).types.DataType.fromJson(schema.json())
        info = package.info(query, datatype, self._options)
        return package.write(self._table, info, self._mode)

    def _sql(self, spark: SparkSession) -> Any:
        java: Any = spark._jvm
        return java.org.apache.spark.sql

    def _show(self, spark: SparkSession, schema: T.StructType) -> None:
        """The table in memory as a view, as Spark's writer makes it."""
        sql = self._sql(spark)
        empty: Any = spark.createDataFrame([], schema)._jdf
        output = empty.queryExecution().analyzed().output()
        plan = sql.execution.streaming.sources.MemoryPlan(self._table, output)
        view = sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
        view.createOrReplaceTempView(self._name)

    def write(self, df: DataFrame, batch_id: int) -> None:
        java: Any = df._jdf
        sql = self._sql(df.sparkSession)
        batch = sql.execution.streaming.sources.MicroBatchWrite(batch_id, self._stream)
        plan = jvm.load(df.sparkSession).StreamSinks.writing(
            self._write, batch, java.queryExecution().analyzed()
        )
        sql.classic.Dataset.ofRows(java.sparkSession(), plan).collect()


def sink_of_format(
    spark: SparkSession,
    writer: Any,
    source: str,
    mode: Any,
    options: Mapping[str, str],
    schema: T.StructType,
) -> Sink:
    """The sink of a format such as parquet, with Spark's checks; `writer` is Spark's own."""
    package: Any = jvm.load(spark).StreamSinks
    java: Any = spark._jvm
    datatype = java.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    table = package.table(spark._jsparkSession, source, dict(options), datatype)
    if table is not None:
        return TableSink(table, mode, options).check(spark, schema)
    path = options.get("path")
    told = jvm.load(spark).PlanCuts.field(writer, "extraOptions")
    return OldSink(spark, package.oldSink(writer, told, path), path)
