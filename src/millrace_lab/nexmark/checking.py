"""A query's program over files of events, and the same query in one DuckDB batch.

Windows end when the watermark passes, so after the events there may be two more epochs with later
ones: the first moves the watermark past all windows of the events, and the second emits them. Both
take less time than the watermark is behind, so nothing of theirs is emitted.

Answers are lists of plain rows, so that those of different engines can be compared: times in
microseconds since 1970, fields of structs as columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millrace as mr
from millrace_lab.nexmark import generator
from millrace_lab.nexmark.generator import KINDS
from millrace_lab.nexmark.queries import BOTH, EMITTED, LATEST, STATE, STATELESS, Query

LATER = 10_000
"""Seconds from the events to the later ones."""
_UNIX = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Events:
    """Files of events: a folder for each epoch."""

    folder: Path
    number: int
    epochs: int
    per_second: int = generator.PER_SECOND

    def write(self, spark: SparkSession) -> None:
        share = -(-self.number // self.epochs)
        for epoch in range(self.epochs):
            first, last = epoch * share, min((epoch + 1) * share, self.number)
            generator.write(spark, self._part(epoch), first, last, self.per_second)
        # Whole rounds, so that there is something of every kind.
        rounds = -(-(self.number + LATER * self.per_second) // generator.PER_ROUND)
        for epoch in range(2):
            first = (rounds + epoch) * generator.PER_ROUND
            last = first + generator.PER_ROUND
            generator.write(spark, self._part(self.epochs + epoch), first, last, self.per_second)

    def _part(self, epoch: int) -> Path:
        return self.folder / f"{epoch:03d}"

    def stream(self, spark: SparkSession, *, later: bool) -> DataFrame:
        """The events of one epoch after the other, with the later ones or without."""
        number = self.epochs + (2 if later else 0)
        # A glob may not match folders that do not belong: three digits each.
        wanted = "{" + ",".join(f"{epoch:03d}" for epoch in range(number)) + "}"
        source = spark.readStream.schema(generator.SCHEMA).option("maxFilesPerTrigger", "2")
        return source.parquet(f"{self.folder}/{wanted}")

    def batch(self, query: Query) -> Rows:
        """The answer of DuckDB."""
        files = [str(self._part(epoch) / "*.parquet") for epoch in range(self.epochs)]
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        for kind in KINDS:
            connection.execute(
                f"CREATE VIEW {kind} AS SELECT event_id, make_timestamp(epoch_us(ts)) AS ts, "
                f"unnest({kind}) "
                f"FROM read_parquet({files}) WHERE kind = '{kind}'"
            )
        return plain(connection.sql(query.duckdb).fetchall())

    def answer(self, query: Query, spark: SparkSession, location: Path) -> Rows:
        """The answer of the query's program."""
        program = query.program(self.stream(spark, later=query.closes))
        if isinstance(program, DataFrame):
            assert query.answer == STATELESS
            return self._appended(query, program, location)
        emitted: list[pa.Table] = []
        running = program.for_each_batch(_keep_in(emitted)).start(str(location), parallelism=2)
        try:
            running.process_all_available()
        finally:
            running.stop()
        rows = list(_rows(emitted, query))
        if query.answer in (STATE, BOTH):
            with mr.open(str(location)) as state:
                kept = list(_rows([state.to_arrow(query.operator)], query))
            rows = kept if query.answer == STATE else _added([*rows, *kept])
        elif query.answer == LATEST:
            rows = _latest(rows, query)
        return plain(rows)

    def spark_answer(self, query: Query, spark: SparkSession, checkpoint: Path) -> Rows:
        """The answer of Spark's own operators."""
        assert query.spark is not None
        program = query.spark(self.stream(spark, later=query.closes))
        mode = "append" if query.answer == EMITTED else "update"
        emitted: list[pa.Table] = []
        writer = program.writeStream.outputMode(mode).foreachBatch(_keep_in(emitted))
        _run(writer, checkpoint)
        rows = list(_rows(emitted, query))
        return plain(rows if query.answer == EMITTED else _latest(rows, query))

    def _appended(self, query: Query, program: DataFrame, location: Path) -> Rows:
        """The answer of a program without state."""
        if query.partitions:
            files = location / "files"
            writer = program.writeStream.partitionBy(*query.partitions).format("parquet")
            _run(writer.option("path", str(files)), location / "checkpoint")
            # The types of folders are texts, whatever they look like.
            found = duckdb.execute(
                f"SELECT {', '.join(query.columns)} FROM read_parquet('{files}/**/*.parquet', "
                "hive_partitioning = true, hive_types_autocast = false)"
            )
            return plain(found.fetchall())
        emitted: list[pa.Table] = []
        _run(program.writeStream.foreachBatch(_keep_in(emitted)), location)
        return plain(_rows(emitted, query))


def plain(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """An answer as plain rows, in order."""
    return sorted((tuple(_flat(row)) for row in rows), key=repr)


def _keep_in(emitted: list[pa.Table]) -> Callable[[DataFrame, int], None]:
    def keep(df: DataFrame, _: int) -> None:
        emitted.append(df.toArrow())

    return keep


def _run(writer: DataStreamWriter, checkpoint: Path) -> None:
    started = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        started.processAllAvailable()
    finally:
        started.stop()


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Values that are the same from every engine."""
    for value in values:
        if isinstance(value, dict):
            yield from _flat(value.values())
        elif isinstance(value, dt.datetime):
            moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
            yield (moment - _UNIX) // dt.timedelta(microseconds=1)
        else:
            yield value


def _latest(rows: Rows, query: Query) -> Rows:
    """The last row of each key."""
    key = [query.columns.index(name) for name in query.key]
    return list({tuple(row[at] for at in key): row for row in rows}.values())


def _added(rows: Rows) -> Rows:
    """Rows with equal keys as one; the last column is their sum."""
    totals: dict[tuple[Any, ...], Any] = {}
    for *key, number in rows:
        totals[tuple(key)] = totals.get(tuple(key), 0) + number
    return [(*key, number) for key, number in totals.items()]


def _rows(tables: Iterable[pa.Table], query: Query) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        for row in table.to_pylist():
            yield tuple(row[name] for name in query.columns)
