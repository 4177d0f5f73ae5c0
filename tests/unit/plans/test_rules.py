"""Which stateful nodes run on which operators, decided without Spark."""

from __future__ import annotations

import dataclasses

import pytest

from millrace.plans.aggregates import Function, Unsupported, function_of
from millrace.plans.describing import describe
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
from millrace.plans.rules import (
    AggregatePlan,
    DedupPlan,
    JoinPlan,
    ProcessorPlan,
    SessionPlan,
    WindowPlan,
    cut,
)

PAGE = Attribute(1, "page", "string")
AT = Attribute(2, "at", "timestamp", 600_000)
OPENED = Attribute(3, "window", "struct<start:timestamp,end:timestamp>", 600_000, WINDOW)
VISITED = dataclasses.replace(OPENED, id=4, name="session_window", windows=SESSION)
COUNT = Call("Count", "count(1)", "n", ("1",), ("int",))
MINUTES = Windows(60_000_000, 60_000_000, 0)


def source(*output: Attribute, streaming: bool = True) -> Node:
    return Node(9, "StreamingRelation", streaming, output)


def aggregate(*keys: Key, calls: tuple[Call, ...] = (COUNT,), below: Node | None = None) -> Node:
    child = below or source(PAGE, AT)
    output = tuple(key.column for key in keys)
    return Node(1, "Aggregate", True, output, (child,), Aggregation(keys, calls))


def stateful(kind: str, detail: Detail | None, *children: Node, number: int = 1) -> Node:
    output = tuple(a for child in children for a in child.output)
    return Node(number, kind, True, output, children, detail)


def plan_of(node: Node, mode: str = "append") -> object:
    (decision,) = cut(node, mode).decisions
    return decision.plan


def reason_of(node: Node, mode: str = "append") -> str:
    found = cut(node, mode)
    assert found.reason is not None
    assert "Runs on Spark's own engine" in describe(found)
    return found.reason


def test_keys_without_event_time_are_kept_forever() -> None:
    counted = Function("count", inputs=0)
    node = aggregate(Key("page", PAGE))
    assert plan_of(node, "update") == AggregatePlan((counted,), emits_all=False)
    assert plan_of(node, "complete") == AggregatePlan((counted,), emits_all=True)
    assert cut(node, "update").waits_for_watermark
    assert not cut(node, "complete").waits_for_watermark


@pytest.mark.parametrize(("mode", "emit"), [("append", "final"), ("update", "update")])
def test_windows_are_assigned_by_the_operator_if_their_shape_is_known(mode: str, emit: str) -> None:
    counted = (Function("count", inputs=0),)
    known = aggregate(Key("window", OPENED, MINUTES), Key("page", PAGE))
    assert plan_of(known, mode) == WindowPlan(counted, 0, MINUTES, emit)
    unknown = aggregate(Key("page", PAGE), Key("w", OPENED))
    assert plan_of(unknown, mode) == WindowPlan(counted, 1, None, emit)
    assert plan_of(aggregate(Key("at", AT)), mode) == WindowPlan(counted, 0, None, emit)


def test_complete_mode_keeps_windows_like_any_key() -> None:
    assert isinstance(plan_of(aggregate(Key("window", OPENED, MINUTES)), "complete"), AggregatePlan)


def test_sessions_need_a_constant_gap_and_a_key() -> None:
    keys = Key("session", VISITED, Session(5_000_000)), Key("page", PAGE)
    found = plan_of(aggregate(*keys))
    assert found == SessionPlan((Function("count", inputs=0),), 0, 5_000_000)
    varying = dataclasses.replace(keys[0], shape=Session(None))
    assert "computed for every row" in reason_of(aggregate(varying, keys[1]))
    elsewhere = dataclasses.replace(keys[0], shape=None)
    assert "right below" in reason_of(aggregate(elsewhere, keys[1]))
    assert "complete" in reason_of(aggregate(*keys), "complete")
    assert "without a key" in reason_of(aggregate(keys[0]))


