"""The builder: `mr.stream(df).transform(...).key_by(...).aggregate(...).to(...).start(...)`.

Everything that can be wrong in a program is found here, before anything starts: columns, types and
names are resolved against the streaming DataFrame's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from millrace.api.columns import data_type, is_ansi, named, resolve, resolve_aggregates
from millrace.api.dedup import WATERMARK, dedup_step
from millrace.api.event_time import (
    Duration,
    check_event_time,
    is_window,
    make_tiles,
    make_windows,
    newness,
    parse_gap,
    with_watermark,
)
from millrace.api.joins import as_of_streams, join_streams, look_up_streams
from millrace.api.names import new_name
from millrace.api.patterns import match_rows
from millrace.api.timed import SessionStream, WindowedStream
from millrace.api.top import TOP, exploded, ranked
from millrace.api.writer import StreamWriter
from millrace.ddl import parse_schema
from millrace.errors import (
    DuplicateNameError,
    InitialStateError,
    JoinError,
    NotStreamingError,
    UnknownOutputError,
    UsageError,
)
from millrace.ids import OperatorName
from millrace.operators.aggregate.complete import CompleteAggregateOperator
from millrace.operators.aggregate.functions import Aggregate, last, max_by
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.join.late import LATE_RIGHT
from millrace.operators.operator import Column, Operator
from millrace.operators.pattern.builder import Pattern
from millrace.operators.pattern.operator import TIMEOUTS
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.outputs import LATE
from millrace.operators.process.processor import Processor
from millrace.operators.process.shared.states import broadcasts
from millrace.operators.process.whole_batch import BatchProcessor
from millrace.spark.broadcast import BroadcastExchange, Side, make_side
from millrace.spark.exchange import (
    AggregateExchange,
    RowExchange,
    StreamColumns,
)
from millrace.spark.fingerprint import check_hashable
from millrace.spark.initial import InitialExchange, InitialRows
from millrace.spark.session import check_one_session
from millrace.spark.sinks import BatchFunction, ForEachBatch, make_sink
from millrace.spark.steps import OperatorStep, Point, SourceStep, Step, TransformStep, UnionStep
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
    return Stream(df.sparkSession, Point(SourceStep(), (), df), df.schema, event_time)


class Stream:
    """Rows on their way: a streaming source, or what an operator emits."""

    def __init__(
        self,
        spark: SparkSession,
        point: Point,
        schema: T.StructType,
        event_time: str | None = None,
    ) -> None:
        self._spark = spark
        self._point = point
        self._schema = schema
        self._event_time = event_time if event_time in schema.names else None
        self._dropped_time = event_time if self._event_time is None else None
        """The column of the event time, if a transform has dropped it."""
        self._latest_of: KeyedStream | None = None
        """The stream whose newest rows these are."""

    @property
    def schema(self) -> T.StructType:
        """The columns at this point."""
        return self._schema

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless Spark: filters, projections, joins with static tables."""
        df = function(self._sample())
        if not isinstance(df, DataFrame):
            raise UsageError(
                f"the function given to transform() returned {type(df).__name__}, not a DataFrame."
            )
        frame = None if self._point.frame is None else df
        point = Point(TransformStep(function), (self._point,), frame)
        # An event time stays one as long as its column is there.
        return Stream(self._spark, point, df.schema, self._event_time or self._dropped_time)

    def union(self, other: Stream) -> Stream:
        """This stream and another, by column name.

        Both may come from sources or from operators. The result keeps the event time if both have
        it, in the same column; the watermark is then the smaller one.
        """
        if not isinstance(other, Stream):
            raise UsageError(f"union() takes a stream, not {type(other).__name__}.")
        check_one_session(self._spark, other._spark, "union()")
        both = [stream._sample() for stream in (self, other)]
        try:
            df = both[0].unionByName(both[1])
        except AnalysisException as error:
            raise UsageError(
                f"union(): the streams have the columns {self._schema.simpleString()} and "
                f"{other._schema.simpleString()}, and Spark cannot unite them: "
                f"{str(error).splitlines()[0]}"
            ) from error
        has_frames = self._point.frame is not None and other._point.frame is not None
        step = UnionStep(
            df.schema, tuple(conforms(stream._schema, df.schema) for stream in (self, other))
        )
        inputs = (self._point, other._point)
        point = Point(step, inputs, df if has_frames else None)
        same = self._event_time if self._event_time == other._event_time else None
        return Stream(self._spark, point, df.schema, same)

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
        keyed: KeyedStream | None = getattr(other, "_latest_of", None)
        if keyed is None:
            raise JoinError(
                "lookup() takes what latest() returned: the newest row per key of a stream, "
                "customers.key_by('customer').latest()."
            )
        return look_up_streams(self, keyed, on, how, suffixes, name)

    def _then(
        self, schema: T.StructType, step: Step, *others: Stream, event_time: str | None = None
    ) -> Stream:
        """What comes out of another step over this stream, and over others."""
        inputs = (self._point, *(other._point for other in others))
        return Stream(self._spark, Point(step, inputs), schema, event_time)

    def _new_name(self, kind: str, name: str | None, *others: Stream) -> OperatorName:
        """The name of an operator over this stream, and others: a given one, or a default."""
        points = [self._point, *(other._point for other in others)]
        return new_name(kind, name, points)

    def key_by(self, *columns: str | SparkColumn) -> KeyedStream:
        """Group the rows by one or more columns, or by Spark expressions over them.

        The name of an expression is the name of its key column: give it one with `alias`.
        """
        return self._keyed("key_by()", columns)

    def _keyed(self, what: str, columns: tuple[str | SparkColumn, ...]) -> KeyedStream:
        if not columns:
            raise UsageError(f"{what} needs at least one column.")
        sample = self._sample()
        resolved = [resolve(sample, column, what) for column in columns]
        names = [key.name for key, _ in resolved]
        for key, _ in resolved:
            check_hashable(key.name, key.type)
        if len(set(names)) < len(names):
            raise DuplicateNameError(f"{what[:-1]}{', '.join(names)}) names a column twice.")
        keys, expressions = zip(*resolved, strict=True)
        computed = [k.name for k, c in zip(keys, columns, strict=True) if not isinstance(c, str)]
        return KeyedStream(self, keys, expressions, frozenset(computed))

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
        keyed = self._keyed("drop_duplicates()", columns)
        step = dedup_step(keyed, ttl, self._new_name("drop-duplicates", name))
        goes_on = self._event_time or self._dropped_time
        return self._then(step.operator.output_schema, step, event_time=goes_on)

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
        return beside._then(self._schema, self._point.step)

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
        return Stream(self._spark, self._operator_point.output(output), schema)

    @property
    def _operator_point(self) -> Point:
        """The point behind the last operator, if nothing of the program's own follows it."""
        step = self._point.step
        is_own = isinstance(step, TransformStep) and step.is_own
        return self._point.inputs[0] if is_own else self._point

    def _sample(self) -> DataFrame:
        """A frame with this point's schema, to resolve expressions against."""
        if self._point.frame is not None:
            return self._point.frame
        return self._spark.createDataFrame([], self._schema)

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


