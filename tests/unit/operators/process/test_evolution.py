"""A processor that changed, over state that the old one wrote."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pytest

import millrace as mr
from millrace.errors import SchemaChangedError, UsageError
from millrace.ids import OperatorName
from millrace.operators.registry import check_change, from_spec
from millrace.reading.description import Description
from millrace.testing import Harness

D = decimal.Decimal
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def processor(**states: Any) -> Any:
    """A processor with these states; `action` is what it does."""

    def process(self: Any, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        type(self).action(self, ctx)

    def on_timer(self: Any, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        return None

    cls = type("Evolving", (mr.Processor,), {"process": process, "on_timer": on_timer, **states})
    for name, state in states.items():
        state.name = name
    return cls()


def harness(evolving: Any, key: str = "k", schema: str = "k long, j string") -> Harness:
    return Harness(evolving, key=key, schema=schema, output="n long")


def check(old: Any, new: Any) -> None:
    specs = [harness(p)._operator.spec() for p in (old, new)]
    check_change(OperatorName("visits"), *specs)


def carry_on(old: Harness, evolving: Any) -> Harness:
    """The changed processor over the old one's location."""
    new = harness(evolving)
    check_change(OperatorName("tested"), old._operator.spec(), new._operator.spec())
    new._shards.journal = old._shards.journal
    new._shards.restart()
    new._time_us = old._time_us
    return new


VALUES: list[tuple[str, Any, str, Any]] = [
    ("byte", 5, "long", 5),
    ("int", -5, "double", -5.0),
    ("float", 0.5, "double", 0.5),
    ("decimal(5,2)", D("1.25"), "decimal(10,4)", D("1.2500")),
    ("struct<a:int>", {"a": 1}, "struct<a:int,b:string>", {"a": 1, "b": None}),
    ("struct<a:int>", {"a": 1}, "struct<b:string,a:long>", {"b": None, "a": 1}),
    (
        "array<struct<a:int>>",
        [{"a": 1}, None],
        "array<struct<a:long,b:array<int>>>",
        [{"a": 1, "b": None}, None],
    ),
    (
        "map<string,struct<a:struct<x:int>>>",
        {"k": {"a": {"x": 1}}, "n": None},
        "map<string,struct<a:struct<x:long,y:map<string,int>>,z:date>>",
        {"k": {"a": {"x": 1, "y": None}, "z": None}, "n": None},
    ),
    ("struct<a:struct<x:int>>", {"a": None}, "struct<a:struct<x:int,y:int>>", {"a": None}),
]


@pytest.mark.parametrize(("old_type", "value", "new_type", "reads"), VALUES)
def test_a_wider_type_reads_what_the_old_one_wrote(
    old_type: str, value: Any, new_type: str, reads: Any
) -> None:
    old = processor(v=mr.Value(old_type), m=mr.Map("string", old_type), xs=mr.List(old_type))

    def fill(self: Any, ctx: Any) -> None:
        self.v.set(value)
        self.m["a"] = value
        self.xs.extend([value, None])

    type(old).action = fill
    before = harness(old)
    before.send([{"k": k} for k in range(20)])
    before.send([{"k": k} for k in range(5)])
    new = processor(v=mr.Value(new_type), m=mr.Map("string", new_type), xs=mr.List(new_type))
    seen: list[Any] = []

    def look(self: Any, ctx: Any) -> None:
        seen.append((self.v.get(), self.m["a"], self.xs[0], self.xs[1]))
        self.m["b"] = reads
        self.v.set(self.v.get())

    type(new).action = look
    after = carry_on(before, new)
    after.send([{"k": k} for k in range(3)])
    after.reopen()
    after.send([{"k": k} for k in range(20)])
    assert seen == [(reads, reads, reads, None)] * 23
    assert all(row["v"] == reads for row in after.state())
    assert len(after.state("m")) == 40


def test_added_states_start_from_empty() -> None:
    old = processor(n=mr.Value("long"))
    type(old).action = lambda self, ctx: self.n.set(1)
    before = harness(old)
    before.send([{"k": k} for k in range(10)])
    new = processor(
        first=mr.Map("long", "long"),
        n=mr.Value("long", ttl="1 minute"),
        text=mr.Value("string", default="none"),
        xs=mr.List("long", ttl="1 minute"),
        tags=mr.Set("long"),
        alarm=mr.EventTimeTimer(),
    )
    seen: list[Any] = []

    def action(self: Any, ctx: Any) -> None:
        seen.append((self.n.get(), self.text.get(), len(self.xs), len(self.tags), len(self.first)))
        self.xs.append(1)
        self.first[1] = 1
        self.alarm.set(NOON)

    type(new).action = action
    after = carry_on(before, new)
    after.advance_time(mr.minutes(2))
    after.send([{"k": k} for k in range(10)])
    # What was written without a TTL has none until it is written again.
    assert seen == [(1, "none", 0, 0, 0)] * 10
    after.send([{"k": k} for k in range(10)])
    assert seen[10:] == [(1, "none", 1, 0, 1)] * 10


