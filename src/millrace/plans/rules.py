"""The rules: which stateful node of a streaming plan runs on which operator, and which on none.

A rule answers with a decision: an operator with everything that building it needs, or a reason in
one line. What lies between stateful nodes is stateless Spark and needs no rule. What Spark itself
refuses, such as append without a watermark, never comes here: Spark was asked first.

Invariant: a plan is taken only if every stateful node of it has an operator. Half of a plan cannot
run here and the other half on Spark, because a query has one set of offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.plans.aggregates import Function, Unsupported, function_of
from millrace.plans.conditions import FOREVER_US, Condition, take_apart
from millrace.plans.nodes import (
    SESSION,
    Aggregation,
    Attribute,
    Deduplication,
    Joining,
    Node,
    Processing,
    Session,
    Windows,
)

APPEND, UPDATE, COMPLETE = "append", "update", "complete"

DISTINCT = "Distinct"
_STATEFUL = {
    "Aggregate": "aggregate",
    DISTINCT: "aggregate",
    "Deduplicate": "drop-duplicates",
    "DeduplicateWithinWatermark": "drop-duplicates",
    "TransformWithStateInPySpark": "transform-with-state",
}
_WATERMARK = "EventTimeWatermark"
_OTHERS = {
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "TransformWithState": "transformWithState of Scala",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Tail": "tail",
    "Offset": "offset",
    "Except": "except",
    "UpdateEventTimeWatermarkColumn": "eventTimeColumnName of transformWithState",
    _WATERMARK: "withWatermark behind another stateful node",
}
"""Stateful nodes without an operator, by what people call them."""
_LIMITS = ("GlobalLimit", "LocalLimit")


@dataclass(frozen=True)
class AggregatePlan:
    """Values per key, kept forever; emits what changed, or everything."""

    functions: tuple[Function, ...]
    emits_all: bool


@dataclass(frozen=True)
class WindowPlan:
    """Values per key and window of event time."""

    functions: tuple[Function, ...]
    time_key: int
    """Which key has the windows, or the event time."""
    windows: Windows | None
    """The windows, if the operator assigns them; else Spark has, and a key is over when the
    watermark reaches its end."""
    emit: str


@dataclass(frozen=True)
class SessionPlan:
    """Values per key and session."""

    functions: tuple[Function, ...]
    time_key: int
    gap_us: int


@dataclass(frozen=True)
class DedupPlan:
    """The first row of each key. `time` is the column by which keys are forgotten, if any."""

    keys: tuple[Attribute, ...]
    time: Attribute | None
    delay_ms: int


@dataclass(frozen=True)
class JoinPlan:
    """Pairs of rows of two streams."""

    how: str
    condition: Condition
    times: tuple[Attribute | None, Attribute | None]
    """The event time of each stream; a stream without one is never late and never over."""

    @property
    def is_bounded(self) -> bool:
        """Whether rows of both streams are over at some time."""
        within = (self.condition.lower_us, self.condition.upper_us)
        return self.condition.times is not None and max(map(abs, within)) < FOREVER_US


@dataclass(frozen=True)
class ProcessorPlan:
    """A processor of Spark's own kind."""

    processing: Processing
    time: Attribute | None


Plan = AggregatePlan | WindowPlan | SessionPlan | DedupPlan | JoinPlan | ProcessorPlan


@dataclass(frozen=True)
class Decision:
    """What happens to a stateful node."""

    node: Node
    operator: str
    """The kind of operator, or what people call the node that has none."""
    name: str
    """Of the operator, in the location."""
    plan: Plan | Unsupported

    @property
    def is_taken(self) -> bool:
        return not isinstance(self.plan, Unsupported)