class KeyedStream:
    """Rows grouped by a key: what operators work on."""

    def __init__(
        self,
        upstream: Stream,
        keys: tuple[Column, ...],
        columns: tuple[SparkColumn, ...],
        computed: frozenset[str],
    ) -> None:
        self._upstream = upstream
        self._keys = keys
        self._columns = columns
        """The expressions that the keys are."""
        self._computed = computed
        """The keys that are no columns of the stream."""

    def window(
        self,
        size: Duration,
        slide: Duration | None = None,
        offset: Duration | None = None,
    ) -> WindowedStream:
        """Divide each key's rows into windows of event time, as Spark's `F.window` does.

        Windows are `size` long, such as `"10 minutes"`. One begins every `slide`; without it they
        follow each other. They are counted from 1970 in UTC, and `offset` moves them.
        """
        return WindowedStream(self, make_windows(size, slide, offset))

    def windows(
        self, lengths: Sequence[Duration], *, slide: Duration, offset: Duration | None = None
    ) -> WindowedStream:
        """Windows of several lengths that share their state, to be read by key and length.

        `["5 minutes", "1 hour", "1 day"]` with `slide="1 minute"` keep one row per key and minute
        of the last day, and give the windows of each length. Every length is a multiple of the
        slide.
        """
        tiles = make_tiles(lengths, slide, offset)
        return WindowedStream(self, tiles[-1], tuple(windows.size_us for windows in tiles))

    def session(self, gap: Duration) -> SessionStream:
        """Divide each key's rows into sessions, as Spark's `F.session_window` does.

        A session lasts as long as rows are at most `gap` apart, such as
        `"30 minutes"`, and ends that long after its last row.
        """
        return SessionStream(self, parse_gap(gap))

    def aggregate(self, *, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Keep aggregates per key; emits, per epoch, the keys that changed with their new values.

        `name` identifies the operator's state in the location, across restarts.
        """
        return self._aggregate(self._upstream._new_name("aggregate", name), aggregates)

    def _aggregate(
        self, name: OperatorName, aggregates: Mapping[str, Aggregate], *, emits_all: bool = False
    ) -> Stream:
        sample = self._upstream._sample()
        specs, inputs = resolve_aggregates(sample, aggregates)
        operator: AggregateOperator
        code: bytes | None = None
        if emits_all:
            operator = complete = CompleteAggregateOperator(
                name, self._keys, specs, ansi=is_ansi(sample)
            )
            code = complete.code()
        else:
            operator = AggregateOperator(name, self._keys, specs, ansi=is_ansi(sample))
        exchange = AggregateExchange(operator, self._columns, inputs)
        return self._upstream._then(operator.output_schema, OperatorStep(operator, exchange, code))

    def match(
        self,
        pattern: Pattern,
        *,
        select: Mapping[str, SparkColumn],
        after: str = "skip past last",
        name: str | None = None,
    ) -> Stream:
        """Look for a pattern in each key's rows, in order of event time; emits its matches.

        A match has the key and the columns that `select` names, such as
        `{"amount": mr.matched("large").last("amount")}`. `after` says where the next match may
        begin: `"skip past last"`, behind the last row of this one; `"skip to next"`, behind its
        first row; `"skip to first b"` or `"skip to last b"`, at a row of the variable b; or
        `"every match"`, which gives all there are. `name` identifies the operator's state.
        """
        return match_rows(self, pattern, after, select, name)

    def top(
        self, k: int, by: str | SparkColumn, *columns: str | SparkColumn, name: str | None = None
    ) -> Stream:
        """Keep the `k` rows of each key with the largest `by`; a row each, with its `rank` from 1.

        A row has the key, `rank`, `by` and `columns`; without `columns`, all columns of the stream.
        Emits, per epoch, all rows of the keys whose rows or ranks changed.
        """
        best, names = ranked(self, k, by, columns)
        return exploded(self.aggregate(name=name, **{TOP: best}), names)

    def latest(self, *, name: str | None = None) -> Stream:
        """The newest row per key; emits, per epoch, those that changed.

        Newest is by event time if the stream has one, else by arrival. Given to `lookup`, it is
        kept there, and needs no operator of its own.
        """
        upstream = self._upstream
        columns = [c for c in upstream._schema.names if c not in [k.name for k in self._keys]]
        if not columns:
            raise UsageError(
                "latest() keeps the columns beside the key, and this stream has none but the key."
            )
        by = newness(upstream._schema, upstream._event_time)
        aggregates = {c: last(named(c)) if by is None else max_by(named(c), by) for c in columns}
        kept = self._aggregate(upstream._new_name("latest", name), aggregates)
        kept._latest_of = self
        return kept

    def _with_keys(self) -> Stream:
        """The stream with its key among the columns, also where that is computed."""
        computed = {
            key.name: column
            for key, column in zip(self._keys, self._columns, strict=True)
            if key.name in self._computed
        }
        return (
            self._upstream.transform(lambda df: df.withColumns(computed))
            if computed
            else (self._upstream)
        )

    def process(
        self,
        processor: Processor | BatchProcessor,
        output: str | T.StructType,
        *,
        name: str | None = None,
        initial_state: DataFrame | None = None,
        broadcast: Mapping[str, KeyedStream] | None = None,
    ) -> Stream:
        """Run a processor's code, per key or on whole batches; emits what it yields.

        `output` is the schema of the rows it yields, such as `"user string, visits long"`. `name`
        identifies the operator's state in the location, across restarts. `initial_state` is a batch
        DataFrame that the state of a new location begins with; see `on_initial_state`. `broadcast`
        has a stream for each of the processor's broadcast states:
        `{"rules": mr.stream(df).key_by("shop")}`.
        """
        operator_name = self._upstream._new_name("process", name)
        schema = parse_schema(output)
        fields = [Column(f.name, f.dataType) for f in self._upstream._schema.fields]
        event_time = self._upstream._event_time
        if event_time is not None and is_window(self._upstream._schema[event_time].dataType):
            # A processor's rows have one event time, and a window has two ends.
            event_time = None
        initial = None if initial_state is None else _batch_schema(initial_state)
        schemas = Schemas(self._keys, fields, schema, event_time)
        operator = make_operator(operator_name, schemas, processor, initial)
        keys = [(column, k.type) for column, k in zip(self._columns, self._keys, strict=True)]
        columns = [(named(f.name), f.type) for f in fields]
        event = None if event_time is None else named(event_time)
        stream = StreamColumns(keys, columns, event)
        sides = _sides(operator_name, processor, broadcast or {})
        first = None
        if initial_state is not None:
            given = [(named(c.name), c) for c in operator.initial]
            initial_rows = InitialRows(initial_state, [column for column, _ in keys], given)
            first = InitialExchange(stream, initial_rows, sides)
        exchange = BroadcastExchange(stream, sides) if sides else RowExchange(stream)
        step = OperatorStep(operator, exchange, operator.code(), first, sides=sides)
        return self._upstream._then(schema, step)


def _sides(
    operator: OperatorName,
    processor: Processor | BatchProcessor,
    given: Mapping[str, Any],
) -> tuple[Side, ...]:
    """The streams of a processor's broadcast states, in the order of their declaration."""
    declared = broadcasts(processor)
    for state in given:
        if state not in declared:
            raise UsageError(
                f"broadcast={{{state!r}: ...}} of operator {operator!r}: "
                f"{type(processor).__name__} declares no broadcast state {state!r}; it declares "
                f"{', '.join(map(repr, declared)) or 'none'}."
            )
    sides = []
    for state, declaration in declared.items():
        keyed = given.get(state)
        if not isinstance(keyed, KeyedStream):
            got = "no stream" if keyed is None else f"a {type(keyed).__name__}"
            raise UsageError(
                f"{type(processor).__name__} declares the broadcast state {state!r}, and process() "
                f"of operator {operator!r} got {got} for it. Give one by its key: "
                f"broadcast={{{state!r}: mr.stream(df).key_by('column')}}."
            )
        source = keyed._with_keys()._point.frame
        if source is None:
            raise UsageError(
                f"broadcast={{{state!r}: ...}} of operator {operator!r}: the stream must come "
                "straight from a source, without an operator in between."
            )
        sides.append(make_side(operator, declaration, source, keyed._keys))
    return tuple(sides)


def _batch_schema(df: object) -> T.StructType:
    if not isinstance(df, DataFrame):
        raise InitialStateError(f"initial_state= takes a batch DataFrame, not {type(df).__name__}.")
    if df.isStreaming:
        raise InitialStateError(
            "initial_state= is a stream; it must be a batch DataFrame, such as spark.read returns."
        )
    return df.schema