REFUSED: list[tuple[Any, Any, str]] = [
    (mr.Value("long"), None, "no longer has the value state 's'"),
    (mr.Value("long"), mr.Value("int"), "was of type bigint and is now of type int"),
    (mr.Value("long"), mr.Value("double"), "bigint"),
    (mr.Value("string"), mr.Value("long"), "string"),
    (mr.Value("int"), mr.Value("string"), "int"),
    (mr.Value("long"), mr.Reducing("long", max), "was a value and is now a reducing"),
    (mr.Map("long", "long"), mr.Map("string", "long"), "bigint"),
    (mr.Map("int", "long"), mr.Map("long", "long"), "int"),
    (mr.Map("string", "long"), mr.Map("string", "int"), "bigint"),
    (mr.Set("int"), mr.Set("long"), "int"),
    (mr.List("double"), mr.List("float"), "double"),
    (mr.Set("long"), mr.List("long"), "was a set and is now a list"),
    (mr.EventTimeTimer(), mr.ProcessingTimeTimer(), "event-time timer"),
    (mr.EventTimeTimer(), None, "no longer"),
    (mr.Value("struct<a:int,b:int>"), mr.Value("struct<a:int>"), "struct<a:int,b:int>"),
    (mr.Value("struct<a:int>"), mr.Value("struct<a:int,b:int not null>"), "struct<a:int>"),
    (mr.Value("struct<a:long>"), mr.Value("struct<a:int>"), "struct<a:bigint>"),
    (mr.Value("map<int,long>"), mr.Value("map<long,long>"), "map<int,bigint>"),
    (mr.Value("decimal(10,2)"), mr.Value("decimal(10,4)"), "decimal(10,2)"),
    (mr.Value("timestamp"), mr.Value("timestamp_ntz"), "timestamp"),
    (
        mr.Value("long", ttl="1 day"),
        mr.Value("long", ttl="1 day", ttl_time="event"),
        "TTL in processing time",
    ),
]


@pytest.mark.parametrize(("old", "new", "named"), REFUSED)
def test_anything_else_is_refused_with_the_difference(old: Any, new: Any, named: str) -> None:
    with pytest.raises(SchemaChangedError) as caught:
        check(processor(s=old), processor(**({} if new is None else {"s": new})))
    message = str(caught.value)
    assert named in message
    assert "'s'" in message
    assert "'visits'" in message
    assert "checkpointLocation" in message


def test_another_key_is_refused() -> None:
    one = harness(processor(s=mr.Value("long")))._operator.spec()
    for key, schema in (("j", "k long, j string"), ("k", "k string, j string")):
        other = harness(processor(s=mr.Value("long")), key, schema)._operator.spec()
        with pytest.raises(SchemaChangedError, match=r"was \(k bigint\) and is now \("):
            check_change(OperatorName("visits"), one, other)


def test_a_ttl_and_the_code_may_change() -> None:
    check(processor(s=mr.Value("long")), processor(s=mr.Value("long", ttl="1 day")))
    check(processor(s=mr.Value("long", ttl="1 day")), processor(s=mr.Value("long", ttl="2 days")))
    check(processor(s=mr.Reducing("long", max)), processor(s=mr.Reducing("long", min)))
    check(processor(s=mr.Value("long", default=1)), processor(s=mr.Value("long", default=2)))


def test_the_order_of_states_is_kept_in_the_location() -> None:
    evolving = processor(
        zebra=mr.Value("long"), m=mr.Map("long", "long"), apple=mr.Value("long"), b=mr.Pickled()
    )
    type(evolving).action = lambda self, ctx: self.zebra.set(1)
    tested = harness(evolving)
    tested.send([{"k": 1}])
    spec = tested._shards.journal.trail(tested._shards.trail.epoch).specs[OperatorName("tested")]
    described = Description(OperatorName("tested"), spec)
    main = described.tables[""].schema.names
    assert main == ["k", "zebra", "m.size", "apple", "b"]
    assert described.tables == tested._operator.tables
    shown = mr.open(tested.location).to_arrow(columns=["k", "zebra", "apple", "b"])
    assert shown.to_pylist() == [{"k": 1, "zebra": 1, "apple": None, "b": None}]


def test_a_processor_cannot_be_made_from_its_spec() -> None:
    tested = harness(processor(s=mr.Value("long")))
    with pytest.raises(UsageError, match=r"operator .visits. runs a processor.*Start the query"):
        from_spec(OperatorName("visits"), tested._operator.spec())
