"""Spark's own bookkeeping of a query: how its offset and commit logs are written.

On a local file system Spark spends most of a small epoch starting processes that set permission
bits. Millrace gives Spark a file manager that does not, for its own queries only. A checkpoint can
be continued with or without it: the files are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from millrace.log.store import Store
from millrace.spark import jvm

KEY = "spark.sql.streaming.checkpointFileManagerClass"


@contextmanager
def checkpoint_files(spark: SparkSession, store: Store) -> Iterator[None]:
    """While this is open, queries that start use Millrace's file manager, if the store is local.

    A file manager that the user chose is left alone.
    """
    chosen = spark.conf.get(KEY, None)
    if chosen is not None or store.local_path("") is None:
        yield
        return
    jvm.load(spark)
    spark.conf.set(KEY, f"{jvm.PACKAGE}.LocalCheckpointFiles")
    try:
        yield
    finally:
        spark.conf.unset(KEY)
