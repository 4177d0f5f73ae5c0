"""A query's program over files of events, and the same query in one DuckDB batch.

Windows end when the watermark passes, so after the events there are two more epochs with later
ones: the first moves the watermark past all windows of the events, and the second emits them. What
the later events add is left out: windows that end after the events.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace_lab.nexmark import generator
from millrace_lab.nexmark.queries import BOTH, EMITTED, KINDS, STATELESS, Query

LATER = 10_000
"""Seconds from the events to the later ones."""
_UNIX = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Events:
    """Files of events: a folder for each epoch."""

    folder: Path
    number: int
    epochs: int
    per_second: int = generator.PER_SECOND

    @property
    def end_us(self) -> int:
        """The time of the last event: windows that end until then have only events."""
        return generator.BASE_US + (self.number - 1) * 1_000_000 // self.per_second

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

    def batch(self, query: Query) -> list[tuple[Any, ...]]:
        """The answer of DuckDB."""
        files = [str(self._part(epoch) / "*.parquet") for epoch in range(self.epochs)]
        connection = duckdb.connect()
        for kind in KINDS:
            connection.execute(
                f"CREATE VIEW {kind} AS SELECT event_id, make_timestamp(epoch_us(ts)) AS ts, "
                f"unnest({kind}) "
                f"FROM read_parquet({files}) WHERE kind = '{kind}'"
            )
        return self._compared(query, connection.sql(query.duckdb).fetchall())

    def answer(self, query: Query, spark: SparkSession, location: Path) -> list[tuple[Any, ...]]:
        """The answer of the query's program."""
        stream = self.stream(spark, later=query.answer == EMITTED)
        emitted: list[pa.Table] = []

        def keep(df: DataFrame, _: int) -> None:
            emitted.append(df.toArrow())

        program = query.program(stream)
        if isinstance(program, DataFrame):
            assert query.answer == STATELESS
            checkpoint = program.writeStream.option("checkpointLocation", str(location))
            started = checkpoint.foreachBatch(keep).start()
            started.processAllAvailable()
            started.stop()
            return self._compared(query, _rows(emitted, query))
        running = program.for_each_batch(keep).start(str(location), parallelism=2)
        try:
            running.process_all_available()
        finally:
            running.stop()
        if query.answer == EMITTED:
            return self._compared(query, _rows(emitted, query))
        with mr.open(str(location)) as state:
            kept = [state.to_arrow()]
        if query.answer == BOTH:
            return self._compared(query, _added(_rows([*emitted, *kept], query)))
        return self._compared(query, _rows(kept, query))

    def _compared(self, query: Query, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        plain = [tuple(map(_plain, row)) for row in rows]
        if query.ends is not None:
            at = query.columns.index(query.ends)
            plain = [row for row in plain if row[at] <= self.end_us]
        return sorted(plain, key=repr)


def _plain(value: Any) -> Any:
    """A value that is the same from DuckDB and from Arrow: times in microseconds since 1970."""
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (moment - _UNIX) // dt.timedelta(microseconds=1)
    if isinstance(value, dict):
        return tuple((name, _plain(part)) for name, part in value.items())
    return value


def _added(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with equal keys as one; the last column is their sum."""
    totals: dict[tuple[Any, ...], Any] = {}
    for *key, number in rows:
        totals[tuple(key)] = totals.get(tuple(key), 0) + number
    return [(*key, number) for key, number in totals.items()]


def _rows(tables: Iterable[pa.Table], query: Query) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in query.columns) for table in tables for row in table.to_pylist()
    ]
