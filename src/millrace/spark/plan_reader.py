"""Reads Spark's analysed plan into `millrace.plans`: the only module that walks Catalyst's trees.

The reader keeps Spark's own objects by the numbers of nodes, for whoever rebuilds the plan. It
decides nothing: what it cannot describe it leaves out, and a rule then finds nothing it knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.plans.nodes import (
    SESSION,
    WINDOW,
    Aggregation,
    Attribute,
    Call,
    Deduplication,
    Detail,
    Expression,
    Joining,
    Key,
    Node,
    Processing,
    Session,
    Windows,
)
from millrace.spark import jvm

_DELAY = "spark.watermarkDelayMs"
_MARKERS = {"spark.timeWindow": WINDOW, "spark.sessionWindow": SESSION}
_SQL_LENGTH = 200
_TIME_MODES = {"NoTime": "None"}
"""What Spark's own objects call what its users call otherwise."""
_FIXED_DAYS = ("UTC", "Etc/UTC", "GMT", "Z")
"""Time zones in which every day has 24 hours."""


@dataclass(frozen=True)
class GroupedParts:
    """Spark's own division of an Aggregate: what it groups by, computes and makes of that."""

    grouping: list[Any]
    calls: list[Any]
    results: list[Any]
    child: Any
    time: Any = None
    """The expression of the time that windows are over, if the operator assigns them."""
    levels: int = 0
    """How many nodes below the Aggregate assign windows, which the operator does instead."""


@dataclass
class Reading:
    """A described plan, and Spark's objects that it describes."""

    spark: SparkSession
    analysed: Any
    """The plan as Spark has it."""
    root: Node
    java: dict[int, Any] = field(default_factory=dict)
    grouped: dict[int, GroupedParts] = field(default_factory=dict)
    expressions: dict[Expression, Any] = field(default_factory=dict)


def read_plan(df: DataFrame) -> Reading:
    """Describe the plan of a streaming DataFrame."""
    return _PlanReading(df).read()