def test_an_aggregation_that_has_no_operator_says_why() -> None:
    assert "without groupBy" in reason_of(aggregate(), "update")
    both = aggregate(Key("at", AT), Key("window", OPENED))
    assert "several grouping columns" in reason_of(both)
    percentile = Call("ApproximatePercentile", "approx_percentile(ms, 0.5)", "", ("ms",), ("int",))
    reason = reason_of(aggregate(Key("page", PAGE), calls=(COUNT, percentile)), "update")
    assert "approx_percentile(ms, 0.5)" in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call("Sum", "sum(ms)", "", ("ms",), ("bigint",)), Function("sum")),
        (Call("Count", "count(ms)", "", ("ms",), ("bigint",)), Function("count")),
        (Call("Min", "min(ok)", "", ("ok",), ("boolean",)), Function("bool_and")),
        (Call("Max", "max(ok)", "", ("ok",), ("boolean",)), Function("bool_or")),
        (Call("Max", "max(ms)", "", ("ms",), ("bigint",)), Function("max")),
        (
            Call("StddevPop", "stddev_pop(ms)", "", ("ms",), ("double",)),
            Function("stddev", (("sample", False),)),
        ),
        (
            Call("CovSample", "covar_samp(x, y)", "", ("x", "y"), ("double", "double")),
            Function("covar", (("sample", True),), 2),
        ),
        (
            Call("Last", "last(x)", "", ("x",), ("int",), options=(("ignore_nulls", True),)),
            Function("last", (("ignore_nulls", True),)),
        ),
        (
            Call("Count", "count(1)", "", ("1",), ("int",), filter="ok"),
            Function("count", inputs=1),
        ),
        (
            Call(
                "HyperLogLogPlusPlus",
                "approx_count_distinct(x)",
                "",
                ("x",),
                ("int",),
                options=(("relative_sd", 0.002),),
            ),
            Function("approx_distinct", (("lg_k", 19),)),
        ),
    ],
)
def test_functions(call: Call, expected: Function) -> None:
    assert function_of(call) == expected


def test_functions_that_are_refused() -> None:
    plain = Call("First", "first(x)", "", ("x",), ("int",), filter="ok")
    assert isinstance(function_of(plain), Unsupported)
    assert isinstance(function_of(dataclasses.replace(COUNT, is_distinct=True)), Unsupported)
    several = dataclasses.replace(COUNT, inputs=("a", "b"))
    assert isinstance(function_of(several), Unsupported)


def test_duplicates_are_forgotten_by_event_time_if_the_key_has_it() -> None:
    def plan(*keys: Attribute, within: bool = False) -> object:
        detail = Deduplication(keys, within)
        return plan_of(stateful("Deduplicate", detail, source(PAGE, AT)))

    assert plan(PAGE) == DedupPlan((PAGE,), None, 0)
    assert plan(PAGE, AT) == DedupPlan((PAGE, AT), AT, 0)
    assert plan(PAGE, within=True) == DedupPlan((PAGE,), AT, 600_000)


AD = Attribute(11, "ad", "string")
VISITS = source(PAGE, AT)
CLICKED = source(AD, Attribute(12, "shown", "timestamp", 1000))


def compare(kind: str, left: int, right: int) -> Expression:
    sides = [Expression("AttributeReference", f"c{n}", attribute=n) for n in (left, right)]
    return Expression(kind, f"c{left} {kind} c{right}", tuple(sides))


def both(*parts: Expression) -> Expression:
    first, *others = parts
    for other in others:
        first = Expression("And", f"{first.sql} AND {other.sql}", (first, other))
    return first


SAME = compare("EqualTo", 1, 11)
LATER, EARLIER = compare("GreaterThanOrEqual", 12, 2), compare("LessThanOrEqual", 12, 2)


def joined(how: str, *parts: Expression, left: Node = VISITS, right: Node = CLICKED) -> Node:
    return stateful("Join", Joining(how, both(*parts)), left, right)


def test_joins_by_how_much_their_condition_says() -> None:
    found = plan_of(joined("LeftOuter", SAME, LATER, EARLIER))
    assert isinstance(found, JoinPlan)
    assert (found.how, found.is_bounded) == ("left", True)
    unbounded = joined("Inner", SAME, left=source(PAGE), right=source(AD))
    plan = plan_of(unbounded)
    assert isinstance(plan, JoinPlan)
    assert plan.times == (None, None)
    assert not cut(unbounded, "append").waits_for_watermark


def test_joins_that_have_no_operator_say_why() -> None:
    assert "no equality" in reason_of(joined("Inner", LATER))
    assert "LeftAnti" in reason_of(joined("LeftAnti", SAME, LATER))
    assert "not compared" in reason_of(joined("FullOuter", SAME))
    assert "with watermarks" in reason_of(joined("Inner", SAME))
    more = compare("GreaterThan", 1, 11)
    assert "further condition" in reason_of(joined("RightOuter", SAME, LATER, more))
    assert isinstance(plan_of(joined("Inner", SAME, LATER, more)), JoinPlan)


