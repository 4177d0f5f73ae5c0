"""An epoch gives the same result however often and wherever it runs; keys do not see each other."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from typing import Any

import pytest

import millrace as mr
from millrace.epoch.shard import open_shard
from millrace.ids import Shard
from millrace.operators.process import tables
from millrace.operators.process.convert import to_us
from millrace.state import merging
from millrace.state.cache import ReplicaCache
from millrace.testing import Harness

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Busy(mr.Processor):
    """Shows the order of everything it holds."""

    count = mr.Value("long", default=0)
    seen = mr.Map("long", "long")
    fading = mr.Map("string", "long", ttl="4 seconds", ttl_refresh="read+write")
    tags = mr.Set("string", ttl="6 seconds")
    recent = mr.List("long", ttl="5 seconds")
    alarm = mr.EventTimeTimer()
    tick = mr.ProcessingTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        for row in rows:
            self.count.set(self.count.get() + 1)
            if row.x % 7 == 0:
                self.seen.delete(row.x % 5)
            self.seen[row.x % 20] = row.x
            self.fading[str(row.x % 9)] = row.x
            self.tags.add(str(row.x % 6))
            self.recent.append(row.x)
            if row.x % 11 == 0:
                self.recent[0] = -row.x
            self.alarm.set(ctx.event_time + mr.seconds(row.x % 5 + 1), label=str(row.x % 3))
            self.tick.set(ctx.processing_time + mr.seconds(row.x % 4 + 1))
        yield key.k, repr(self._all())

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        self.count.set(self.count.get() + 100)
        self.seen[-1] = self.count.get()
        yield key.k, repr((timer, self._all()))

    def _all(self) -> Any:
        maps = (self.seen.items(), self.fading.items(), list(self.tags), self.alarm.labels())
        return self.count.get(), *maps, len(self.fading), list(self.recent)


def epochs() -> list[list[dict[str, Any]]]:
    chance = random.Random(5)
    return [
        [
            {"k": chance.randrange(8), "x": chance.randrange(1000), "at": START + mr.seconds(n)}
            for _ in range(chance.randrange(12))
        ]
        for n in range(20)
    ]


def outcome(rows: list[list[dict[str, Any]]], shards: list[int], reopen: bool) -> Any:
    """What each key emitted in each epoch."""
    tested = Harness(
        Busy(),
        key="k",
        schema="k long, x long, at timestamp",
        output="k long, what string",
        event_time="at",
    )
    emitted = []
    for n, batch in enumerate(rows):
        tested.rescale(shards[n % len(shards)])
        if reopen:
            tested.reopen()
        tested._time_us += 1_000_000
        tested._watermark_us = to_us(START + mr.seconds(n - 1))
        by_key: dict[int, list[str]] = {}
        for key, what in tested.send(batch):
            by_key.setdefault(key, []).append(what)
        emitted.append(by_key)
    return emitted


@pytest.mark.stress
def test_neither_shards_nor_merges_nor_restarts_nor_sizes_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = epochs()
    expected = outcome(rows, [1], reopen=False)
    assert sum(map(len, expected)) > 80
    for whole, runs, ratio, shards, reopen in [
        (0, 32, 2.25, [1], False),
        (3, 3, 0.5, [1, 4, 2, 8], False),
        (512, 3, 0.5, [3, 3, 1], True),
        (2, 4, 100.0, [2, 1], True),
    ]:
        monkeypatch.setattr(tables, "WHOLE", whole)
        monkeypatch.setattr(merging, "RUN_PIECES", runs)
        monkeypatch.setattr(merging, "LOG_PIECES", 0)
        monkeypatch.setattr(merging, "MERGE_RATIO", ratio)
        assert outcome(rows, shards, reopen) == expected


def test_applying_an_epoch_twice_gives_the_same_rows() -> None:
    rows = epochs()
    tested = Harness(
        Busy(),
        key="k",
        schema="k long, x long, at timestamp",
        output="k long, what string",
        event_time="at",
    )
    for batch in rows[:19]:
        tested.send(batch)
    batch = tested._input(rows[19])
    times = tested._shards.times(to_us(START + mr.seconds(3)), to_us(START + mr.seconds(2)))
    moment = tested._shards.moment(times)
    results = []
    for _ in range(3):
        shard = open_shard(tested._shards.task, tested._operator, Shard(0), moment, ReplicaCache())
        for _ in range(2):
            change = tested._operator.apply(shard.replicas, batch, shard.groups, moment)
            results.append(change)
    first = results[0]
    assert first.output.num_rows > 0
    for other in results[1:]:
        assert other.output.equals(first.output)
        assert other.counters == first.counters
        assert other.tables.keys() == first.tables.keys()
        for table, change in first.tables.items():
            assert other.tables[table].rows.equals(change.rows)
            assert (other.tables[table].added, other.tables[table].removed) == (
                change.added,
                change.removed,
            )


def test_what_code_leaves_on_the_processor_does_not_stay() -> None:
    class Leaky(mr.Processor):
        def __init__(self) -> None:
            self.cache: list[int] = []
            self.calls = 0

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.calls += 1
            self.cache.append(1)
            yield (self.calls, len(self.cache))

    class LeakyBatch(mr.BatchProcessor):
        def __init__(self) -> None:
            self.calls: list[int] = []

        def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
            self.calls.append(1)
            return {"a": [len(self.calls)], "b": [0]}

    per_key = Harness(Leaky(), key="k", schema="k long", output="a long, b long")
    batched = Harness(LeakyBatch(), key="k", schema="k long", output="a long, b long")
    for _ in range(3):
        assert per_key.send([{"k": 1}]) == [(1, 1)]
        assert batched.send([{"k": 1}]) == [(1, 0)]


def test_a_value_changed_in_place_is_not_stored_until_it_is_set() -> None:
    class InPlace(mr.Processor):
        xs = mr.Value("array<long>")
        n = mr.Value("long", default=0)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.n.set(self.n.get() + 1)
            if self.n.get() == 1:
                self.xs.set([1])
            else:
                self.xs.get().append(2)

    tested = Harness(InPlace(), key="k", schema="k long", output="n long")
    for _ in range(3):
        tested.send([{"k": 1}])
    assert tested.state() == [{"k": 1, "xs": [1], "n": 3}]


def test_a_default_is_not_shared_between_keys() -> None:
    class Default(mr.Processor):
        xs = mr.Value("array<long>", default=[])

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            xs = self.xs.get()
            xs.append(key.k)
            self.xs.set(xs)
            yield key.k, repr(xs)

    tested = Harness(Default(), key="k", schema="k long", output="k long, xs string")
    for n in range(1, 3):
        out = tested.send([{"k": k} for k in range(5)])
        assert sorted(out) == [(k, repr([k] * n)) for k in range(5)]


def test_collections_may_be_changed_while_they_are_iterated() -> None:
    class Mutating(mr.Processor):
        m = mr.Map("long", "long")
        s = mr.Set("long")
        xs = mr.List("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.m.update({n: n for n in range(5)})
            for n in self.m:
                del self.m[n]
                self.m[n + 10] = n
            for _ in range(2):
                self.s.add(len(self.s))
                for n in self.s:
                    self.s.add(n + 10)
            self.xs.extend([1, 2])
            self.xs.extend(self.xs)
            self.xs.set(x * 10 for x in self.xs if x > 1)
            yield repr((sorted(self.m.items()), sorted(self.s), list(self.xs))), 0

    tested = Harness(Mutating(), key="k", schema="k long", output="a string, b long")
    expected = ([(n + 10, n) for n in range(5)], [0, 2, 10, 12, 20], [20, 20])
    assert tested.send([{"k": 1}])[0][0] == repr(expected)


def test_null_and_odd_keys_are_keys_like_others() -> None:
    class Count(mr.Processor):
        n = mr.Value("long", default=0)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.n.set(self.n.get() + len(rows))
            yield pickle.dumps((tuple(key), self.n.get())), 0

    tested = Harness(Count(), key=["a", "b"], schema="a string, b double", output="x binary, y int")
    keys = [(None, None), (None, 0.0), ("", None), ("", 0.0), ("", 1), ("ü", float("inf"))]
    batch = [{"a": a, "b": b} for a, b in keys]
    tested.send([*batch, {"a": "", "b": -0.0}])
    tested.reopen()
    counted = dict(pickle.loads(x) for x, _ in tested.send([*batch, {}]))
    assert counted == dict.fromkeys(keys, 2) | {(None, None): 3, ("", 0.0): 3}


def test_a_derived_class_inherits_states_and_can_take_one_away() -> None:
    class Base(mr.Processor):
        a = mr.Value("long", default=1)
        b = mr.Value("long", default=2)
        first = second = mr.ProcessingTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.a.set(self.a.get() + 1)
            self.first.set(ctx.processing_time + mr.seconds(1))
            self.second.set(ctx.processing_time + mr.seconds(2))

        def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
            yield (timer.name,)

    class Derived(Base):
        b = None  # type: ignore[assignment]
        c = mr.Value("long")

    tested = Harness(Derived(), key="k", schema="k long", output="n string")
    tested.send([{"k": 1}])
    assert list(tested.state()[0]) == ["k", "a", "timers.processing.size", "c"]
    assert tested.advance_time(mr.seconds(5)) == [("first",), ("second",)]
