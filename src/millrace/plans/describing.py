"""A cut as text: what `mr.explain` prints."""

from __future__ import annotations

from millrace.plans.aggregates import Unsupported
from millrace.plans.conditions import FOREVER_US
from millrace.plans.rules import (
    AggregatePlan,
    Cut,
    Decision,
    DedupPlan,
    JoinPlan,
    Plan,
    ProcessorPlan,
    SessionPlan,
    WindowPlan,
)


def describe(cut: Cut) -> str:
    """Which node of a plan runs on which operator, what stays Spark's, and why."""
    lines = [_verdict(cut), ""]
    stack = [(cut.root, 0)]
    while stack:
        node, depth = stack.pop()
        decision = cut.of(node)
        lines.append(f"{'  ' * depth}{_line(node.sql or node.kind, decision, node.is_streaming)}")
        stack += [(child, depth + 1) for child in reversed(node.children)]
    return "\n".join(lines)


def _verdict(cut: Cut) -> str:
    reason = cut.reason
    if reason is None:
        number = len(cut.decisions)
        return f"Runs on Millrace, in {cut.mode} mode: {number} operator{'s' * (number != 1)}."
    return f"Runs on Spark's own engine: {reason}"


def _line(node: str, decision: Decision | None, is_streaming: bool) -> str:
    text = node if len(node) <= 100 else f"{node[:97]}..."
    if decision is None:
        return f"{text}  -> Spark" if is_streaming else f"{text}  -> Spark, once per batch"
    if isinstance(decision.plan, Unsupported):
        return f"{text}  -> {decision.name}, no operator: {decision.plan.reason}"
    return f"{text}  -> {decision.name}: {_operator(decision.plan)}"


def _operator(plan: Plan) -> str:
    if isinstance(plan, AggregatePlan):
        emits = "emits all keys" if plan.emits_all else "emits the keys that changed"
        return f"aggregate({_functions(plan)}), {emits}"
    if isinstance(plan, WindowPlan):
        if plan.windows is None:
            over = "the time that it is grouped by"
        else:
            over = f"windows of {_span(plan.windows.size_us)}"
            if plan.windows.slide_us != plan.windows.size_us:
                over += f" every {_span(plan.windows.slide_us)}"
        return f"window({_functions(plan)}) over {over}, emit={plan.emit!r}"
    if isinstance(plan, SessionPlan):
        return f"session({_functions(plan)}) with a gap of {_span(plan.gap_us)}"
    if isinstance(plan, DedupPlan):
        kept = "forever" if plan.time is None else f"until the watermark passes {plan.time.name!r}"
        if plan.delay_ms:
            kept += f" by {_span(1000 * plan.delay_ms)}"
        return f"drop_duplicates(), keys are remembered {kept}"
    if isinstance(plan, ProcessorPlan):
        return f"the processor, with time mode {plan.processing.time_mode}"
    return _join(plan)


def _join(plan: JoinPlan) -> str:
    condition = plan.condition
    if condition.times is None:
        return f"{plan.how} join, rows are kept forever"
    bounds = (
        "any time before" if condition.lower_us <= -FOREVER_US else _span(condition.lower_us),
        "any time after" if condition.upper_us >= FOREVER_US else _span(condition.upper_us),
    )
    return f"{plan.how} join, right less left from {bounds[0]} to {bounds[1]}"


def _functions(plan: AggregatePlan | WindowPlan | SessionPlan) -> str:
    return ", ".join(function.name for function in plan.functions)


_UNITS = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1000),
    ("microsecond", 1),
)


def _span(us: int) -> str:
    """A length of time in the largest unit that divides it."""
    for unit, size in _UNITS:
        if us % size == 0 and (us or unit == "second"):
            number = us // size
            return f"{number} {unit}{'s' * (number != 1)}"
    return f"{us} microseconds"