def test_a_stream_with_a_table_is_no_stateful_join() -> None:
    table = source(AD, streaming=False)
    node = stateful("Join", Joining("Inner", SAME), source(PAGE, AT), table)
    assert cut(node, "append").decisions == ()


def test_an_open_join_in_front_of_another_stateful_node_is_refused() -> None:
    half_open = dataclasses.replace(joined("Inner", SAME, LATER), number=5)
    above = aggregate(Key("at", AT), below=half_open)
    assert "bounds of time are open" in reason_of(above)
    bounded = dataclasses.replace(joined("Inner", SAME, LATER, EARLIER), number=5)
    assert cut(aggregate(Key("at", AT), below=bounded), "append").reason is None


def test_processors_need_columns_as_keys() -> None:
    def node(*output: Attribute, initial: bool = False) -> Node:
        detail = Processing(1, "EventTime", "Append", False, initial)
        return stateful("TransformWithStateInPySpark", detail, source(*output))

    found = plan_of(node(PAGE, PAGE, AT))
    assert isinstance(found, ProcessorPlan)
    assert found.time == AT
    computed = dataclasses.replace(PAGE, id=77)
    assert "expressions" in reason_of(node(computed, PAGE, AT))
    assert "same name" in reason_of(node(PAGE, PAGE, computed))
    assert "initial state" in reason_of(node(PAGE, PAGE, AT, initial=True))


@pytest.mark.parametrize(
    "kind",
    ["GlobalLimit", "FlatMapGroupsInPandasWithState", "UpdateEventTimeWatermarkColumn", "Except"],
)
def test_other_stateful_nodes_have_no_operator(kind: str) -> None:
    assert "no operator" in reason_of(stateful(kind, None, source(PAGE)))


@pytest.mark.parametrize("time_mode", ["None", "EventTime", "ProcessingTime"])
def test_processors_run_once_more_when_the_watermark_has_moved(time_mode: str) -> None:
    detail = Processing(1, time_mode, "Update", False)
    found = cut(stateful("TransformWithStateInPySpark", detail, source(PAGE, PAGE, AT)), "update")
    assert found.waits_for_watermark
    assert found.always_runs == (time_mode == "ProcessingTime")


def test_a_watermark_behind_a_stateful_node_is_refused() -> None:
    below = dataclasses.replace(aggregate(Key("page", PAGE)), number=5)
    assert "withWatermark" in reason_of(stateful("EventTimeWatermark", None, below), "update")
    plain = stateful("EventTimeWatermark", None, source(PAGE, AT))
    assert cut(plain, "append").decisions == ()


def test_names_follow_the_way_of_the_rows() -> None:
    first = stateful("Deduplicate", Deduplication((PAGE,), False), source(PAGE, AT), number=5)
    node = aggregate(Key("at", AT), below=first)
    assert [d.name for d in cut(node, "append").decisions] == ["window-2", "drop-duplicates-1"]
    assert cut(node, "append").of(first) is not None
    text = describe(cut(node, "append"))
    assert text.startswith("Runs on Millrace, in append mode: 2 operators.")
    assert "drop-duplicates-1: drop_duplicates(), keys are remembered forever" in text
    assert "StreamingRelation  -> Spark" in text


def test_a_plan_without_state_has_nothing_to_run() -> None:
    assert cut(source(PAGE), "append").reason is not None


def limited(below: Node, number: int = 2) -> Node:
    local = stateful("LocalLimit", None, below, number=number + 1)
    return stateful("GlobalLimit", None, local, number=number)


def test_a_limit_of_what_complete_mode_emits_keeps_no_state() -> None:
    counted = dataclasses.replace(aggregate(Key("page", PAGE)), number=5)
    found = cut(limited(counted), "complete")
    assert found.reason is None
    assert [decision.name for decision in found.decisions] == ["aggregate-1"]
    above = dataclasses.replace(aggregate(Key("page", PAGE), below=limited(source(PAGE))), number=5)
    assert "limit" in reason_of(above, "complete")


def test_a_reason_names_each_node_that_has_no_operator() -> None:
    gap = Key("session", VISITED, Session(None))
    sessions = dataclasses.replace(aggregate(gap, Key("page", PAGE)), number=5)
    assert reason_of(limited(sessions)) == (
        "limit-2: there is no operator for limit. "
        "session-1: the gap of the sessions is computed for every row."
    )
    text = describe(cut(sessions, "append"))
    assert "session-1, no operator: the gap" in text
