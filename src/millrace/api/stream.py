"""The builder: `mr.stream(df).transform(...).key_by(...).aggregate(...).to(...).start(...)`.

Everything that can be wrong in a program is found here, before anything starts: columns, types and
names are resolved against the streaming DataFrame's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.api.columns import data_type
from millrace.api.dedup import WATERMARK, dedup_step
from millrace.api.event_time import (
    Duration,
    check_event_time,
    with_watermark,
)
from millrace.api.joins import as_of_streams, join_streams, look_up_streams
from millrace.api.keyed import KeyedStream, key_stream
from millrace.api.origin import Origin, then
from millrace.api.writer import StreamWriter
from millrace.errors import (
    JoinError,
    NotStreamingError,
    UnknownOutputError,
    UsageError,
)
from millrace.operators.join.late import LATE_RIGHT
from millrace.operators.operator import Operator
from millrace.operators.pattern.operator import TIMEOUTS
from millrace.operators.process.outputs import LATE
from millrace.spark.session import check_one_session
from millrace.spark.sinks import BatchFunction, ForEachBatch, make_sink
from millrace.spark.steps import OperatorStep, Point, SourceStep, TransformStep, UnionStep
from millrace.spark.uniting import conforms


def stream(df: DataFrame, *, event_time: str | None = None, watermark: str | None = None) -> Stream:
    """A stream over any streaming DataFrame.

    `event_time` names its timestamp column and `watermark` says how late rows may be, as in Spark's
    `withWatermark`.
    """
    if not isinstance(df, DataFrame):
        raise UsageError(f"stream() takes a streaming DataFrame, not {type(df).__name__}.")
    if not df.isStreaming:
        raise NotStreamingError(
            "stream() got a batch DataFrame. Read it with spark.readStream; for a one-off "
            "computation, use Spark's groupBy().agg()."
        )
    if (event_time is None) != (watermark is None):
        raise UsageError(
            "event_time= and watermark= go together: the column, and how late its rows may be."
        )
    if event_time is not None and watermark is not None:
        check_event_time(event_time, data_type(df, event_time, "event_time="))
        df = with_watermark(df, event_time, watermark)
    return Stream(Origin(df.sparkSession, Point(SourceStep(), (), df), df.schema, event_time))


class Stream:
    """Rows on their way: a streaming source, or what an operator emits."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    @property
    def schema(self) -> T.StructType:
        """The columns at this point."""
        return self._origin.schema

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless Spark: filters, projections, joins with static tables."""
        here = self._origin
        df = function(here.sample())
        if not isinstance(df, DataFrame):
            raise UsageError(
                f"the function given to transform() returned {type(df).__name__}, not a DataFrame."
            )
        frame = None if here.point.frame is None else df
        point = Point(TransformStep(function), (here.point,), frame)
        # An event time stays one as long as its column is there.
        return Stream(Origin(here.spark, point, df.schema, here.time))

    def union(self, other: Stream) -> Stream:
        """This stream and another, by column name.

        Both may come from sources or from operators. The result keeps the event time if both have
        it, in the same column; the watermark is then the smaller one.
        """
        if not isinstance(other, Stream):
            raise UsageError(f"union() takes a stream, not {type(other).__name__}.")
        here, there = self._origin, other._origin
        check_one_session(here.spark, there.spark, "union()")
        try:
            df = here.sample().unionByName(there.sample())
        except AnalysisException as error:
            raise UsageError(
                f"union(): the streams have the columns {self.schema.simpleString()} and "
                f"{other.schema.simpleString()}, and Spark cannot unite them: "
                f"{str(error).splitlines()[0]}"
            ) from error
        has_frames = here.point.frame is not None and there.point.frame is not None
        step = UnionStep(
            df.schema, tuple(conforms(each.schema, df.schema) for each in (here, there))
        )
        point = Point(step, (here.point, there.point), df if has_frames else None)
        same = here.event_time if here.event_time == there.event_time else None
        return Stream(Origin(here.spark, point, df.schema, same))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str],
        *,
        within: tuple[Duration, Duration] | None = None,
        how: str = "inner",
        suffixes: tuple[str, str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Pairs of rows with equal `on` columns whose event times are near each other.

        `within` says how near: `("-1 hour", "0 seconds")` takes rows of `other` from an hour
        before a row of this stream up to its own time. `how` is "inner", "left", "right", "full",
        "semi" or "anti", as in Spark. `suffixes` are added to the names that both streams have.
        """
        if not isinstance(other, Stream):
            raise UsageError(f"join() takes a stream, not {type(other).__name__}.")
        return join_streams(self, other, on, within, how, suffixes, name)

    def as_of(
        self,
        other: Stream,
        on: str | Sequence[str],
        *,
        tolerance: Duration | None = None,
        suffixes: tuple[str, str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Each row with the newest row of `other` at or before its event time, by `on` columns.

        A row is emitted when the watermark has reached it. A row of `other` that is older than
        `tolerance` does not count; a row that finds none has NULLs.
        """
        if not isinstance(other, Stream):
            raise UsageError(f"as_of() takes a stream, not {type(other).__name__}.")
        return as_of_streams(self, other, on, tolerance, suffixes, name)

    def lookup(
        self,
        other: Stream,
        on: str | Sequence[str],
        *,
        how: str = "left",
        suffixes: tuple[str, str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Each row, at once, with the newest row per key of another stream.

        `other` is what `key_by(...).latest()` returned, keyed by the `on` columns.
        """
        given: object = other
        keyed = given._origin.latest_of if isinstance(given, Stream) else None
        if keyed is None:
            raise JoinError(
                "lookup() takes what latest() returned: the newest row per key of a stream, "
                "customers.key_by('customer').latest()."
            )
        return look_up_streams(self, keyed, on, how, suffixes, name)

    def key_by(self, *columns: str | SparkColumn) -> KeyedStream:
        """Group the rows by one or more columns, or by Spark expressions over them.

        The name of an expression is the name of its key column: give it one with `alias`.
        """
        return key_stream(self, "key_by()", columns)

    def drop_duplicates(
        self,
        *columns: str | SparkColumn,
        ttl: Duration | None = WATERMARK,
        name: str | None = None,
    ) -> Stream:
        """Of the rows that are equal in some columns or expressions, let the first one pass.

        By default keys are remembered within the watermark, as Spark's
        `dropDuplicatesWithinWatermark` does, or forever on a stream without event time. With
        `ttl="7 days"` a key is remembered for seven days of processing time; with `ttl=None` for
        ever. `name` identifies the operator's state in the location, across restarts.
        """
        here = self._origin
        keyed = key_stream(self, "drop_duplicates()", columns)
        step = dedup_step(keyed, ttl, here.new_name("drop-duplicates", name))
        return then(self, step.operator.output_schema, step, event_time=here.time)

    def side(self, name: str) -> Stream:
        """What the previous processor emitted to one of its side outputs, as a stream."""
        operator = self._operator("side()")
        declared = [o for o in operator.side_schemas if o not in (LATE, LATE_RIGHT, TIMEOUTS)]
        if name not in declared:
            has = f"has {', '.join(map(repr, declared))}" if declared else "has none"
            raise UnknownOutputError(
                f"operator {operator.name!r} has no side output {name!r}; it {has}. Side outputs "
                'are declared in the class of a processor: alerts = mr.SideOutput("user string").'
            )
        return self._beside(operator, name)

    def late(self, of: str = "left") -> Stream:
        """The rows that came too late for the previous operator, unchanged, as a stream.

        Of a join, those of the left stream; `late("right")` has those of the right one.
        """
        operator = self._operator("late()")
        outputs = {"left": LATE, "right": LATE_RIGHT}
        if LATE not in operator.side_schemas:
            raise UnknownOutputError(
                f"operator {operator.name!r} does not treat rows as late. Windows, sessions, "
                "drop_duplicates() within the watermark, joins, match(), and processors over a "
                "stream with "
                "event_time= and watermark= do."
            )
        if of not in outputs or outputs[of] not in operator.side_schemas:
            raise UnknownOutputError(
                f"late({of!r}) of operator {operator.name!r}: 'right' is the second stream of a "
                "join, and other operators have one stream."
            )
        return self._beside(operator, outputs[of])

    def timeouts(self) -> Stream:
        """The partial matches of the previous `match()` whose time was over, as a stream.

        It has the columns of the matches; what is of rows that did not come is NULL.
        """
        operator = self._operator("timeouts()")
        if TIMEOUTS not in operator.side_schemas:
            raise UnknownOutputError(
                f"operator {operator.name!r} has no partial matches: timeouts() is for what "
                "match() returned."
            )
        beside = self._beside(operator, TIMEOUTS)
        return then(beside, self.schema, self._origin.point.step)

    def _operator(self, what: str) -> Operator:
        step = self._operator_point.step
        if isinstance(step, OperatorStep):
            return step.operator
        raise UnknownOutputError(
            f"{what} asks an operator for another of its outputs: call it on what process() "
            "or aggregate() returned, before a transform()."
        )

    def _beside(self, operator: Operator, output: str) -> Stream:
        schema = operator.side_schemas[output]
        point = self._operator_point.output(output)
        return Stream(Origin(self._origin.spark, point, schema))

    @property
    def _operator_point(self) -> Point:
        """The point behind the last operator, if nothing of the program's own follows it."""
        point = self._origin.point
        is_own = isinstance(point.step, TransformStep) and point.step.is_own
        return point.inputs[0] if is_own else point

    def to(self, sink: str, **options: Any) -> StreamWriter:
        """Write the output with a built-in sink.

        These are parquet, orc, json, csv, postgres, delta, iceberg, redis, console, memory, noop.
        """
        return StreamWriter(self, make_sink(sink, options))

    def for_each_batch(self, function: BatchFunction) -> StreamWriter:
        """Hand each epoch's output to `function(df, batch_id)`.

        After a crash a batch may come again, with the same id and the same rows.
        """
        return StreamWriter(self, ForEachBatch(function))
