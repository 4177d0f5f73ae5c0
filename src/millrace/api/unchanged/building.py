"""From a cut plan to a graph of Millrace's: operators where it was cut, Spark's plan between them.

Every stateful node becomes an operator over the columns it needs, which Spark's own expressions
compute, and leaves a hole in the plan above it: a relation with the node's columns. In an epoch the
operator's rows fill the hole. So no expression is translated: names, types and arithmetic between
operators are Spark's, and only the state is Millrace's.

Invariant: a part's stream has the columns of its hole, in order.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.api.columns import named
from millrace.api.dedup import WATERMARK, dedup_step
from millrace.api.joins import join_streams
from millrace.api.keyed import KeyedStream, aggregate_keys, key_stream
from millrace.api.origin import Origin, grouping, origin, then
from millrace.api.stream import Stream
from millrace.api.unchanged.naming import RESERVED, RESERVED_BY_TIME, Names
from millrace.errors import MillraceError, UnsupportedPlanError
from millrace.operators.aggregate.complete import CompleteAggregateOperator
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.window.emission import FINAL
from millrace.plans.aggregates import Function
from millrace.plans.conditions import Pair
from millrace.plans.nodes import Attribute, Node
from millrace.plans.rules import (
    AggregatePlan,
    Cut,
    Decision,
    DedupPlan,
    JoinPlan,
    ProcessorPlan,
    SessionPlan,
    WindowPlan,
    is_stateful,
)
from millrace.repeating import first_line
from millrace.spark import jvm
from millrace.spark.plan_reader import GroupedParts, Reading
from millrace.spark.steps import Point, SourceStep, TransformStep

_FAR = "2200-01-01 00:00:00"
"""The event time of rows that have none: never late, and never over within a thousand years."""
_INSTANT = dt.timedelta(microseconds=1)
_OUTER = ("left", "right", "full")


class _NodeError(UnsupportedPlanError):
    """A node that cannot be built, by its name."""


@dataclass(frozen=True)
class _PlannedAggregate(Aggregate):
    """An aggregate over a computed column, known in the location by the program's expression."""

    text: str = ""

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Part:
    """A plan of Spark's, with at most one hole, and the stream that fills it."""

    plan: Any
    hole: Any = None
    stream: Stream | None = None


def build(reading: Reading, cut: Cut) -> Stream:
    """The stream of what a plan emits, with the plan's own columns."""
    if cut.reason is not None:
        raise UnsupportedPlanError(cut.reason)
    return _Builder(reading, cut).build()