@dataclass(frozen=True)
class Cut:
    """All decisions about a plan, in the order of its nodes: parents first."""

    root: Node
    mode: str
    decisions: tuple[Decision, ...]

    @property
    def reason(self) -> str | None:
        """Why the plan cannot run here, of each node that has no operator; None if it can."""
        if not self.decisions:
            return "the query has no stateful node, so no state to keep."
        # A limit is two nodes, of which Spark makes one.
        reasons = {
            (decision.operator, decision.plan.reason): decision.name
            for decision in self.decisions
            if isinstance(decision.plan, Unsupported)
        }
        return " ".join(f"{name}: {why}" for (_, why), name in reasons.items()) or None

    def of(self, node: Node) -> Decision | None:
        """The decision about a node; None for stateless ones."""
        return next((d for d in self.decisions if d.node.number == node.number), None)

    @property
    def waits_for_watermark(self) -> bool:
        """Whether Spark would run a batch without rows when the watermark has moved."""
        return any(_waits(decision.plan) for decision in self.decisions)

    @property
    def always_runs(self) -> bool:
        """Whether Spark would run batches without rows all the time."""
        return any(
            isinstance(d.plan, ProcessorPlan)
            and d.plan.processing.time_mode.lower() == "processingtime"
            for d in self.decisions
        )


def cut(root: Node, mode: str) -> Cut:
    """Decide about every stateful node of a plan that Spark accepts in this output mode."""
    stateful = [node for node in root.walk() if is_stateful(node) and not _is_anew(node, mode)]
    decisions = []
    # Names follow the way of the rows, so that a node added at the end renames none.
    for number, node in enumerate(reversed(stateful), 1):
        kind, plan = _decide(node, mode)
        if isinstance(plan, JoinPlan) and not plan.is_bounded and _has_above(stateful, node):
            plan = Unsupported("a stateful node follows, and its bounds of time are open.")
        decisions.append(Decision(node, kind, f"{kind}-{number}", plan))
    return Cut(root, mode, tuple(reversed(decisions)))


def _has_above(stateful: Sequence[Node], node: Node) -> bool:
    return any(above is not node and node in list(above.walk()) for above in stateful)


def _is_anew(node: Node, mode: str) -> bool:
    """Whether a limit is one of each batch: complete mode emits all rows of an aggregation."""
    below = (each for each in node.walk() if each.is_streaming)
    return (
        mode == COMPLETE
        and node.kind in _LIMITS
        and any(each.kind in ("Aggregate", DISTINCT) for each in below)
    )


def is_stateful(node: Node) -> bool:
    """Whether Spark keeps state for a node of a streaming plan."""
    if not node.is_streaming:
        return False
    if node.kind == "Join":
        return all(child.is_streaming for child in node.children)
    if node.kind == _WATERMARK:
        # Behind an operator there is no source whose event times Spark could follow.
        return any(is_stateful(below) for below in node.walk() if below is not node)
    return node.kind in _STATEFUL or node.kind in _OTHERS


def _decide(node: Node, mode: str) -> tuple[str, Plan | Unsupported]:
    if node.kind in _OTHERS:
        what = _OTHERS[node.kind]
        return what, Unsupported(f"there is no operator for {what}.")
    detail = node.detail
    if isinstance(detail, Aggregation):
        return _decide_aggregation(detail, mode)
    if isinstance(detail, Deduplication):
        return "drop-duplicates", _decide_deduplication(detail, node.children[0])
    if isinstance(detail, Joining):
        return "join", _decide_join(detail, *node.children)
    if isinstance(detail, Processing):
        return "transform-with-state", _decide_processor(detail, node.children[0])
    return node.kind, Unsupported(f"there is no rule for {node.kind}.")


def _decide_aggregation(detail: Aggregation, mode: str) -> tuple[str, Plan | Unsupported]:
    functions = []
    for call in detail.calls:
        found = function_of(call)
        if isinstance(found, Unsupported):
            return "aggregate", found
        functions.append(found)
    if not detail.keys:
        return "aggregate", Unsupported("an aggregation without groupBy has one key, on one shard.")
    sessions = [i for i, key in enumerate(detail.keys) if key.column.windows == SESSION]
    if sessions:
        return "session", _decide_session(detail, mode, sessions[0], tuple(functions))
    timed = [i for i, key in enumerate(detail.keys) if key.column.delay_ms is not None]
    if mode == COMPLETE or not timed:
        # Complete keeps everything, and so does an aggregation that no watermark bounds.
        return "aggregate", AggregatePlan(tuple(functions), mode == COMPLETE)
    if len(timed) > 1:
        return "window", Unsupported("several grouping columns have a watermark.")
    shape = detail.keys[timed[0]].shape
    windows = shape if isinstance(shape, Windows) else None
    emit = "update" if mode == UPDATE else "final"
    return "window", WindowPlan(tuple(functions), timed[0], windows, emit)


