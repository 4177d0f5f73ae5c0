"""Task state in a processor: one value per shard, through changes of the shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.errors import ProcessorError, StateAccessError, StateTypeError, UsageError
from millrace.ids import Shard
from millrace.keygroups import Assignment, format_ranges
from millrace.reconfigure.planner import Slot, plan
from millrace.testing import Harness


def counting(**rules: Any) -> Any:
    class Counting(mr.Processor):
        rows = mr.TaskState("long", **{"split": "divide", "merge": sum, "default": 0, **rules})

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.rows.set(self.rows.get() + len(rows))
            yield (key.k, self.rows.get())

    return Counting()


def harness(processor: Any, shards: int = 1, output: str = "k string, n long") -> Harness:
    return Harness(processor, key="k", schema="k string", output=output, shards=shards)


def keys(text: str) -> list[dict[str, Any]]:
    return [{"k": k} for k in text]


def held(tested: Harness) -> list[tuple[int, str, Any]]:
    return [(r["shard"], r["groups"], r["value"]) for r in tested.state("rows")]


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def test_each_shard_has_its_own_value() -> None:
    tested = harness(counting(), 4)
    assert len(tested.send(keys(LETTERS))) == 26
    rows = held(tested)
    assert [r[:2] for r in rows] == [(0, "0-3"), (1, "4-7"), (2, "8-11"), (3, "12-15")]
    assert sum(r[2] for r in rows) == 26
    tested.reopen()
    tested.send(keys(LETTERS))
    assert [r[2] for r in held(tested)] == [r[2] * 2 for r in rows]


def test_it_is_split_and_merged_with_the_shards_also_those_without_rows() -> None:
    tested = harness(counting())
    tested.send(keys(LETTERS))
    assert held(tested) == [(0, "0-15", 26)]
    tested.rescale(4)
    tested.send()
    assert held(tested) == [(0, "0-3", 6), (1, "4-7", 7), (2, "8-11", 6), (3, "12-15", 7)]
    tested.rescale(3)
    tested.reopen()
    tested.send()
    assert [r[:2] for r in held(tested)] == [(0, "0-5"), (1, "6-10"), (2, "11-15")]
    assert sum(r[2] for r in held(tested)) == 26
    tested.rescale(1)
    tested.send()
    assert held(tested) == [(0, "0-15", 26)]
    # An epoch without a change writes nothing.
    before = len(list(tested._shards.journal.store.list("segments")))
    tested.send()
    assert len(list(tested._shards.journal.store.list("segments"))) == before


def test_copies_and_functions() -> None:
    class Model(mr.Processor):
        model = mr.TaskState(
            "struct<weight:double,rows:long>",
            split="copy",
            merge=lambda models: {
                "weight": sum(m["weight"] for m in models) / len(models),
                "rows": max(m["rows"] for m in models),
            },
            default={"weight": 0.0, "rows": 0},
        )

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            model = self.model.get()
            model["weight"] += float(len(rows))
            model["rows"] += 1
            self.model.set(model)
            yield (key.k, model["rows"])

    tested = harness(Model())
    tested.send(keys("aab"))
    tested.rescale(2)
    tested.send()
    values = [row["value"] for row in tested.state("model")]
    assert values == [{"weight": 3.0, "rows": 2}] * 2
    tested.send(keys("aaaa"))
    tested.rescale(1)
    tested.send()
    assert [row["value"] for row in tested.state("model")] == [{"weight": 5.0, "rows": 3}]


def test_a_shard_without_a_value_has_the_default_and_takes_no_part_in_a_merge() -> None:
    class Choosy(mr.Processor):
        rows = mr.TaskState("long", split="copy", merge=min, default=100)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            yield (key.k, self.rows.get() if not self.rows.exists() else -self.rows.get())
            if key.k == "a":
                self.rows.set(5)
            elif key.k == "b":
                self.rows.clear()

    tested = harness(Choosy(), 8)
    assert dict(tested.send(keys("ac"))) == {"a": 100, "c": 100}
    assert len(tested.state("rows")) == 1
    tested.rescale(1)
    assert tested.send(keys("b")) == [("b", -5)]
    assert tested.state("rows") == []
    assert tested.send(keys("c")) == [("c", 100)]


def test_a_batch_processor_has_it_as_a_value() -> None:
    class Batched(mr.BatchProcessor):
        n = mr.Value("long", default=0)
        offsets = mr.TaskState("array<long>", split="divide", merge="concat", default=[])

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            state["offsets"] = [*state["offsets"], ctx.epoch]
            return {"k": batch.keys["k"], "n": [len(state["offsets"])] * batch.keys.num_rows}

    tested = harness(Batched(), 2)
    tested.send(keys(LETTERS))
    tested.send(keys(LETTERS))
    assert [r["value"] for r in tested.state("offsets")] == [[1, 2], [1, 2]]
    tested.rescale(1)
    tested.send()
    assert [r["value"] for r in tested.state("offsets")] == [[1, 2, 1, 2]]
    assert tested.send(keys("a")) == [("a", 5)]


def test_a_failing_epoch_leaves_it_alone() -> None:
    class Failing(mr.Processor):
        rows = mr.TaskState("long", split="divide", merge=sum, default=0)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.rows.set(self.rows.get() + 1)
            assert key.k != "x"

    tested = harness(Failing())
    tested.send(keys("a"))
    with pytest.raises(ProcessorError, match="AssertionError"):
        tested.send(keys("bcx"))
    tested.send(keys("b"))
    assert held(tested) == [(0, "0-15", 2)]


def test_it_is_refused_outside() -> None:
    kept: list[Any] = []

    class Keeping(mr.Processor):
        rows = mr.TaskState("long", split="copy", merge=sum)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            kept.append(self.rows)

    harness(Keeping()).send(keys("a"))
    for use in (kept[0].get, kept[0].clear, kept[0].exists, lambda: kept[0].set(1)):
        with pytest.raises(StateAccessError, match="'rows' was used after the epoch"):
            use()
    with pytest.raises(StateAccessError, match=r"task state 'rows'.get was used outside"):
        Keeping.rows.get()


def _scaled(processor: Any) -> Harness:
    """Two shards with values; the next epoch has three."""
    tested = harness(processor, 2)
    tested.send(keys(LETTERS))
    tested.rescale(3)
    return tested


@pytest.mark.parametrize(
    ("rules", "error", "named"),
    [
        ({"split": lambda v, s: 1 / 0}, ProcessorError, "split rule"),
        ({"split": lambda v, s: [v]}, StateTypeError, "a list of 2 values"),
        ({"split": lambda v, s: ["x"] * len(s), "merge": max}, StateTypeError, "'x' does not fit"),
        ({"merge": lambda vs: [][0]}, ProcessorError, "merge rule"),
        ({"merge": lambda vs: None}, StateTypeError, "returned None"),
        ({"merge": lambda vs: "text"}, StateTypeError, "'text' does not fit"),
        ({"merge": lambda vs: 1.5}, StateTypeError, "1.5 does not fit"),
    ],
)
def test_a_rule_that_fails_is_named_and_can_be_corrected(
    rules: dict[str, Any], error: Any, named: str
) -> None:
    tested = _scaled(counting(**rules))
    before = held(tested)
    for _ in range(2):
        with pytest.raises(error) as caught:
            tested.send(keys("a"))
        assert named in str(caught.value)
        assert "task state 'rows' of operator 'tested'" in str(caught.value)
        assert held(tested) == before
    corrected = harness(counting(), 3)
    corrected._shards.journal = tested._shards.journal
    corrected._shards.restart()
    corrected.send(keys("a"))
    assert sum(r[2] for r in held(corrected)) == 27


@pytest.mark.parametrize("value", ["x", 1.5, [1], 2**63])
def test_a_value_that_does_not_fit_is_refused(value: Any) -> None:
    class Setting(mr.Processor):
        rows = mr.TaskState("long", split="copy", merge=sum)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.rows.set(value)

    tested = harness(Setting())
    with pytest.raises(StateTypeError, match="task state 'rows' of operator 'tested'"):
        tested.send(keys("a"))
    assert tested.state("rows") == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"type": "string", "split": "divide", "merge": min}, "not string"),
        ({"type": "decimal(5,2)", "split": "divide", "merge": sum}, "not decimal"),
        ({"type": "long", "split": "copy", "merge": "concat"}, "not bigint"),
        ({"type": "long", "split": "share", "merge": sum}, "split='share'"),
        ({"type": "long", "split": None, "merge": sum}, "split=None"),
        ({"type": "long", "split": "copy", "merge": "sum"}, "such as sum"),
    ],
)
def test_rules_that_cannot_be_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        mr.TaskState(**arguments)
    assert named in str(caught.value)


def test_both_rules_must_be_declared() -> None:
    with pytest.raises(TypeError, match="split"):
        mr.TaskState("long", merge=sum)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="merge"):
        mr.TaskState("long", split="copy")  # type: ignore[call-arg]


def in_steps(current: Assignment, keeps: list[int | None]) -> Iterator[Assignment]:
    """The assignments of a move that goes on for several epochs, to shards that keep some."""
    planned = plan(current, [Slot("", keeps=kept) for kept in keeps])
    while planned.moved:
        planned = planned.after(frozenset(planned.moved[:3]))
        yield planned.current


@pytest.mark.parametrize("batched", [False, True])
def test_a_move_in_steps_with_shards_that_own_nothing_for_a_while(batched: bool) -> None:
    """Shards are new and empty, or given up and empty before they go, or get another number."""
    tested = harness(LoggingBatch() if batched else Logging(), 3, "k string, rule string")
    tested.send(keys(LETTERS), broadcast={"rules": {"a": "first"}})
    sent, idle = len(LETTERS), 0
    for keeps in ([0, 1, 2, None, None, None], [5, None], [1]):
        for n, assignment in enumerate(in_steps(tested._shards.assignment, keeps)):
            tested._shards.assignment = assignment
            owning = set(assignment.owners)
            idle += assignment.shards - len(owning)
            emitted = tested.send(keys("az"), broadcast={"rules": {"z": str(n)}})
            assert sorted(emitted) == [("a", "first"), ("z", str(n))]
            sent += 2
            rows = tested.state("rows")
            assert sum(r["value"] for r in rows) == sent
            assert {r["shard"] for r in rows} <= owning
            for r in rows:
                groups = assignment.groups_of(Shard(r["shard"])).tolist()
                assert r["groups"] == format_ranges(groups)
            logs = [k for r in tested.state("log") for k in r["value"]]
            assert sorted(logs) == sorted(LETTERS + "az" * ((sent - len(LETTERS)) // 2))
            if n % 3 == 2:
                tested.reopen()
        assert tested._shards.assignment.shards == len(keeps)
    assert idle > 5
    assert held(tested) == [(0, "0-15", sent)]


class Logging(mr.Processor):
    rules = mr.Broadcast("string", "string")
    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    log = mr.TaskState("array<string>", split="divide", merge="concat", default=[])

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.rows.set(self.rows.get() + len(rows))
        self.log.set([*self.log.get(), key.k])
        yield (key.k, self.rules.get(key.k))


class LoggingBatch(mr.BatchProcessor):
    rules = mr.Broadcast("string", "string")
    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    log = mr.TaskState("array<string>", split="divide", merge="concat", default=[])

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        state["rows"] = state["rows"] + len(batch)
        found = batch.keys["k"].to_pylist()
        state["log"] = state["log"] + found
        rules = dict(zip(*(state["rules"][c].to_pylist() for c in ("key", "value")), strict=True))
        return {"k": found, "rule": [rules.get(k) for k in found]}