class _Builder:
    def __init__(self, reading: Reading, cut: Cut) -> None:
        self._reading = reading
        self._cut = cut
        self._spark = reading.spark
        self._cuts = jvm.load(reading.spark).PlanCuts
        self._jvm: Any = reading.spark._jvm

    def build(self) -> Stream:
        return self._stream(self._part(self._cut.root))

    def _part(self, node: Node) -> _Part:
        """The plan up to a node; everything stateful in it is behind its hole."""
        decision = self._cut.of(node)
        if decision is not None:
            try:
                return self._operator(node, decision)
            except _NodeError:
                raise
            except MillraceError as error:
                # An operator refuses what the rules let through, such as a type of column.
                raise _NodeError(f"{decision.name}: {first_line(error)}") from error
        plan = self._reading.java[node.number]
        cut_below = [child for child in node.children if any(map(is_stateful, child.walk()))]
        if not cut_below:
            return _Part(plan)
        streams = [child for child in node.children if child.is_streaming]
        if len(streams) == 1:
            below = self._part(streams[0])
            replaced = self._cuts.replace(plan, self._java(streams[0]), below.plan)
            return _Part(replaced, below.hole, below.stream)
        if node.kind == "Union":
            return self._union(node)
        raise UnsupportedPlanError(f"{node.kind} of several streams behind stateful nodes.")

    def _java(self, node: Node) -> Any:
        return self._reading.java[node.number]

    def _output(self, node: Node) -> list[Any]:
        return list(self._cuts.list(self._java(node).output()))

    def _frame(self, plan: Any) -> DataFrame:
        dataset = self._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(self._spark._jsparkSession, plan), self._spark)

    def _stream(self, part: _Part, event_time: str | None = None) -> Stream:
        if part.stream is None:
            frame = self._frame(part.plan)
            point = Point(SourceStep(), (), frame)
            return Stream(Origin(self._spark, point, frame.schema, event_time))
        if part.plan == part.hole:
            return part.stream
        fill = _Filling(part.plan, part.hole)
        schema = fill(self._spark.createDataFrame([], part.stream.schema)).schema
        fixed = bool(self._cuts.isFixed(part.plan))
        step = TransformStep(fill, is_fixed=fixed)
        point = Point(step, (origin(part.stream).point,), None)
        return Stream(Origin(self._spark, point, schema, event_time))

    def _view(
        self,
        part: _Part,
        columns: Sequence[tuple[str, Any]],
        event_time: str | None = None,
    ) -> Stream:
        """Expressions over a plan, by name."""
        names, expressions = [name for name, _ in columns], [each for _, each in columns]
        projected = self._cuts.project(part.plan, expressions, names)
        return self._stream(_Part(projected, part.hole, part.stream), event_time)

    def _behind(self, stream: Stream, attributes: Sequence[Any]) -> _Part:
        hole = self._cuts.hole(list(attributes))
        return _Part(hole, hole, stream)

    def _unused(self, stream: Stream, name: str) -> Any:
        """A column of an operator's that the plan does not know."""
        data_type = stream.schema[name].dataType
        java = self._jvm.org.apache.spark.sql.types.DataType.fromJson(data_type.json())
        return self._cuts.attribute(name, java)

    def _union(self, node: Node) -> _Part:
        names = [f"column{i}" for i in range(len(node.output))]
        united: Stream | None = None
        for child in node.children:
            columns = list(zip(names, self._output(child), strict=True))
            stream = self._view(self._part(child), columns)
            united = stream if united is None else united.union(stream)
        assert united is not None
        return self._behind(united, self._output(node))

    def _operator(self, node: Node, decision: Decision) -> _Part:
        plan = decision.plan
        if isinstance(plan, AggregatePlan | WindowPlan | SessionPlan):
            return self._aggregation(node, decision.name, plan)
        if isinstance(plan, DedupPlan):
            return self._deduplication(node, decision.name, plan)
        if isinstance(plan, JoinPlan):
            return self._join(node, decision.name, plan)
        if isinstance(plan, ProcessorPlan):
            return self._processor(node, decision.name, plan)
        raise UnsupportedPlanError(plan.reason)

    def _aggregation(
        self, node: Node, name: str, plan: AggregatePlan | WindowPlan | SessionPlan
    ) -> _Part:
        grouped = self._reading.grouped[node.number]
        names = Names(RESERVED if isinstance(plan, AggregatePlan) else RESERVED_BY_TIME)
        is_assigned = isinstance(plan, SessionPlan) or (
            isinstance(plan, WindowPlan) and plan.windows is not None
        )
        time_key = None if isinstance(plan, AggregatePlan) else plan.time_key
        keys, columns, attributes = [], [], []
        for i, each in enumerate(grouped.grouping):
            if is_assigned and i == time_key:
                continue
            keys.append(names.new(str(each.name()), f"key{i + 1}"))
            columns.append((keys[-1], _value(each)))
            attributes.append(each.toAttribute())
        is_keyless = not keys
        if is_keyless:
            # Windows of all rows: those of one key.
            sql = self._jvm.org.apache.spark.sql
            zero = sql.catalyst.expressions.Literal.default(
                sql.types.DataType.fromJson(T.IntegerType().json())
            )
            keys.append(names.new("all", "all"))
            columns.append((keys[-1], zero))
        aggregates, inputs = self._aggregates(node, grouped, plan.functions, names)
        columns += inputs
        time = None
        if time_key is not None:
            time = names.new("event_time", "event_time")
            columns.append((time, self._time(grouped, time_key, is_assigned=is_assigned)))
        below = node.children[0]
        for _ in range(grouped.levels if is_assigned else 0):
            below = below.children[0]
        rows = self._view(self._part(below), columns, time)
        if time is not None and not is_assigned:
            # Spark has assigned the windows: each is the instant before its end.
            rows = rows.transform(_Instants(time))
        keyed = rows.key_by(*keys)
        stream = self._aggregated(keyed, name, plan, aggregates)
        if is_keyless:
            attributes.append(self._unused(stream, keys[0]))
        if time_key is not None and is_assigned:
            attributes.append(grouped.grouping[time_key].toAttribute())
        elif time_key is not None:
            attributes.append(self._unused(stream, stream.schema.names[len(keys)]))
        attributes += [call.resultAttribute() for call in grouped.calls]
        if not grouped.calls:
            attributes.append(self._unused(stream, stream.schema.names[-1]))
        part = self._behind(stream, attributes)
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        results = logical.Project(self._cuts.seq(grouped.results), part.hole)
        return _Part(results, part.hole, stream)

    def _aggregated(
        self,
        keyed: KeyedStream,
        name: str,
        plan: AggregatePlan | WindowPlan | SessionPlan,
        aggregates: dict[str, Aggregate],
    ) -> Stream:
        if isinstance(plan, AggregatePlan):
            operator = origin(grouping(keyed).stream).new_name("aggregate", name)
            kind = CompleteAggregateOperator if plan.emits_all else AggregateOperator
            return aggregate_keys(keyed, operator, aggregates, kind)
        if isinstance(plan, SessionPlan):
            gap = dt.timedelta(microseconds=plan.gap_us)
            return keyed.session(gap).aggregate(name=name, emit=FINAL, **aggregates)
        if plan.windows is None:
            windowed = keyed.window(_INSTANT)
        else:
            size, slide, offset = (
                dt.timedelta(microseconds=us)
                for us in (plan.windows.size_us, plan.windows.slide_us, plan.windows.offset_us)
            )
            windowed = keyed.window(size, slide, offset)
        return windowed.aggregate(name=name, emit=plan.emit, **aggregates)

    def _aggregates(
        self, node: Node, grouped: GroupedParts, functions: Sequence[Function], names: Names
    ) -> tuple[dict[str, Aggregate], list[tuple[str, Any]]]:
        """The aggregates by name, and the columns that they are over."""
        described = node.detail.calls  # type: ignore[union-attr]
        aggregates: dict[str, Aggregate] = {}
        columns: list[tuple[str, Any]] = []
        for i, (call, function) in enumerate(zip(grouped.calls, functions, strict=True)):
            name = names.new(described[i].name, f"value{i + 1}")
            over = self._inputs(call, function)
            inputs = [f"_{i}_{j}" for j in range(len(over))]
            columns += zip(inputs, over, strict=True)
            aggregates[name] = _PlannedAggregate(
                function.name,
                inputs[0] if inputs else None,
                dict(function.options),
                inputs[1] if len(inputs) > 1 else None,
                text=described[i].sql,
            )
        if not aggregates:
            # The operator keeps something for each key.
            aggregates[names.new("rows", "rows")] = Aggregate("count")
        return aggregates, columns

    def _inputs(self, call: Any, function: Function) -> list[Any]:
        """The expressions that an aggregate is over; NULL where the call's filter does not hold."""
        given = list(self._cuts.list(call.aggregateFunction().children()))[: function.inputs]
        condition = call.filter()
        if condition.isEmpty():
            return given
        return [self._cuts.where(condition.get(), each) for each in given]

    def _time(self, grouped: GroupedParts, key: int, *, is_assigned: bool) -> Any:
        """The event time of rows: what windows are over, or their own end."""
        return grouped.time if is_assigned else self._cuts.end(_value(grouped.grouping[key]))

    def _columns(self, node: Node, names: Names) -> list[tuple[str, Any]]:
        """All columns of a node, by names of their own."""
        return [
            (names.new(attribute.name, f"column{i + 1}"), java)
            for i, (attribute, java) in enumerate(zip(node.output, self._output(node), strict=True))
        ]

    def _deduplication(self, node: Node, name: str, plan: DedupPlan) -> _Part:
        (child,) = node.children
        columns = self._columns(child, Names())
        by_id = {a.id: column for a, (column, _) in zip(child.output, columns, strict=True)}
        time = None if plan.time is None else by_id[plan.time.id]
        stream = self._view(self._part(child), columns, time)
        keyed = key_stream(stream, "dropDuplicates()", tuple(by_id[key.id] for key in plan.keys))
        step = dedup_step(
            keyed,
            None if time is None else WATERMARK,
            origin(stream).new_name("drop-duplicates", name),
            delay_us=1000 * plan.delay_ms,
        )
        emitted = then(stream, step.operator.output_schema, step, event_time=time)
        return self._behind(emitted, self._output(child))

    def _join(self, node: Node, name: str, plan: JoinPlan) -> _Part:
        names = Names()
        left, right = node.children
        keys = [names.new(_key_name(pair), "key") for pair in plan.condition.keys]
        is_outer = plan.how in _OUTER
        if is_outer:
            keys.append(names.new("null_key", "null_key"))
        sides, unused = [], []
        for child, pick, time in zip((left, right), ("left", "right"), plan.times, strict=True):
            compared = [
                self._reading.expressions[getattr(pair, pick)] for pair in plan.condition.keys
            ]
            part = self._part(child)
            if is_outer:
                compared = self._without_nulls(compared, pick)
                part = self._timed(part, child, time)
            columns = list(zip(keys, compared, strict=True))
            own = self._columns(child, names)
            columns += own
            event_time, extra = self._event_time(child, own, time, names)
            columns += extra
            unused.append([column for column, _ in extra])
            sides.append(self._view(part, columns, event_time))
        within = tuple(
            dt.timedelta(microseconds=us)
            for us in (plan.condition.lower_us, plan.condition.upper_us)
        )
        joined = join_streams(
            sides[0], sides[1], keys, within, plan.how, None, name, either_time=True
        )
        return self._joined(node, plan, joined, keys, unused)

    def _without_nulls(self, keys: Sequence[Any], side: str) -> list[Any]:
        """Keys for a row with a NULL among them that has no partner, but waits for one as in Spark.

        An operator emits rows with NULL keys at once. So the NULLs become values, and one more key
        sees to it that such a row equals none of the other stream.
        """
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        integer = self._jvm.org.apache.spark.sql.types.DataType.fromDDL("int")
        is_null = expressions.IsNull(keys[0])
        for key in keys[1:]:
            is_null = expressions.Or(is_null, expressions.IsNull(key))
        mark = self._cuts.constant("1" if side == "left" else "2", integer)
        defaults = [expressions.Literal.default(key.dataType()) for key in keys]
        plain = [
            expressions.Coalesce(self._cuts.seq([key, default]))
            for key, default in zip(keys, defaults, strict=True)
        ]
        zero = self._cuts.constant("0", integer)
        return [*plain, expressions.If(is_null, mark, zero)]

    def _timed(self, part: _Part, child: Node, time: Attribute | None) -> _Part:
        """Without rows that have no event time: Spark keeps them, but never emits one."""
        if time is None:
            return part
        sql = self._jvm.org.apache.spark.sql.catalyst
        at = [attribute.id for attribute in child.output].index(time.id)
        known = sql.expressions.IsNotNull(self._output(child)[at])
        return _Part(sql.plans.logical.Filter(known, part.plan), part.hole, part.stream)

    def _event_time(
        self, child: Node, own: list[tuple[str, Any]], time: Attribute | None, names: Names
    ) -> tuple[str, list[tuple[str, Any]]]:
        """The column of a stream's event time, and one to add if there is none to use."""
        if time is not None and not time.type.startswith("struct"):
            at = [attribute.id for attribute in child.output].index(time.id)
            return own[at][0], []
        name = names.new("event_time", "event_time")
        if time is None:
            timestamp = self._jvm.org.apache.spark.sql.types.DataType.fromDDL("timestamp")
            return name, [(name, self._cuts.constant(_FAR, timestamp))]
        at = [attribute.id for attribute in child.output].index(time.id)
        return name, [(name, self._cuts.end(own[at][1]))]

    def _joined(
        self,
        node: Node,
        plan: JoinPlan,
        joined: Stream,
        keys: Sequence[str],
        unused: Sequence[Sequence[str]],
    ) -> _Part:
        """What comes out of a join: the plan's columns, and those that the operator needs."""
        output = self._output(node)
        number = len(node.children[0].output)
        attributes = [self._unused(joined, key) for key in keys]
        attributes += output[:number]
        attributes += [self._unused(joined, column) for column in unused[0]]
        attributes += output[number:]
        if len(output) > number:
            attributes += [self._unused(joined, column) for column in unused[1]]
        part = self._behind(joined, attributes)
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        plan_above = part.hole
        if plan.condition.rest:
            plan_above = logical.Filter(self._java(node).condition().get(), plan_above)
        plan_above = logical.Project(self._cuts.seq(output), plan_above)
        return _Part(plan_above, part.hole, joined)

    def _processor(self, node: Node, name: str, plan: ProcessorPlan) -> _Part:
        from millrace.api.unchanged.processors import processed

        child = node.children[0]
        number = plan.processing.keys
        fields = child.output[number:]
        columns = list(zip([f.name for f in fields], self._output(child)[number:], strict=True))
        stream = self._view(self._part(child), columns)
        emitted = processed(self._java(node), stream, name, plan, child.output[:number])
        return self._behind(emitted, self._output(node))


class _Filling:
    """Spark's plan between two cuts, over the rows that fill its hole."""

    def __init__(self, plan: Any, hole: Any) -> None:
        self._plan = plan
        self._hole = hole

    def __call__(self, df: DataFrame) -> DataFrame:
        java: Any = df._jdf
        cuts = jvm.load(df.sparkSession).PlanCuts
        spark_jvm: Any = df.sparkSession._jvm
        rows = cuts.fill(java.queryExecution().analyzed(), self._hole)
        filled = cuts.replace(self._plan, self._hole, rows)
        dataset = spark_jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(java.sparkSession(), filled), df.sparkSession)


class _Instants:
    """Moves a column of times back by a microsecond."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, df: DataFrame) -> DataFrame:
        before = F.timestamp_micros(F.unix_micros(named(self._column)) - F.lit(1))
        return df.withColumn(self._column, before)


def _value(grouping: Any) -> Any:
    """What a grouping expression computes."""
    is_alias = str(grouping.getClass().getSimpleName()) == "Alias"
    return grouping.child() if is_alias else grouping


def _key_name(pair: Pair) -> str:
    return f"key_{pair.left.sql.rpartition('.')[2].strip('`')}" if pair.left.attribute else "key"