class _PlanReading:
    def __init__(self, df: DataFrame) -> None:
        self._spark = df.sparkSession
        self._package = jvm.load(self._spark)
        spark_jvm: Any = self._spark._jvm
        self._jvm = spark_jvm
        java: Any = df._jdf
        optimizer = spark_jvm.org.apache.spark.sql.catalyst.optimizer
        # bool_and, count_if and others stand for expressions of simpler functions.
        replacing = getattr(getattr(optimizer, "ReplaceExpressions$"), "MODULE$")
        # BETWEEN stands for two comparisons of what it names once.
        inlining = getattr(getattr(optimizer, "RewriteWithExpression$"), "MODULE$")
        self._analysed = java.queryExecution().analyzed()
        self._plan = inlining.apply(replacing.apply(self._analysed))
        self._java: dict[int, Any] = {}
        self._grouped: dict[int, GroupedParts] = {}
        self._expressions: dict[Expression, Any] = {}

    def read(self) -> Reading:
        root = self._node(self._plan)
        return Reading(
            self._spark, self._analysed, root, self._java, self._grouped, self._expressions
        )

    def _list(self, items: Any) -> list[Any]:
        return list(self._package.PlanCuts.list(items))

    def _node(self, plan: Any) -> Node:
        number = len(self._java)
        self._java[number] = plan
        kind = _class(plan)
        detail = self._detail(number, kind, plan) if plan.isStreaming() else None
        children = tuple(self._node(child) for child in self._list(plan.children()))
        return Node(
            number,
            kind,
            bool(plan.isStreaming()),
            tuple(map(self._attribute, self._list(plan.output()))),
            children,
            detail,
            str(plan.simpleString(8))[:_SQL_LENGTH],
        )

    def _attribute(self, attribute: Any) -> Attribute:
        metadata = attribute.metadata()
        delay = int(metadata.getLong(_DELAY)) if metadata.contains(_DELAY) else None
        windows = [kind for marker, kind in _MARKERS.items() if metadata.contains(marker)]
        return Attribute(
            int(attribute.exprId().id()),
            str(attribute.name()),
            str(attribute.dataType().catalogString()),
            delay,
            windows[0] if windows else None,
        )

    def _detail(self, number: int, kind: str, plan: Any) -> Detail | None:
        if kind in ("Aggregate", "Distinct"):
            return self._aggregation(number, kind, plan)
        if kind in ("Deduplicate", "DeduplicateWithinWatermark"):
            keys = tuple(map(self._attribute, self._list(plan.keys())))
            return Deduplication(keys, kind == "DeduplicateWithinWatermark")
        if kind == "Join":
            return self._joining(plan)
        if kind == "TransformWithStateInPySpark":
            return Processing(
                int(plan.groupingAttributesLen()),
                _TIME_MODES.get(str(plan.timeMode().toString()), str(plan.timeMode().toString())),
                str(plan.outputMode().toString()),
                str(plan.userFacingDataType().toString()) == "pandas",
                bool(plan.hasInitialState()),
            )
        return None

    def _aggregation(self, number: int, kind: str, plan: Any) -> Aggregation | None:
        if kind == "Distinct":
            grouping = self._list(plan.child().output())
            parts = GroupedParts(grouping, [], grouping, plan.child())
        else:
            planning = self._jvm.org.apache.spark.sql.catalyst.planning
            found = getattr(getattr(planning, "PhysicalAggregation$"), "MODULE$").unapply(plan)
            if found.isEmpty():
                return None
            divided = found.get()
            grouping, calls, results = (
                self._list(part) for part in (divided._1(), divided._2(), divided._3())
            )
            parts = GroupedParts(grouping, calls, results, divided._4())
        keys = []
        for expression in parts.grouping:
            column = self._attribute(expression.toAttribute())
            shape = None
            if column.windows is not None:
                shape, parts = self._shape(column, parts)
            sql = expression.child().sql() if _class(expression) == "Alias" else expression.sql()
            keys.append(Key(str(sql), column, shape))
        self._grouped[number] = parts
        names = self._names(parts)
        described = tuple(self._call(call, names) for call in parts.calls)
        return Aggregation(tuple(keys), described)

    def _names(self, parts: GroupedParts) -> dict[int, str]:
        """What the program calls an aggregate, by the id of its result."""
        names = {}
        for result in parts.results:
            if _class(result) == "Alias" and _class(result.child()) == "AttributeReference":
                names[int(result.child().exprId().id())] = str(result.name())
        return names

    def _call(self, call: Any, names: dict[int, str]) -> Call:
        if _class(call) != "AggregateExpression":
            # An aggregate function of the user's in Python.
            return Call(_class(call), str(call.sql()), "", (), ())
        function = call.aggregateFunction()
        kind = _class(function)
        inputs = self._list(function.children())
        options: list[tuple[str, object]] = []
        if kind in ("First", "Last"):
            options.append(("ignore_nulls", bool(function.ignoreNulls())))
        if kind == "HyperLogLogPlusPlus":
            options.append(("relative_sd", float(function.relativeSD())))
        condition = call.filter()
        return Call(
            kind,
            str(call.sql()),
            names.get(int(call.resultAttribute().exprId().id()), ""),
            tuple(str(each.sql()) for each in inputs),
            tuple(str(each.dataType().catalogString()) for each in inputs),
            bool(call.isDistinct()),
            None if condition.isEmpty() else str(condition.get().sql()),
            tuple(options),
        )

    def _shape(
        self, column: Attribute, parts: GroupedParts
    ) -> tuple[Windows | Session | None, GroupedParts]:
        """The windows that the plan assigns right below an aggregation, if it does."""
        struct, levels = self._assigned(column, parts.child)
        if struct is None or self._is_used(column, parts):
            return None, parts
        fields = self._list(struct.children())
        start, end = _unwrapped(fields[1]), _unwrapped(fields[3])
        if column.windows == SESSION:
            shape: Windows | Session | None = self._session(end)
            time = _unwrapped(start)
        else:
            shape = _windows(end)
            time = None if shape is None else _window_time(start)
        if shape is None or str(time.dataType().catalogString()) != "timestamp":
            return None, parts
        found = GroupedParts(parts.grouping, parts.calls, parts.results, parts.child, time, levels)
        return shape, found

    def _is_used(self, column: Attribute, parts: GroupedParts) -> bool:
        """Whether something that is computed before the aggregation needs a column of windows."""
        others = [each for each in parts.grouping if int(each.exprId().id()) != column.id]
        used = [
            ref for each in (*parts.calls, *others) for ref in self._list(each.references().toSeq())
        ]
        return any(int(ref.exprId().id()) == column.id for ref in used)

    def _assigned(self, column: Attribute, plan: Any) -> tuple[Any, int]:
        """The expression of a column of windows, and how many nodes add it to the plan."""
        kind = _class(plan)
        if kind == "Filter" and _class(plan.child()) in ("Project", "Expand"):
            struct, levels = self._assigned(column, plan.child())
            return struct, levels + 1
        if kind == "Project":
            for each in self._list(plan.projectList()):
                is_column = int(each.exprId().id()) == column.id
                if is_column and _class(each) == "Alias" and _is_struct(each.child()):
                    return each.child(), 1
        if kind == "Expand":
            at = [int(a.exprId().id()) for a in self._list(plan.output())].index(column.id)
            struct = self._list(self._list(plan.projections())[0])[at]
            if _is_struct(struct):
                return struct, 1
        return None, 0

    def _joining(self, plan: Any) -> Joining:
        condition = plan.condition()
        parsed = None if condition.isEmpty() else self._expression(condition.get())
        return Joining(str(plan.joinType().toString()), parsed)

    def _expression(self, expression: Any) -> Expression:
        kind = _class(expression)
        attribute = int(expression.exprId().id()) if kind == "AttributeReference" else None
        described = Expression(
            kind,
            str(expression.sql()),
            tuple(self._expression(child) for child in self._list(expression.children())),
            attribute,
            self._interval(expression) if kind == "Literal" else None,
        )
        self._expressions[described] = expression
        return described

    def _interval(self, literal: Any) -> int | None:
        """The microseconds of a literal interval without months."""
        kind = str(literal.dataType().typeName())
        if not kind.startswith("interval") or "year" in kind or "month" in kind:
            return None
        return self._microseconds(literal)

    def _microseconds(self, constant: Any) -> int | None:
        """The length of a constant interval; None if it varies, or is NULL."""
        zone = str(self._spark.conf.get("spark.sql.session.timeZone"))
        us = self._package.PlanCuts.microseconds(constant.eval(None), zone in _FIXED_DAYS)
        return None if us is None else int(us)

    def _session(self, end: Any) -> Session | None:
        """The gap from the expression of a session's end: time + gap."""
        while _class(end) == "Cast":
            end = end.child()
        if _class(end) not in ("TimestampAddInterval", "TimeAdd"):
            return None
        gap = end.interval()
        us = self._microseconds(gap) if gap.foldable() else None
        return Session(us if us is not None and us > 0 else None)


