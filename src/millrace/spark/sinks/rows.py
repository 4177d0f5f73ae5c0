"""A batch's rows, brought to the driver as Arrow.

All partitions are computed at once, each on its executor, and kept there as Arrow bytes, in memory
or on disk. Then the driver fetches them one partition after the other.

Invariant: the frame is run once, however often the rows are read, and the driver holds at most two
partitions at a time (or `FEW` record batches).

Rough edge: if an executor is lost in between, its partitions are computed again. That gives the
same rows, and segments that no manifest names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.util import _load_from_socket, _local_iterator_from_socket

from millrace.spark.jvm import java_class
from millrace.types import arrow_schema

BATCH_ROWS = 10_000
"""Rows per record batch."""

FEW = 4
"""Up to this number, record batches are fetched by one Spark job."""


class BatchRows(Protocol):
    """The rows of a batch; each iteration yields all of them, in the same order."""

    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class ArrowRows(BatchRows):
    """Rows that executors keep."""

    def __init__(self, kept: Any, count: int, schema: pa.Schema, python_rdd: Any) -> None:
        self.schema = schema
        self._kept = kept
        self._count = count
        self._python_rdd = python_rdd

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for data in self._messages():
            yield pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)

    def _messages(self) -> Iterator[bytes]:
        if self._count == 0:
            return
        if self._count <= FEW:
            served = self._python_rdd.collectAndServe(self._kept)
            with _load_from_socket(served, NoOpSerializer()) as messages:
                yield from messages
            return
        served = self._python_rdd.toLocalIteratorAndServe(self._kept, True)
        yield from _local_iterator_from_socket(served, NoOpSerializer())


@contextmanager
def arrow_rows(df: DataFrame) -> Iterator[ArrowRows]:
    """Run a frame to its end; its rows can be read while this is open."""
    java: Any = df._jdf
    spark = df.sparkSession
    levels = java_class(spark, "org.apache.spark.storage.StorageLevel")
    kept = java.toArrowBatchRdd(BATCH_ROWS, "UTC", True, False)
    kept.persist(levels.MEMORY_AND_DISK())
    try:
        python_rdd = java_class(spark, "org.apache.spark.api.python.PythonRDD")
        yield ArrowRows(kept, kept.count(), arrow_schema(df.schema), python_rdd)
    finally:
        kept.unpersist(False)
