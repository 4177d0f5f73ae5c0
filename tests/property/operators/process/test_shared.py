"""Broadcast and task state against plain Python objects: random updates, random assignments of key
groups to shards at every epoch, merges, runs, reopenings and epochs that fail."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import millrace as mr
from millrace.errors import ProcessorError
from millrace.keygroups import Assignment, groups_of
from millrace.operators.process.shared import broadcast
from millrace.state import merging
from millrace.testing import Harness

GROUPS = 16
OUTPUT = "k long, found string, rows long, seen array<long>"

values = st.one_of(st.none(), st.integers(-5, 5))
updates = st.lists(st.tuples(st.integers(0, 12), values), max_size=8)
keys = st.lists(st.integers(0, 30), max_size=8)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    """Any: contiguous or scattered, and shards may own nothing."""
    shards = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return Assignment.even(GROUPS, shards)
    owners = draw(st.lists(st.integers(0, shards - 1), min_size=GROUPS, max_size=GROUPS))
    return Assignment(shards, tuple(owners))


class Shared(mr.Processor):
    rules = mr.Broadcast("long", "long")
    names = mr.Broadcast("long", "struct<v:long,text:string>")
    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    seen = mr.TaskState("array<long>", split="divide", merge="concat", default=[])

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.rows.set(self.rows.get() + len(rows))
        if key.k % 3:
            self.seen.set([*self.seen.get(), key.k])
        elif key.k % 5 == 0:
            self.seen.clear()
        assert rows[0].fails is None
        found = (self.rules.get(key.k), self.names.get(key.k), sorted(self.rules.items()))
        yield (key.k, repr(found), self.rows.get(), self.seen.get())


class SharedBatch(mr.BatchProcessor):
    """The same, on batches; keys come in the same order."""

    rules = mr.Broadcast("long", "long")
    names = mr.Broadcast("long", "struct<v:long,text:string>")
    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    seen = mr.TaskState("array<long>", split="divide", merge="concat", default=[])

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        rules, names = (
            dict(zip(state[n]["key"].to_pylist(), state[n]["value"].to_pylist(), strict=True))
            for n in ("rules", "names")
        )
        out: dict[str, list[Any]] = {"k": [], "found": [], "rows": [], "seen": []}
        for k, size in zip(batch.keys["k"].to_pylist(), np.diff(batch.starts), strict=True):
            state["rows"] = state["rows"] + int(size)
            if k % 3:
                state["seen"] = [*state["seen"], k]
            elif k % 5 == 0:
                state["seen"] = None
            found = (rules.get(k), names.get(k), sorted(rules.items()))
            for name, value in zip(
                out, (k, repr(found), state["rows"], state["seen"]), strict=True
            ):
                out[name].append(value)
        assert batch.table["fails"].null_count == len(batch)
        return out


class World:
    """The oracle: what each shard has, as lists of key groups and values."""

    def __init__(self) -> None:
        self.rules: dict[int, Any] = {}
        self.names: dict[int, Any] = {}
        self.rows: list[tuple[list[int], Any]] = []
        self.seen: list[tuple[list[int], Any]] = []

    def epoch(
        self, assignment: Assignment, rules: Any, names: Any, work: list[tuple[int, int]]
    ) -> list[tuple[Any, ...]]:
        """`work`: the key group and the key of every row, in the order keys are processed."""
        for known, news in ((self.rules, rules), (self.names, names)):
            for key, value in news:
                known[key] = value
                if value is None:
                    del known[key]
        owned: dict[int, list[int]] = {}
        for group, owner in enumerate(assignment.owners):
            owned.setdefault(owner, []).append(group)
        rows = {s: moved(self.rows, assignment, s, number_share, sum) for s in owned}
        seen = {s: moved(self.seen, assignment, s, list_share, flat) for s in owned}
        out = []
        for shard in owned:
            mine = [key for group, key in work if assignment.owners[group] == shard]
            for key in dict.fromkeys(mine):
                rows[shard] = (rows[shard] or 0) + mine.count(key)
                if key % 3:
                    seen[shard] = [*(seen[shard] or []), key]
                elif key % 5 == 0:
                    seen[shard] = None
                found = (self.rules.get(key), self.names.get(key), sorted(self.rules.items()))
                out.append((key, repr(found), rows[shard], seen[shard] or []))
        self.rows = [(owned[s], v) for s, v in rows.items() if v is not None]
        self.seen = [(owned[s], v) for s, v in seen.items() if v is not None]
        return out


def flat(parts: list[list[int]]) -> list[int]:
    return [element for part in parts for element in part]


def number_share(value: int, before: int, here: int, total: int) -> int:
    return value * (before + here) // total - value * before // total


def list_share(value: list[int], before: int, here: int, total: int) -> list[int]:
    return value[len(value) * before // total : len(value) * (before + here) // total]


def moved(held: Any, assignment: Assignment, shard: int, share: Any, merge: Any) -> Any:
    """A shard's value, from the values before, told by how many key groups others took first."""
    parts = []
    for groups, value in sorted(held, key=lambda h: h[0][0]):
        order = list(dict.fromkeys(assignment.owners[g] for g in groups))
        if shard in order:
            taken = [sum(assignment.owners[g] == s for g in groups) for s in order]
            at = order.index(shard)
            parts.append(share(value, sum(taken[:at]), taken[at], len(groups)))
    return merge(parts) if len(parts) > 1 else (parts[0] if parts else None)