def _class(java: Any) -> str:
    return str(java.getClass().getSimpleName())


def _is_struct(expression: Any) -> bool:
    return _class(expression) == "CreateNamedStruct"


def _unwrapped(expression: Any) -> Any:
    """Without conversions between times and numbers, and without marks."""
    while _class(expression) in ("KnownNullable", "PreciseTimestampConversion"):
        expression = expression.child()
    return expression


def _descend(expression: Any) -> Iterator[Any]:
    """Down the left side of additions and subtractions."""
    while _class(expression) in ("Add", "Subtract"):
        yield expression
        expression = expression.left()


def _windows(end: Any) -> Windows | None:
    """Sizes from the expression of a window's end: ((time - remainder) - i * slide) + size."""
    steps = list(_descend(end))
    if [_class(step) for step in steps] != ["Add", "Subtract", "Subtract"]:
        return None
    remainder = _remainder(steps[2].right())
    if remainder is None or _class(steps[0].right()) != "Literal":
        return None
    since = remainder.left()
    if _class(since) != "Subtract":
        return None
    literals = [steps[0].right(), remainder.right(), since.right()]
    if any(_class(literal) != "Literal" for literal in literals):
        return None
    size, slide, offset = (int(literal.value()) for literal in literals)
    return Windows(size, slide, offset)


def _remainder(expression: Any) -> Any:
    """The remainder of a time by the slide, where a negative one is made positive."""
    if _class(expression) != "CaseWhen" or expression.elseValue().isEmpty():
        return None
    found = expression.elseValue().get()
    return found if _class(found) == "Remainder" else None


def _window_time(start: Any) -> Any:
    """The time in the expression of a window's start."""
    *_, last = _descend(start)
    return _unwrapped(last.left())
