"""One program on both engines: the rows of every batch, with and without Millrace."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.unchanged import processors

import millrace as mr
from millrace.spark.settings import configured

ONE_PARTITION = {"spark.sql.shuffle.partitions": "1"}
"""For Spark's own engine, which opens a state store for each."""


@dataclass(frozen=True)
class Stream:
    """The rows of a stream: a list for each batch."""

    schema: str
    batches: Sequence[Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Case:
    """A program, in Python or SQL, over streams that other code has made."""

    name: str
    program: str
    mode: str
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings that it runs with."""
    why: str | None = None
    """What an error says of it."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a query."""

    schema: str
    batches: Mapping[int, list[str]]
    """The rows of each batch, sorted."""


def write_batches(folder: Path, stream: Stream) -> None:
    """A file for each batch, in order of time: a source reads one per batch."""
    folder.mkdir(parents=True)
    for number, rows in enumerate(stream.batches):
        path = folder / f"{number:03}.json"
        path.write_text("\n".join(json.dumps(dict(row)) for row in rows))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read(spark: SparkSession, folder: Path, stream: Stream) -> DataFrame:
    reader = spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def program_of(spark: SparkSession, case: Case, streams: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame of a case."""
    if case.program.lower().startswith(("select", "with")):
        for name, stream in streams.items():
            stream.createOrReplaceTempView(name)
        return spark.sql(case.program)
    names: dict[str, Any] = {"F": F, "spark": spark, "processors": processors, **streams}
    # Programs of several lines read better; to Python they are one.
    return eval(" ".join(case.program.split("\n")), names)


def on_spark(df: DataFrame, mode: str, location: Path) -> Outcome:
    """What Spark's own engine makes of a program."""
    with configured(df.sparkSession, ONE_PARTITION):
        return _outcome(df, df.writeStream.outputMode(mode), location)


def on_millrace(df: DataFrame, mode: str, location: Path) -> Outcome:
    """What Millrace makes of it."""
    writer = mr.write_stream(df).outputMode(mode).option("millrace.parallelism", 2)
    return _outcome(df, writer, location)


def refusal(start: Callable[[], object]) -> str:
    """What Spark says when it refuses a program, or nothing if it does not."""
    try:
        start()
    except PySparkException as error:
        # The plan follows, and columns have other numbers each time.
        said = re.sub(r"#\d+", "", str(error).splitlines()[0])
        return f"{error.getCondition()}: {said}"
    return ""


def _outcome(df: DataFrame, writer: Any, location: Path) -> Outcome:
    batches: dict[int, list[str]] = {}
    schemas = set()

    def keep(rows: DataFrame, batch_id: int) -> None:
        schemas.add(rows.schema.simpleString())
        # A list, because names of columns need not differ.
        batches[batch_id] = sorted(json.dumps(_plain(list(row))) for row in rows.collect())

    shutil.rmtree(location, ignore_errors=True)
    writer = writer.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(location)).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    (schema,) = schemas
    return Outcome(schema, batches)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "asDict"):
        return [_plain(each) for each in value]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return sorted(([_plain(k), _plain(v)] for k, v in value.items()), key=str)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(bytes(value).hex() if isinstance(value, bytearray) else value)
