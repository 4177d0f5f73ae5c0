"""Broadcast state in a processor: what it sees, what is kept, and what is refused."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.errors import StateAccessError, StateTypeError, UnsupportedTypeError, UsageError
from millrace.operators.process.shared import broadcast
from millrace.testing import Harness, run

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


class Fraud(mr.Processor):
    rules = mr.Broadcast("string", "struct<limit:double,tags:array<string>>")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        rule = self.rules.get(key.k)
        yield (key.k, None if rule is None else rule["limit"])


def harness(processor: Any, shards: int = 1, output: str = "k string, limit double") -> Harness:
    return Harness(processor, key="k", schema="k string, x long", output=output, shards=shards)


def rule(limit: float, *tags: str) -> dict[str, Any]:
    return {"limit": limit, "tags": list(tags)}


def keys(text: str) -> list[dict[str, Any]]:
    return [{"k": k, "x": i} for i, k in enumerate(text)]


def test_run_takes_broadcast_rows() -> None:
    emitted = run(
        Fraud(),
        keys("ab"),
        key="k",
        schema="k string, x long",
        output="k string, limit double",
        broadcast={"rules": {"a": rule(1.0)}},
        shards=3,
    )
    assert sorted(emitted, key=str) == [("a", 1.0), ("b", None)]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("small", [0, 4096])
def test_rows_are_upserted_before_the_keyed_rows(
    shards: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "SMALL", small)
    tested = harness(Fraud(), shards)
    first = {"a": rule(1.0, "x"), "b": rule(2.0)}
    assert dict(tested.send(keys("abc"), broadcast={"rules": first})) == {
        "a": 1.0,
        "b": 2.0,
        "c": None,
    }
    assert tested.send(broadcast={"rules": [("a", rule(5.0)), ("c", rule(3.0))]}) == []
    tested.reopen()
    tested.rescale(shards * 2)
    assert dict(tested.send(keys("abc"))) == {"a": 5.0, "b": 2.0, "c": 3.0}
    # The last row of a key counts; no value removes, also what never was.
    changes = [
        ("a", None),
        ("b", None),
        ("b", rule(7.0)),
        ("c", rule(8.0)),
        ("c", None),
        ("z", None),
    ]
    assert dict(tested.send(keys("abc"), broadcast={"rules": changes})) == {
        "a": None,
        "b": 7.0,
        "c": None,
    }
    assert tested.state("rules") == [{"key": "b", "value": rule(7.0)}]


class Looking(mr.Processor):
    """Shows what an action sees."""

    n = mr.Value("long")
    rules = mr.Broadcast("string", "struct<limit:double,tags:array<string>>")
    tick = mr.ProcessingTimeTimer()

    def __init__(self, action: Any) -> None:
        self.action = action

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.tick.set(ctx.processing_time + mr.seconds(1))
        yield (key.k, repr(self.action(self.rules)))

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        yield (key.k, repr(self.action(self.rules)))


def looking(action: Any) -> Harness:
    tested = harness(Looking(action), output="k string, what string")
    stored = {k: rule(float(i)) for i, k in enumerate("abcdefgh")}
    tested.send(broadcast={"rules": stored})
    return tested


def test_it_reads_like_a_map() -> None:
    def action(rules: Any) -> Any:
        with pytest.raises(KeyError, match="nope"):
            rules["nope"]
        assert rules["a"] == rules.get("a") == rule(10.0)
        assert "a" in rules
        assert "c" not in rules
        assert (rules.contains("b"), rules.contains("c")) == (True, False)
        assert (rules.get("c"), rules.get("c", 5)) == (None, 5)
        assert (len(rules), set(rules), set(rules.keys())) == (7, {*"abdefgh"}, {*"abdefgh"})
        assert dict(rules.items()) == dict(zip(rules, rules.values(), strict=True))
        assert rules.to_arrow().column_names == ["key", "value"]
        return list(rules)

    tested = looking(action)
    ((_, order),) = tested.send(keys("k"), broadcast={"rules": {"a": rule(10.0), "c": None}})
    # In a fixed order, which does not depend on which rows came in this epoch.
    assert tested.advance_time(mr.seconds(2)) == [("k", order)]
    tested.reopen()
    assert tested.send(keys("m")) == [("m", order)]


@pytest.mark.parametrize(
    "action",
    [
        lambda rules: rules.set("a", rule(1.0)),
        lambda rules: rules.update({"a": rule(1.0)}),
        lambda rules: rules.delete("a"),
        lambda rules: rules.clear(),
        lambda rules: rules.__setitem__("a", rule(1.0)),
        lambda rules: rules.__delitem__("a"),
        lambda rules: rules["a"].update(limit=2.0),
        lambda rules: rules["a"].pop("limit"),
        lambda rules: rules["a"].__setitem__("limit", 2.0),
        lambda rules: rules["a"]["tags"].append("x"),
        lambda rules: rules.get("a")["tags"].sort(),
        lambda rules: rules.values()[0].clear(),
    ],
)
def test_writing_is_refused_and_nothing_is_kept(action: Any) -> None:
    tested = looking(action)
    before = tested.state("rules")
    with pytest.raises(StateAccessError, match=r"read-only.*'tested', for key Key\(k='k'\)"):
        tested.send(keys("k"), broadcast={"rules": {"a": rule(3.0)}})
    assert tested.state("rules") == before


def test_values_can_be_copied_and_kept() -> None:
    class Keeping(mr.Processor):
        rules = mr.Broadcast("string", "struct<limit:double,tags:array<string>>")
        kept = mr.Value("struct<limit:double,tags:array<string>>")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            value = self.rules[key.k]
            for mine in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), dict(value)):
                mine["limit"] += 1.0
            deep = copy.deepcopy(value)
            deep["tags"].append("y")
            assert copy.copy(value) == value.copy() == value
            assert copy.copy(value["tags"]) == value["tags"].copy() == ["x"]
            assert type(pickle.loads(pickle.dumps(value["tags"]))) is list
            self.kept.set(value)

    tested = harness(Keeping())
    tested.send(keys("a"), broadcast={"rules": {"a": rule(1.0, "x")}})
    assert tested.state() == [{"k": "a", "kept": rule(1.0, "x")}]


def test_it_is_refused_outside() -> None:
    kept: list[Any] = []
    tested = looking(kept.append)
    tested.send(keys("k"))
    with pytest.raises(StateAccessError, match="'rules' was used after the epoch"):
        kept[0].get("a")
    for use in (
        lambda: Fraud.rules.get("a"),
        lambda: Fraud.rules["a"],
        lambda: len(Fraud.rules),
        lambda: list(Fraud.rules),
    ):
        with pytest.raises(StateAccessError, match=r"broadcast state 'rules'.*outside of process"):
            use()


def test_rows_that_do_not_fit_are_refused() -> None:
    tested = harness(Fraud())
    with pytest.raises(UsageError, match="no such broadcast state; it declares 'rules'"):
        tested.send(broadcast={"ruels": {}})
    for wrong in ({"a": 5}, {"a": {"limit": "x"}}, {"a": {"level": 1.0}}, {5: rule(1.0)}):
        with pytest.raises(StateTypeError, match="a row of broadcast state 'rules'"):
            tested.send(broadcast={"rules": wrong})
    with pytest.raises(StateTypeError, match="a key of broadcast state 'rules'"):
        looking(lambda rules: rules.get(5)).send(keys("k"))
    with pytest.raises(UnsupportedTypeError, match="Broadcast: map<string,int> holds a map"):
        mr.Broadcast("map<string,int>", "int")


@pytest.mark.parametrize(
    ("type", "one", "same", "other"),
    [
        ("double", 1, 1.0, 2.0),
        ("double", float("nan"), float("nan"), 0.0),
        ("long", None, None, 0),
        ("timestamp", NOON, NOON.replace(tzinfo=None), NOON + mr.seconds(1)),
        ("struct<a:int,b:string>", {"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": 1}),
        ("array<int>", [1, 2], (1, 2), [2, 1]),
        ("binary", b"a", bytearray(b"a"), b"b"),
    ],
)
@pytest.mark.parametrize("small", [0, 4096])
def test_keys_of_all_types(
    type: str, one: Any, same: Any, other: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "SMALL", small)

    class Typed(mr.Processor):
        rules = mr.Broadcast(type, "long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            found = self.rules.get(one), self.rules.get(same), self.rules.get(other)
            yield (key.k, repr((*found, len(self.rules))))

    tested = harness(Typed(), output="k string, what string")
    expected = [("a", repr((2, 2, 3, 2)))]
    rows = [(one, 1), (other, 3), (same, 2)]
    assert tested.send(keys("a"), broadcast={"rules": rows}) == expected
    tested.reopen()
    assert tested.send(keys("a")) == expected
    assert tested.send(keys("a"), broadcast={"rules": [(same, None)]}) == [
        ("a", repr((None, None, 3, 1)))
    ]


class Batched(mr.BatchProcessor):
    n = mr.Value("long", default=0)
    rules = mr.Broadcast("string", "double")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        table = state["rules"]
        state["n"] = state.numpy("n") + np.diff(batch.starts)
        joined = batch.keys.append_column("n", state["n"]).join(table, "k", "key")
        return {"k": joined["k"], "limit": joined["value"]}


def test_a_batch_processor_sees_a_table() -> None:
    tested = harness(Batched(), 3)
    first = tested.send(keys("abca"), broadcast={"rules": {"a": 1.0, "b": 2.0}})
    assert dict(first) == {"a": 1.0, "b": 2.0, "c": None}
    tested.rescale(2)
    assert dict(tested.send(keys("abc"), broadcast={"rules": [("a", None)]})) == {
        "a": None,
        "b": 2.0,
        "c": None,
    }
    # Broadcast rows without keyed ones.
    assert tested.send(broadcast={"rules": {"c": 3.0}}) == []
    assert {r["key"]: r["value"] for r in tested.state("rules")} == {"b": 2.0, "c": 3.0}
    assert {r["k"]: r["n"] for r in tested.state()} == {"a": 3, "b": 2, "c": 2}


def test_a_batch_processor_sees_a_table_without_rows() -> None:
    tested = harness(Batched())
    assert dict(tested.send(keys("a"))) == {"a": None}


def test_a_batch_processor_cannot_write_it() -> None:
    class Writing(mr.BatchProcessor):
        rules = mr.Broadcast("string", "double")

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            state["rules"] = None

    with pytest.raises(StateAccessError, match=r"'rules' is read-only.*'tested'"):
        harness(Writing()).send(keys("a"))


def test_several_states_and_other_kinds_beside_them() -> None:
    class Several(mr.Processor):
        names = mr.Broadcast("string", "string")
        seen = mr.Map("string", "long", ttl="1 hour")
        limits = mr.Broadcast("string", "double")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.seen["x"] = 1
            yield (self.names.get(key.k), self.limits.get(key.k))

    tested = harness(Several(), 2)
    sides: Any = {"limits": {"a": 1.0}, "names": {"b": "B"}}
    assert sorted(tested.send(keys("ab"), broadcast=sides), key=str) == [("B", None), (None, 1.0)]
    # The keys' own state goes, and the broadcast states stay.
    tested.advance_time(mr.hours(2))
    for _ in range(12):
        tested.send(keys("c"))
    assert len(tested.state("names")) == len(tested.state("limits")) == 1


def test_late_rows_do_not_concern_it() -> None:
    tested = Harness(
        Fraud(),
        key="k",
        schema="k string, at timestamp",
        output="k string, limit double",
        event_time="at",
    )
    tested.advance_watermark(NOON)
    emitted = tested.send(
        [{"k": "a", "at": NOON}, {"k": "a", "at": NOON - mr.seconds(1)}],
        broadcast={"rules": {"a": rule(1.0)}},
    )
    assert emitted == [("a", 1.0)]
    assert tested.counters["late"] == 1
