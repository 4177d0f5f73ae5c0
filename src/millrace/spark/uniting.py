"""Several streams in one: a struct column for each, NULL in the rows of all others.

A query has one Spark stream, so that one offset log covers all its sources and a batch that runs
again has the same rows of each. The rows of several feeds share it in this form, and so do the two
inputs of a join in front of its exchange. A single feed is sent unchanged. Broadcast rows come with
the batch in columns of their own, in which every other row is NULL.

Watermarks are not affected: Spark finds the nodes of `withWatermark` below the union, and its
policy for several, the smallest, applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.spark.broadcast import Side, any_of, nothing, unite
from millrace.spark.fingerprint import quoted
from millrace.spark.template import bare_union, is_bare

LEFT, RIGHT = "_left_rows", "_right_rows"
"""The columns of a join's inputs."""


def _feed(number: int) -> str:
    return f"_feed{number}"


@dataclass(frozen=True)
class Batches:
    """What every batch of a query has: the rows of its feeds, and broadcast rows."""

    feeds: tuple[DataFrame, ...]
    sides: tuple[Side, ...] = ()

    def united(self) -> DataFrame:
        """Everything as one streaming frame."""
        return unite(self._feeds(), self.sides)

    def _feeds(self) -> DataFrame:
        if len(self.feeds) == 1:
            return self.feeds[0]
        names = [_feed(number) for number in range(len(self.feeds))]
        types = [feed.schema for feed in self.feeds]
        wrapped = [wrap(feed, n, names, types) for n, feed in enumerate(self.feeds)]
        united = wrapped[0]
        for frame in wrapped[1:]:
            united = united.union(frame)
        return united

    def rows(self, batch: DataFrame, number: int, mine: Sequence[Side] = ()) -> DataFrame:
        """The rows of one feed, and of some broadcast streams. A batch that is right stays as it
        is."""
        if len(self.feeds) > 1:
            column = _feed(number)
            present = quoted(column).isNotNull() | any_of(mine)
            return batch.where(present).select(f"{column}.*", *(quoted(s.column) for s in mine))
        own = {side.column for side in mine}
        others = [side for side in self.sides if side.column not in own]
        if not others:
            return batch
        return batch.where(~any_of(others)).drop(*(quoted(side.column) for side in others))

    def is_whole(self, mine: Sequence[Side] = ()) -> bool:
        """Whether a batch has nothing but one feed and some broadcast streams."""
        return len(self.feeds) == 1 and len(mine) == len(self.sides)

    def pair(self, batch: DataFrame, left: int, right: int) -> DataFrame:
        """The rows of two feeds as the two inputs of a join."""
        first, second = quoted(_feed(left)), quoted(_feed(right))
        if len(self.feeds) > 2 or self.sides:
            batch = batch.where(first.isNotNull() | second.isNotNull())
        return batch.select(first.alias(LEFT), second.alias(RIGHT))


def wrap(
    rows: DataFrame, number: int, names: Sequence[str], types: Sequence[T.StructType]
) -> DataFrame:
    """A frame's rows as one struct column, among others that are NULL."""
    columns: list[SparkColumn] = [
        F.struct("*").alias(name) if i == number else nothing(name, types[i])
        for i, name in enumerate(names)
    ]
    return rows.select(*columns)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of frames with the same columns in the same order. Bare rows stay bare."""
    if all(map(is_bare, frames)):
        return bare_union(frames)
    united, *others = frames
    for frame in others:
        united = united.union(frame)
    return united


def conform(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """The columns of a schema, in its order and of its types."""
    return rows.select(*(quoted(f.name).cast(f.dataType).alias(f.name) for f in schema.fields))


def conforms(given: T.StructType, schema: T.StructType) -> bool:
    """Whether rows have exactly the columns of a schema, NULLs aside."""
    have, want = ([(f.name, f.dataType.simpleString()) for f in s.fields] for s in (given, schema))
    return have == want


def count_sources(stream: DataFrame) -> int:
    """How many sources Spark reads for a stream."""
    plan: Any = stream._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    return sum(bool(leaves.apply(at).isStreaming()) for at in range(leaves.size()))
