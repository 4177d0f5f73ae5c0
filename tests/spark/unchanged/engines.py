"""One program on both engines: the rows of every batch, with and without Millrace."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millrace as mr

Rows = Sequence[Mapping[str, Any]]
Outcome = dict[int, list[str]] | str
"""The rows of each batch, sorted; or the kind of the error."""


@dataclass(frozen=True)
class Case:
    """A program, in Python or SQL, over streams that other code has made."""

    name: str
    program: str
    mode: str = "append"
    data: str = "visits"


def write_batches(folder: Path, batches: Sequence[Rows]) -> None:
    """A file for each batch, in order of time: a source reads one per batch."""
    folder.mkdir(parents=True)
    for number, rows in enumerate(batches):
        path = folder / f"{number:03}.json"
        path.write_text("\n".join(json.dumps(dict(row)) for row in rows))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def program_of(spark: SparkSession, case: Case, streams: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame of a case."""
    if case.program.lower().startswith(("select", "with")):
        for name, stream in streams.items():
            stream.createOrReplaceTempView(name)
        return spark.sql(case.program)
    names: dict[str, Any] = {"F": F, "spark": spark, "mr": mr, **streams}
    return eval(case.program, names)


def outcome(df: DataFrame, mode: str, location: Path, start: Callable[[Any], Any]) -> Outcome:
    """Run a query over all that is available; what each batch brought."""
    batches: dict[int, list[str]] = {}

    def keep(rows: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted(map(_text, rows.collect()))

    shutil.rmtree(location, ignore_errors=True)
    writer = df.writeStream if start is on_spark else mr.write_stream(df)
    writer = writer.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
    try:
        query = start(writer.option("checkpointLocation", str(location)))
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: None)()
        return str(condition or f"{type(error).__name__}: {error}")
    try:
        query.awaitTermination(300)
    finally:
        query.stop()
    return batches


def _text(row: Any) -> str:
    return json.dumps(row.asDict(recursive=True), default=str)


def on_spark(writer: Any) -> Any:
    return writer.start()


def on_millrace(writer: Any) -> Any:
    return writer.option("millrace.parallelism", 2).start()