class SharedMachine(RuleBasedStateMachine):
    processor: type[Any] = Shared

    @initialize(small=st.sampled_from([0, 4096]), runs=st.sampled_from([3, 1000]))
    def start(self, small: int, runs: int) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(broadcast, "SMALL", small)
        self._patch.setattr(merging, "RUN_PIECES", runs)
        self._patch.setattr(merging, "MERGE_RATIO", 0.6)
        self.harness = Harness(
            self.processor(), key="k", schema="k long, fails boolean", output=OUTPUT
        )
        self.world = World()

    def teardown(self) -> None:
        if hasattr(self, "_patch"):
            self._patch.undo()

    @rule(assignment=assignments())
    def reassign(self, assignment: Assignment) -> None:
        self.harness._shards.assignment = assignment

    @rule()
    def reopen(self) -> None:
        self.harness.reopen()

    @rule(rules=updates, names=updates, rows=keys)
    def work(self, rules: Any, names: Any, rows: list[int]) -> None:
        named = [(k, None if v is None else {"v": v, "text": str(v)}) for k, v in names]
        emitted = self.harness.send(
            [{"k": k} for k in rows], broadcast={"rules": rules, "names": named}
        )
        expected = self.world.epoch(
            self.harness._shards.assignment, rules, named, sorted_by_fingerprint(self.harness, rows)
        )
        assert sorted(emitted) == sorted(expected)

    @rule(rules=updates, row=st.integers(0, 30))
    def fail(self, rules: Any, row: int) -> None:
        with pytest.raises(ProcessorError, match="AssertionError"):
            self.harness.send([{"k": row, "fails": True}], broadcast={"rules": rules})

    @invariant()
    def state_is_the_same(self) -> None:
        if not hasattr(self, "harness"):
            return
        for name in ("rules", "names"):
            kept = {row["key"]: row["value"] for row in self.harness.state(name)}
            assert kept == getattr(self.world, name)
        for name in ("rows", "seen"):
            stored = [(parsed(r["groups"]), r["value"]) for r in self.harness.state(name)]
            assert sorted(stored) == sorted(getattr(self.world, name))


class BatchMachine(SharedMachine):
    processor = SharedBatch


def parsed(ranges: str) -> list[int]:
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def sorted_by_fingerprint(harness: Harness, rows: list[int]) -> list[tuple[int, int]]:
    """The key group and the key of every row, in order of fingerprint."""
    hi = harness._input([{"k": k} for k in rows]).hi
    order = np.argsort(hi, kind="stable").tolist()
    groups = groups_of(hi, GROUPS).tolist()
    return [(groups[i], rows[i]) for i in order]


EFFORT = settings(
    max_examples=settings.default.max_examples // 4, stateful_step_count=25, deadline=None
)
TestPerKey = SharedMachine.TestCase
TestWholeBatch = BatchMachine.TestCase
TestPerKey.settings = TestWholeBatch.settings = EFFORT
