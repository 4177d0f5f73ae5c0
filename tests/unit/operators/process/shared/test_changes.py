"""Shared states of a processor that changed, over what the old one wrote."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.registry import check_change
from millrace.reading.description import Description
from millrace.testing import Harness


def harness(**states: Any) -> Harness:
    def process(self: Any, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        if hasattr(type(self), "seen"):
            self.seen.set(self.seen.get() + 1)
        if hasattr(type(self), "rules"):
            yield (key.k, repr(self.rules.items()))

    for name, state in states.items():
        state.name = name
    cls = type("Changing", (mr.Processor,), {"process": process, **states})
    return Harness(cls(), key="k", schema="k long", output="k long, what string")


def carry_on(old: Harness, **states: Any) -> Harness:
    new = harness(**states)
    check_change(OperatorName("tested"), old._operator.spec(), new._operator.spec())
    new._shards.journal = old._shards.journal
    new._shards.restart()
    return new


def test_values_may_get_wider_and_task_state_may_come() -> None:
    old = harness(rules=mr.Broadcast("long", "struct<a:int>"))
    old.send([{"k": 1}], broadcast={"rules": {1: {"a": 5}}})
    new = carry_on(
        old,
        rules=mr.Broadcast("long", "struct<a:long,b:string>"),
        seen=mr.TaskState("long", split="divide", merge=sum, default=0),
    )
    ((_, what),) = new.send([{"k": 1}], broadcast={"rules": {2: {"a": 2**40, "b": "x"}}})
    assert sorted(eval(what)) == [(1, {"a": 5, "b": None}), (2, {"a": 2**40, "b": "x"})]
    assert [row["value"] for row in new.state("seen")] == [1]
    described = Description(OperatorName("tested"), new._operator.spec())
    assert described.tables == new._operator.tables


RULES = mr.Broadcast("long", "long")
SEEN = mr.TaskState("long", split="copy", merge=sum)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({}, {"rules": RULES}, "the new broadcast state 'rules'"),
        ({"rules": RULES}, {}, "no longer has the broadcast state 'rules'"),
        ({"rules": RULES}, {"rules": mr.Map("long", "long")}, "was a broadcast and is now a map"),
        ({"rules": RULES}, {"rules": mr.Broadcast("int", "long")}, "was of type bigint"),
        ({"rules": mr.Broadcast("int", "long")}, {"rules": RULES}, "was of type int"),
        ({"rules": RULES}, {"rules": mr.Broadcast("long", "int")}, "is now of type int"),
        ({"seen": SEEN}, {}, "no longer has the task state 'seen'"),
        ({"seen": SEEN}, {"seen": mr.Value("long")}, "was a task and is now a value"),
        (
            {"seen": SEEN},
            {"seen": mr.TaskState("string", split="copy", merge=min)},
            "is now of type string",
        ),
    ],
)
def test_other_changes_are_refused(before: Any, after: Any, named: str) -> None:
    with pytest.raises(SchemaChangedError) as caught:
        carry_on(harness(**before), **after)
    assert named in str(caught.value)
    assert "checkpointLocation" in str(caught.value)
