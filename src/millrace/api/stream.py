"""The builder: `mr.stream(df).transform(...).key_by(...).aggregate(...).to(...).start(...)`.

Everything that can be wrong in a program is found here, before anything starts: columns, types and
names are resolved against the streaming DataFrame's schema.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.api.columns import data_type, is_ansi, named, resolve, resolve_aggregates
from millrace.api.event_time import (
    Duration,
    check_event_time,
    event_time_of,
    make_windows,
    parse_emission,
    with_watermark,
)
from millrace.api.query import Query
from millrace.api.starting import parse_bytes, start_query
from millrace.ddl import parse_schema
from millrace.errors import (
    DuplicateNameError,
    InitialStateError,
    InvalidNameError,
    NotStreamingError,
    UnknownOutputError,
    UsageError,
)
from millrace.ids import OperatorName
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.operator import Column, Operator
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.outputs import LATE
from millrace.operators.process.processor import Processor
from millrace.operators.process.shared.states import broadcasts
from millrace.operators.process.whole_batch import BatchProcessor
from millrace.operators.window.layout import WINDOW
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.operators.window.spec import columns as columns_of
from millrace.reconfigure.cluster import DirectorOptions
from millrace.spark.broadcast import BroadcastExchange, Side, make_side
from millrace.spark.exchange import (
    AggregateExchange,
    RowExchange,
    StreamColumns,
    WindowExchange,
    WindowInput,
)
from millrace.spark.fingerprint import check_hashable
from millrace.spark.initial import InitialExchange, InitialRows
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.sinks import BatchFunction, ForEachBatch, Sink, check_targets, make_sink
from millrace.spark.steps import OperatorStep, OutputStep, Step, TransformStep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    return Stream(df, df.schema, (), event_time)


class Stream:
    """Rows on their way: a streaming source, or what an operator emits."""

    def __init__(
        self,
        source: DataFrame,
        schema: T.StructType,
        steps: tuple[Step, ...],
        event_time: str | None = None,
    ) -> None:
        self._source = source
        self._schema = schema
        self._steps = steps
        self._event_time = event_time if event_time in schema.names else None
        self._dropped_time = event_time if self._event_time is None else None
        """The column of the event time, if a transform has dropped it."""

    @property
    def _has_window(self) -> bool:
        """Whether the event time is that of the window operator before, or was."""
        return bool(self._steps) and WINDOW in (self._event_time, self._dropped_time)

    @property
    def schema(self) -> T.StructType:
        """The columns at this point."""
        return self._schema

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless Spark: filters, projections, joins with static tables."""
        if not self._steps:
            df = function(self._source)
            _check_frame(df)
            return Stream(df, df.schema, (), self._event_time)
        df = function(self._sample())
        _check_frame(df)
        steps = (*self._steps, TransformStep(function))
        # A window stays the event time as long as it is there.
        return Stream(self._source, df.schema, steps, WINDOW if self._has_window else None)

    def union(self, other: Stream) -> Stream:
        """This stream and another, by column name. Both must come straight from sources."""
        if self._steps or other._steps:
            raise UsageError(
                "union() joins sources: call it before the first operator on either side."
            )
        df = self._source.unionByName(other._source)
        return Stream(df, df.schema, (), self._event_time or other._event_time)

    def key_by(self, *columns: str | SparkColumn) -> KeyedStream:
        """Group the rows by one or more columns, or by Spark expressions over them.

        The name of an expression is the name of its key column: give it one with `alias`.
        """
        if not columns:
            raise UsageError("key_by() needs at least one column.")
        sample = self._sample()
        resolved = [resolve(sample, column, "key_by()") for column in columns]
        names = [key.name for key, _ in resolved]
        for key, _ in resolved:
            check_hashable(key.name, key.type)
        if len(set(names)) < len(names):
            raise DuplicateNameError(f"key_by({', '.join(names)}) names a column twice.")
        keys, expressions = zip(*resolved, strict=True)
        computed = [k.name for k, c in zip(keys, columns, strict=True) if not isinstance(c, str)]
        return KeyedStream(self, keys, expressions, frozenset(computed))

    def side(self, name: str) -> Stream:
        """What the previous processor emitted to one of its side outputs, as a stream."""
        operator = self._operator("side()")
        declared = [output for output in operator.side_schemas if output != LATE]
        if name not in declared:
            has = f"has {', '.join(map(repr, declared))}" if declared else "has none"
            raise UnknownOutputError(
                f"operator {operator.name!r} has no side output {name!r}; it {has}. Side outputs "
                'are declared in the class of a processor: alerts = mr.SideOutput("user string").'
            )
        return self._beside(operator, name)

    def late(self) -> Stream:
        """The rows that came too late for the previous operator, unchanged, as a stream."""
        operator = self._operator("late()")
        if LATE not in operator.side_schemas:
            raise UnknownOutputError(
                f"operator {operator.name!r} does not treat rows as late. Only windows, and "
                "processors over a stream with event_time= and watermark=, do."
            )
        return self._beside(operator, LATE)

    def _operator(self, what: str) -> Operator:
        step = self._steps[-1] if self._steps else None
        if isinstance(step, OperatorStep):
            return step.operator
        raise UnknownOutputError(
            f"{what} asks an operator for another of its outputs: call it on what process() "
            "or aggregate() returned, before a transform()."
        )

    def _beside(self, operator: Operator, output: str) -> Stream:
        schema = operator.side_schemas[output]
        return Stream(self._source, schema, (*self._steps, OutputStep(output)))

    def _sample(self) -> DataFrame:
        """A frame with this point's schema, to resolve expressions against."""
        if not self._steps:
            return self._source
        return self._source.sparkSession.createDataFrame([], self._schema)

    def to(self, sink: str, **options: Any) -> StreamWriter:
        """Write the output with a built-in sink: parquet, orc, json, csv, console, memory, noop."""
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

    def aggregate(self, *, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Keep aggregates per key; emits, per epoch, the keys that changed with their new values.

        `name` identifies the operator's state in the location, across restarts.
        """
        steps = self._upstream._steps
        operator_name = self._check_name(name or f"aggregate-{len(steps) + 1}")
        sample = self._upstream._sample()
        specs, inputs = resolve_aggregates(sample, aggregates)
        operator = AggregateOperator(operator_name, self._keys, specs, ansi=is_ansi(sample))
        exchange = AggregateExchange(operator, self._columns, inputs)
        step = OperatorStep(operator, exchange)
        return Stream(self._upstream._source, operator.output_schema, (*steps, step))

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
        steps = self._upstream._steps
        operator_name = self._check_name(name or f"process-{len(steps) + 1}")
        schema = parse_schema(output)
        fields = [Column(f.name, f.dataType) for f in self._upstream._schema.fields]
        event_time = self._upstream._event_time
        if self._upstream._has_window:
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
        return Stream(self._upstream._source, schema, (*steps, step))

    def _check_name(self, name: str) -> OperatorName:
        if not _NAME.fullmatch(str(name)):
            raise InvalidNameError(
                f"{name!r} cannot be an operator's name: use letters, digits, '_', '-' and '.', "
                "at most 100, beginning with a letter or digit."
            )
        for step in self._upstream._steps:
            if isinstance(step, OperatorStep) and step.operator.name == name:
                raise DuplicateNameError(
                    f"two operators are called {name!r}. Give each its own name: it "
                    "identifies the operator's state."
                )
        return OperatorName(name)


class WindowedStream:
    """Rows grouped by a key and by windows of event time."""

    def __init__(self, keyed: KeyedStream, windows: Windows) -> None:
        self._keyed = keyed
        self._windows = windows
        upstream = keyed._upstream
        self._event_us = event_time_of(
            upstream._schema, upstream._event_time, upstream._dropped_time
        )

    def aggregate(
        self, *, name: str | None = None, emit: str = "final", **aggregates: Aggregate
    ) -> Stream:
        """Keep aggregates per key and window; a window has the columns `start` and `end`.

        `emit` says when: `"final"`, each window once, when the watermark has passed its end;
        `"update"`, in each epoch the windows that changed in it; `"early=10 seconds"`, every ten
        seconds the windows that changed since then, and each once more when it is final. The column
        `is_final` then tells which is which.
        """
        keyed, upstream = self._keyed, self._keyed._upstream
        steps = upstream._steps
        operator_name = keyed._check_name(name or f"window-{len(steps) + 1}")
        sample = upstream._sample()
        specs, inputs = resolve_aggregates(sample, aggregates)
        definition = WindowDefinition(
            keyed._keys, self._windows, tuple(specs), parse_emission(emit)
        )
        fields = columns_of(upstream._schema.fields)
        operator = WindowOperator(operator_name, definition, fields, ansi=is_ansi(sample))
        columns = [named(f.name).alias(f.name) for f in fields]
        stream = WindowInput(keyed._columns, self._event_us, inputs, columns)
        step = OperatorStep(
            operator,
            WindowExchange(operator, stream),
            operator.code(),
            late=functools.partial(WindowExchange, operator, stream),
        )
        # An early result is followed by others of the same window, so it has no event time.
        goes_on = WINDOW if operator.emission.is_final else None
        return Stream(upstream._source, operator.output_schema, (*steps, step), goes_on)


class StreamWriter:
    """A stream with a sink, or several of one source: ready to start."""

    def __init__(self, upstream: Stream, sink: Sink) -> None:
        self._source = upstream._source
        self._paths: tuple[Path, ...] = (Path(upstream._steps, upstream._schema, sink),)

    def also(self, *others: StreamWriter) -> StreamWriter:
        """Run other branches in the same query: further sinks, side outputs, more operators.

        All branches come from one `mr.stream`, and what they share runs once an epoch.
        """
        both = copy.copy(self)
        for other in others:
            if not isinstance(other, StreamWriter):
                raise UsageError(
                    f"also() takes branches that have a sink, such as visits.side('alerts').to("
                    f"'parquet', path=...), not {type(other).__name__}."
                )
            if other._source is not self._source:
                raise UsageError(
                    "also() joins branches of one stream, and these begin at two. Keep what "
                    "mr.stream(...) returned, with its transforms, in a variable and build both "
                    "from it."
                )
            both._paths += other._paths
        return both

    def start(
        self,
        checkpointLocation: str,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        trigger: str | None = None,
        key_groups: int = DEFAULT_KEY_GROUPS,
        retain_epochs: int = 100,
        memory: str | int = "2 GiB",
        query_name: str | None = None,
        standby: int = 0,
        elastic: bool = False,
        spare_executors: int = 0,
        follow_rate: str | int = "256 MB",
    ) -> Query:
        """Start the query, new or from where the location left off.

        - `parallelism`: shards per operator, or a dict by operator; may differ at every start, and
          while the query runs. Default: what the query last had; for a new location, Spark's
          default parallelism.
        - `trigger`: an interval such as `"1 second"`, `"available_now"`, or None: back to back.
        - `key_groups`: a power of two; fixed when a location is first used.
        - `retain_epochs`: how many epochs stay readable.
        - `memory`: the budget of one Python worker for its index of recent changes.
        - `standby`: how many other executors follow each key group, ready to take it over.
        - `elastic`: ask Spark for executors when rescaling, and give idle ones back; with
          `spare_executors` of them kept warm.
        - `follow_rate`: bytes per second that a move may take in the background.
        """
        check_targets([path.sink for path in self._paths])
        pipeline = Pipeline(self._paths)
        if not pipeline.operators:
            raise UsageError(
                "the query has no operator, so there is no state to keep. Add one, for example "
                ".key_by('device').aggregate(n=mr.count()), or use Spark's writeStream."
            )
        return start_query(
            self._source,
            pipeline,
            checkpointLocation,
            parallelism=parallelism,
            trigger=trigger,
            key_groups=key_groups,
            retain_epochs=retain_epochs,
            memory=memory,
            query_name=query_name,
            director_options=DirectorOptions(
                standby=_natural("standby", standby),
                elastic=bool(elastic),
                spare_executors=_natural("spare_executors", spare_executors),
                follow_bytes_per_second=parse_bytes(follow_rate, "follow_rate"),
            ),
        )


def _natural(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"{name}={value!r}: it must be a whole number, 0 or more.")
    return value


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
        if keyed._upstream._steps:
            raise UsageError(
                f"broadcast={{{state!r}: ...}} of operator {operator!r}: the stream must come "
                "straight from a source, without an operator in between."
            )
        source = keyed._upstream._source
        for key, column in zip(keyed._keys, keyed._columns, strict=True):
            if key.name in keyed._computed:
                source = source.withColumn(key.name, column)
        sides.append(make_side(operator, declaration, source, keyed._keys))
    return tuple(sides)


def _check_frame(df: object) -> None:
    if not isinstance(df, DataFrame):
        raise UsageError(
            f"the function given to transform() returned {type(df).__name__}, not a DataFrame."
        )


def _batch_schema(df: object) -> T.StructType:
    if not isinstance(df, DataFrame):
        raise InitialStateError(f"initial_state= takes a batch DataFrame, not {type(df).__name__}.")
    if df.isStreaming:
        raise InitialStateError(
            "initial_state= is a stream; it must be a batch DataFrame, such as spark.read returns."
        )
    return df.schema