def _decide_session(
    detail: Aggregation, mode: str, at: int, functions: tuple[Function, ...]
) -> Plan | Unsupported:
    shape = detail.keys[at].shape
    if mode == COMPLETE:
        return Unsupported("sessions are emitted when they are over; complete mode keeps them all.")
    if not isinstance(shape, Session):
        return Unsupported("the sessions are not computed right below their aggregation.")
    if shape.gap_us is None:
        return Unsupported("the gap of the sessions is computed for every row.")
    if len(detail.keys) < 2:
        return Unsupported("sessions without a key are on one shard.")
    return SessionPlan(functions, at, shape.gap_us)


def _decide_deduplication(detail: Deduplication, child: Node) -> Plan | Unsupported:
    if not detail.keys:
        return Unsupported("no columns to compare.")
    if detail.within_watermark:
        time = next((a for a in child.output if a.delay_ms is not None), None)
        if time is None or time.delay_ms is None:
            return Unsupported("dropDuplicatesWithinWatermark without a watermark.")
        return DedupPlan(detail.keys, time, time.delay_ms)
    # A key that has the event time is over when the watermark reaches that.
    timed = next((a for a in detail.keys if a.delay_ms is not None), None)
    return DedupPlan(detail.keys, timed, 0)


_HOWS = {
    "Inner": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
}


def _decide_join(detail: Joining, left: Node, right: Node) -> Plan | Unsupported:
    how = _HOWS.get(detail.how)
    if how is None:
        return Unsupported(f"there is no {detail.how} join of two streams here.")
    condition = take_apart(detail.condition, left.output, right.output)
    if not condition.keys:
        return Unsupported("the condition has no equality of columns of both streams.")
    if condition.rest and how != "inner":
        rest = " AND ".join(part.sql for part in condition.rest)
        return Unsupported(f"an outer or semi join with a further condition: {rest}.")
    if condition.times is not None:
        if condition.lower_us > condition.upper_us:
            return Unsupported("the bounds of time exclude every pair.")
        if max(abs(us) for us in (condition.lower_us, condition.upper_us)) > FOREVER_US:
            return Unsupported("the bounds of time are longer than a thousand years.")
        return JoinPlan(how, condition, condition.times)
    if how != "inner":
        return Unsupported("an outer or semi join whose event times are not compared.")
    if _event_time(left) is not None or _event_time(right) is not None:
        # Whether rows can be late depends on which columns Spark's optimiser keeps.
        return Unsupported("a join of streams with watermarks whose event times are not compared.")
    return JoinPlan(how, condition, (None, None))


def _decide_processor(detail: Processing, child: Node) -> Plan | Unsupported:
    if detail.has_initial_state:
        return Unsupported("it has an initial state; use mr.transform_with_state.")
    fields = child.output[detail.keys :]
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        return Unsupported("its rows have two columns of the same name.")
    keys = child.output[: detail.keys]
    if any(key.id not in [field.id for field in fields] for key in keys):
        return Unsupported("it is grouped by expressions; compute them with withColumn() first.")
    time = _event_time(child) if detail.time_mode.lower() == "eventtime" else None
    return ProcessorPlan(detail, time)


def _event_time(node: Node) -> Attribute | None:
    return next((a for a in node.output if a.delay_ms is not None), None)


def _waits(plan: Plan | Unsupported) -> bool:
    if isinstance(plan, AggregatePlan):
        return not plan.emits_all
    if isinstance(plan, JoinPlan):
        return plan.condition.is_bounded
    return not isinstance(plan, Unsupported)
