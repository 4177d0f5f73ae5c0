"""The program that the tests kill: a query over a folder of files, one file an epoch.

    python -m tests.faults.driver INPUT LOCATION SINK PATH [FOLDER TO HANG BY]

A test drops the files first, runs this with the variables of `crashes.environment`, and later,
without them, either runs it again or builds the same query in a session of its own. A path that
ends in .json has the options of a sink with a marker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace_lab.faults import crashes
from millrace_lab.local_session import SHORT_LIFE, local_settings

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


class HangInSecond:
    """Workers that write the second batch say so in a folder, and wait there for leave to go on."""

    def __init__(self, folder: Path) -> None:
        self.writing = folder / "writing"
        self.resume = folder / "resume"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") == "1":
            self.writing.touch()
            while not self.resume.exists():
                time.sleep(0.01)
        yield from batches


def build(
    spark: SparkSession, folder: Path, sink: str, path: Path, hang: HangInSecond | None = None
) -> mr.StreamWriter:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/*")
    stream = mr.stream(source).key_by(*KEYS).aggregate(name="totals", **AGGREGATES)
    if hang is not None:
        stream = stream.transform(lambda df: df.mapInArrow(hang, df.schema))
    if sink == "function":
        return stream.for_each_batch(WriteByBatchId(path))
    if path.suffix == ".json":
        return stream.to(sink, **json.loads(path.read_text()))
    return stream.to(sink, path=str(path))


def finish(sinked: mr.StreamWriter, location: Path, parallelism: int = 2) -> mr.Query:
    """Process everything there is, then stop."""
    query = sinked.start(str(location), parallelism=parallelism)
    try:
        query.process_all_available()
    finally:
        query.stop()
    return query


def session(slots: int = 2, *, kafka: bool | str = False) -> SparkSession:
    """A small session for a short life."""
    crashes.register_driver()
    return mr.session(
        "millrace-faults",
        master=f"local[{slots}]",
        config={**local_settings("512m"), "spark.driver.extraJavaOptions": SHORT_LIFE},
        kafka=kafka,
    )


def main() -> None:
    folder, location, sink, path, *hang = sys.argv[1:]
    spark = session()
    hanging = HangInSecond(Path(hang[0])) if hang else None
    finish(build(spark, Path(folder), sink, Path(path), hanging), Path(location))
    spark.stop()


if __name__ == "__main__":
    main()
