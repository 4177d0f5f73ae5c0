"""What streams are to Millrace's own modules: a place in a graph, columns, an event time, a key.

`Stream` and `KeyedStream` are what programs see. The modules that add operators to them, here and
in the packages above, ask `origin(stream)` and `grouping(keyed)` for what is below.

Invariant: an origin never changes. What follows a stream is another stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.api.names import new_name
from millrace.ids import OperatorName
from millrace.operators.operator import Column
from millrace.spark.steps import Point, Step

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream
    from millrace.api.stream import Stream


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a stream's rows come from, and what they are."""

    spark: SparkSession
    point: Point
    """Its place in the graph of the program."""
    schema: T.StructType
    time: str | None = None
    """The column of the event time, also if a transform has dropped it."""
    latest_of: KeyedStream | None = None
    """The stream whose newest rows these are."""

    @property
    def event_time(self) -> str | None:
        return self.time if self.time in self.schema.names else None

    @property
    def dropped_time(self) -> str | None:
        """The column of the event time, if a transform has dropped it."""
        return None if self.time in self.schema.names else self.time

    def sample(self) -> DataFrame:
        """A frame with this point's schema, to resolve expressions against."""
        if self.point.frame is not None:
            return self.point.frame
        return self.spark.createDataFrame([], self.schema)

    def new_name(self, kind: str, name: str | None, *others: Stream) -> OperatorName:
        """The name of an operator over this stream, and others: a given one, or a default."""
        return new_name(kind, name, [self.point, *(origin(other).point for other in others)])


@dataclass(frozen=True, eq=False)
class Grouping:
    """A stream, and the key that its rows are grouped by."""

    stream: Stream
    keys: tuple[Column, ...]
    columns: tuple[SparkColumn, ...]
    """The expressions that the keys are."""
    computed: frozenset[str]
    """The keys that are no columns of the stream."""

    def with_keys(self) -> Stream:
        """The stream with its key among the columns, also where that is computed."""
        computed = {
            key.name: column
            for key, column in zip(self.keys, self.columns, strict=True)
            if key.name in self.computed
        }
        if not computed:
            return self.stream
        return self.stream.transform(lambda df: df.withColumns(computed))


def origin(stream: Stream) -> Origin:
    return stream._origin


def grouping(keyed: KeyedStream) -> Grouping:
    return keyed._grouping


def then(
    stream: Stream,
    schema: T.StructType,
    step: Step,
    *others: Stream,
    event_time: str | None = None,
) -> Stream:
    """What comes out of another step over a stream, and over others."""
    inputs = tuple(origin(each).point for each in (stream, *others))
    return type(stream)(Origin(origin(stream).spark, Point(step, inputs), schema, event_time))
