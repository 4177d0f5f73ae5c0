"""Rows grouped by a key: what operators work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.api.columns import is_ansi, named, resolve, resolve_aggregates
from millrace.api.event_time import (
    Duration,
    does_emit,
    is_window,
    make_tiles,
    make_windows,
    newness,
    parse_gap,
)
from millrace.api.origin import Grouping, grouping, origin, then
from millrace.api.patterns import match_rows
from millrace.api.timed import SessionStream, WindowedStream
from millrace.api.top import TOP, exploded, ranked
from millrace.ddl import parse_schema
from millrace.errors import (
    DuplicateNameError,
    InitialStateError,
    UsageError,
)
from millrace.ids import OperatorName
from millrace.operators.aggregate.functions import Aggregate, last, max_by
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.silent import SilentAggregateOperator
from millrace.operators.operator import Column
from millrace.operators.pattern.builder import Pattern
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.processor import Processor
from millrace.operators.process.shared.states import broadcasts
from millrace.operators.process.whole_batch import BatchProcessor
from millrace.operators.window.emission import UPDATE
from millrace.spark.broadcast import BroadcastExchange, Side, make_side
from millrace.spark.exchange import (
    AggregateExchange,
    RowExchange,
    StreamColumns,
)
from millrace.spark.fingerprint import check_hashable
from millrace.spark.initial import InitialExchange, InitialRows
from millrace.spark.steps import OperatorStep

if TYPE_CHECKING:
    from millrace.api.stream import Stream


class KeyedStream:
    """Rows grouped by a key: what operators work on."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping

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

    def aggregate(
        self, *, name: str | None = None, emit: str = UPDATE, **aggregates: Aggregate
    ) -> Stream:
        """Keep aggregates per key; emits, per epoch, the keys that changed with their new values.

        `name` identifies the operator's state in the location, across restarts. With `emit="none"`
        nothing is emitted: the state is there to be read.
        """
        kind = AggregateOperator if does_emit(emit, "aggregate()") else SilentAggregateOperator
        operator = origin(self._grouping.stream).new_name("aggregate", name)
        return aggregate_keys(self, operator, aggregates, kind)

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
        self,
        k: int,
        by: str | SparkColumn,
        *columns: str | SparkColumn,
        name: str | None = None,
        emit: str = UPDATE,
    ) -> Stream:
        """Keep the `k` rows of each key with the largest `by`; a row each, with its `rank` from 1.

        A row has the key, `rank`, `by` and `columns`; without `columns`, all columns of the stream.
        Emits, per epoch, all rows of the keys whose rows or ranks changed; with `emit="none"`,
        nothing.
        """
        does_emit(emit, "top()")
        best, names = ranked(self, k, by, columns)
        return exploded(self.aggregate(name=name, emit=emit, **{TOP: best}), names)

    def latest(self, *, name: str | None = None, emit: str = UPDATE) -> Stream:
        """The newest row per key; emits, per epoch, those that changed; or nothing, if `emit` is
        `"none"`.

        Newest is by event time if the stream has one, else by arrival. Given to `lookup`, it is
        kept there, and needs no operator of its own.
        """
        of = origin(self._grouping.stream)
        keys = [key.name for key in self._grouping.keys]
        columns = [name for name in of.schema.names if name not in keys]
        if not columns:
            raise UsageError(
                "latest() keeps the columns beside the key, and this stream has none but the key."
            )
        by = newness(of.schema, of.event_time)
        aggregates = {c: last(named(c)) if by is None else max_by(named(c), by) for c in columns}
        kind = AggregateOperator if does_emit(emit, "latest()") else SilentAggregateOperator
        kept = aggregate_keys(self, of.new_name("latest", name), aggregates, kind)
        return type(kept)(replace(origin(kept), latest_of=self))

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
        group = self._grouping
        of = origin(group.stream)
        operator_name = of.new_name("process", name)
        schema = parse_schema(output)
        fields = [Column(f.name, f.dataType) for f in of.schema.fields]
        event_time = of.event_time
        if event_time is not None and is_window(of.schema[event_time].dataType):
            # A processor's rows have one event time, and a window has two ends.
            event_time = None
        initial = None if initial_state is None else _batch_schema(initial_state)
        schemas = Schemas(group.keys, fields, schema, event_time)
        operator = make_operator(operator_name, schemas, processor, initial)
        keys = [(column, k.type) for column, k in zip(group.columns, group.keys, strict=True)]
        columns = [(named(f.name), f.type) for f in fields]
        event = None if event_time is None else named(event_time)
        rows = StreamColumns(keys, columns, event)
        sides = _sides(operator_name, processor, broadcast or {})
        first = None
        if initial_state is not None:
            given = [(named(c.name), c) for c in operator.initial]
            initial_rows = InitialRows(initial_state, [column for column, _ in keys], given)
            first = InitialExchange(rows, initial_rows, sides)
        exchange = BroadcastExchange(rows, sides) if sides else RowExchange(rows)
        step = OperatorStep(operator, exchange, operator.code(), first, sides=sides)
        return then(group.stream, schema, step)


def aggregate_keys(
    keyed: KeyedStream,
    name: OperatorName,
    aggregates: Mapping[str, Aggregate],
    kind: type[AggregateOperator],
) -> Stream:
    """An operator that keeps aggregates; its kind says what it emits."""
    group = grouping(keyed)
    sample = origin(group.stream).sample()
    specs, inputs = resolve_aggregates(sample, aggregates)
    operator = kind(name, group.keys, specs, ansi=is_ansi(sample))
    exchange = AggregateExchange(operator, group.columns, inputs)
    step = OperatorStep(operator, exchange, operator.code())
    return then(group.stream, operator.output_schema, step)


def key_stream(stream: Stream, what: str, columns: tuple[str | SparkColumn, ...]) -> KeyedStream:
    """A stream grouped by columns or expressions; `what` is the call that they were given to."""
    if not columns:
        raise UsageError(f"{what} needs at least one column.")
    sample = origin(stream).sample()
    resolved = [resolve(sample, column, what) for column in columns]
    names = [key.name for key, _ in resolved]
    for key, _ in resolved:
        check_hashable(key.name, key.type)
    if len(set(names)) < len(names):
        raise DuplicateNameError(f"{what[:-1]}{', '.join(names)}) names a column twice.")
    keys, expressions = zip(*resolved, strict=True)
    computed = [k.name for k, c in zip(keys, columns, strict=True) if not isinstance(c, str)]
    return KeyedStream(Grouping(stream, keys, expressions, frozenset(computed)))


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
        source = origin(grouping(keyed).with_keys()).point.frame
        if source is None:
            raise UsageError(
                f"broadcast={{{state!r}: ...}} of operator {operator!r}: the stream must come "
                "straight from a source, without an operator in between."
            )
        sides.append(make_side(operator, declaration, source, grouping(keyed).keys))
    return tuple(sides)


def _batch_schema(df: object) -> T.StructType:
    if not isinstance(df, DataFrame):
        raise InitialStateError(f"initial_state= takes a batch DataFrame, not {type(df).__name__}.")
    if df.isStreaming:
        raise InitialStateError(
            "initial_state= is a stream; it must be a batch DataFrame, such as spark.read returns."
        )
    return df.schema
