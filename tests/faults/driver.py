"""The program that the tests kill: a query over a folder of files, one file an epoch.

    python -m tests.faults.driver INPUT LOCATION SINK PATH

A test drops the files first, runs this with `MILLRACE_CRASH` set, and later, without it, either
runs it again or builds the same query in a session of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.spark.one_machine import SHORT_LIFE, one_machine

SCHEMA = "k string, g int, v long, d decimal(9,2), s string, _epoch int, _seq long"
KEYS = ("k", "g")
AGGREGATES = {
    "n": mr.count(),
    "total": mr.sum("v"),
    "mean": mr.mean("d"),
    "top": mr.max("s"),
    "newest": mr.last("v"),
}
SINKS = ("parquet", "function")


class WriteByBatchId:
    """Writes each batch to a file named after it, so a batch that comes again changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(exist_ok=True)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        with (self._path / "calls").open("a") as calls:
            calls.write(f"{batch_id}\n")
        temporary = self._path / f".{batch_id}.{os.getpid()}"
        pq.write_table(df.toArrow(), temporary)
        temporary.replace(self._path / f"{batch_id}.parquet")


def build(spark: SparkSession, folder: Path, sink: str, path: Path) -> mr.Sinked:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/*")
    stream = mr.stream(source).key_by(*KEYS).aggregate(name="totals", **AGGREGATES)
    if sink == "function":
        return stream.for_each_batch(WriteByBatchId(path))
    return stream.to(sink, path=str(path))


def finish(sinked: mr.Sinked, location: Path, parallelism: int = 2) -> mr.Query:
    """Process everything there is, then stop."""
    query = sinked.start(str(location), parallelism=parallelism)
    try:
        query.process_all_available()
    finally:
        query.stop()
    return query


def session() -> SparkSession:
    """A small session for a short life."""
    return mr.session(
        "millrace-faults",
        master="local[2]",
        config={**one_machine("512m"), "spark.driver.extraJavaOptions": SHORT_LIFE},
    )


def main() -> None:
    folder, location, sink, path = sys.argv[1:]
    spark = session()
    finish(build(spark, Path(folder), sink, Path(path)), Path(location))
    spark.stop()


if __name__ == "__main__":
    main()
