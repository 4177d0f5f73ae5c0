"""Every state type against plain Python objects: through commits, merges, runs, reopenings, TTL and
key groups that are split over shards and united again."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.operators.process import scripted
from tests.unit.operators.process.scripted import (
    OUTPUT,
    SCHEMA,
    START,
    UTC,
    Lists,
    Maps,
    Operation,
    Scripted,
    Values,
    World,
    hashable,
    reads,
)

from millrace.operators.process import tables
from millrace.state import merging
from millrace.testing import Harness

KEYS = st.integers(0, 5)
SECONDS = st.integers(1, 6)
longs = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.sampled_from(["", "a", "b", "ü"]), st.text(max_size=5))
moments = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC))
decimals = st.integers(-(10**11), 10**11).map(lambda n: decimal.Decimal(n).scaleb(-3))
structs = st.fixed_dictionaries({"x": st.none() | longs, "y": st.none() | texts})
nested = st.fixed_dictionaries(
    {
        "a": st.none() | st.lists(st.none() | longs, max_size=3),
        "m": st.none()
        | st.dictionaries(texts, st.none() | st.lists(decimals, max_size=2), max_size=3),
        "s": st.none()
        | st.fixed_dictionaries({"t": st.none() | moments, "b": st.none() | st.binary(max_size=4)}),
        "d": st.none() | st.dates(),
        "f": st.none() | st.floats(allow_nan=False),
        "o": st.none() | st.booleans(),
    }
)
few = st.integers(0, 9)
accumulators = st.lists(few, max_size=3).map(lambda xs: {"n": len(xs), "all": xs})
struct_keys = st.fixed_dictionaries(
    {"a": st.integers(0, 2), "b": st.lists(st.sampled_from("pq"), max_size=1)}
)
objects = st.sampled_from([{1, 2}, (1, "x"), {"deep": [1, {2: 3}]}, 3.5])


def _call(state: str, method: str, *arguments: Any) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(state), st.just(method), st.tuples(*arguments))


def _value(state: str, values: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Operation]]:
    return [
        _call(state, "set", values),
        _call(state, "set", values),
        _call(state, "get"),
        _call(state, "exists"),
        _call(state, "clear"),
    ]


def _map(
    state: str, keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]
) -> list[st.SearchStrategy[Operation]]:
    return [
        _call(state, "set", keys, values),
        _call(state, "__setitem__", keys, values),
        _call(state, "update", st.lists(st.tuples(keys, values), max_size=6)),
        _call(state, "get", keys),
        _call(state, "get", keys, st.just("missing")),
        _call(state, "__getitem__", keys),
        _call(state, "contains", keys),
        _call(state, "delete", keys),
        _call(state, "__delitem__", keys),
        _call(state, "__len__"),
        _call(state, "items"),
        _call(state, "keys"),
        _call(state, "clear"),
    ]


def _set(state: str, members: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Operation]]:
    return [
        _call(state, "add", members),
        _call(state, "add", members),
        _call(state, "add", members),
        _call(state, "discard", members),
        _call(state, "contains", members),
        _call(state, "__iter__"),
        _call(state, "__len__"),
        _call(state, "clear"),
    ]


def _list(state: str, values: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Operation]]:
    index = st.integers(-4, 4)
    bound = st.none() | index
    slices = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1]))
    return [
        _call(state, "append", values),
        _call(state, "append", values),
        _call(state, "extend", st.lists(values, max_size=5)),
        _call(state, "__getitem__", index),
        _call(state, "__getitem__", slices),
        _call(state, "__setitem__", index, values),
        _call(state, "drop_first", st.integers(0, 3)),
        _call(state, "get"),
        _call(state, "__len__"),
        _call(state, "set", st.lists(values, max_size=3)),
        _call(state, "clear"),
    ]


# Far enough ahead that it is never in the past; how much time can pass is bounded.
LONGEST = dt.timedelta(hours=1)


def _timer(state: str) -> list[st.SearchStrategy[Operation]]:
    label = st.sampled_from(["", "a", "b", "c", "d"])
    time = st.integers(1, 60).map(lambda n: START + LONGEST + dt.timedelta(seconds=n))
    return [
        _call(state, "set", time),
        _call(state, "set", time, label),
        _call(state, "set", time, label),
        _call(state, "cancel", label),
        _call(state, "get", label),
        _call(state, "labels"),
    ]


OPERATIONS: dict[type[Scripted], st.SearchStrategy[Operation]] = {
    Values: st.one_of(
        *_value("nested", nested),
        *_value("plain", longs),
        *_value("listed", st.lists(texts, max_size=2)),
        *_value("fading", texts),
        *_value("touched", texts),
        *_value("eventful", longs),
        *_value("best", longs),
        _call("best", "add", longs),
        *_value("stats", accumulators),
        _call("stats", "add", few),
        _call("stats", "merge", accumulators),
        *_value("anything", objects),
    ),
    Maps: st.one_of(
        *_map("pages", texts, st.none() | longs),
        *_map("fading", few, texts),
        *_map("touched", few, texts),
        *_map("eventful", few, few),
        *_map("by_struct", struct_keys, st.lists(few, max_size=2)),
        *_set("tags", texts),
        *_set("lately", few),
        *_set("days", st.sampled_from([dt.date(2024, 1, d) for d in range(1, 9)])),
    ),
    Lists: st.one_of(
        *_list("items", structs),
        *_list("fading", few),
        *_list("eventful", few),
        *_timer("alarm"),
        *_timer("other"),
        *_timer("tick"),
    ),
}


UNORDERED = {"items", "keys", "__iter__", "labels"}


def comparable(results: list[Any], script: list[Operation]) -> list[Any]:
    """Results; those that show a map, a set or labels in some order are sorted."""
    assert len(results) == len(script)
    return [
        sorted(repr(hashable(one)) for one in result) if method in UNORDERED else result
        for result, (_, method, _) in zip(results, script, strict=True)
    ]


class Machine(RuleBasedStateMachine):
    """A processor in a harness beside a world of plain objects."""

    processor: type[Scripted]

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._is_new = False

    @initialize(whole=st.sampled_from([2, 2, 512]), runs=st.sampled_from([3, 1000]))
    def start(self, whole: int, runs: int) -> None:
        self._patch.setattr(tables, "WHOLE", whole)
        self._patch.setattr(merging, "RUN_PIECES", runs)
        self._patch.setattr(merging, "LOG_PIECES", 0)
        self._patch.setattr(merging, "MERGE_RATIO", 0.6)
        self.harness = Harness(
            self.processor(), key="k", schema=SCHEMA, output=OUTPUT, event_time="at"
        )
        self.world = World(self.processor)

    def teardown(self) -> None:
        self._patch.undo()

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def work(self, data: st.DataObject, keys: list[int]) -> None:
        operations = st.lists(OPERATIONS[self.processor], min_size=1, max_size=8)
        self._epoch({key: data.draw(operations) for key in keys})

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), seconds=SECONDS)
    def work_later(self, data: st.DataObject, keys: list[int], seconds: int) -> None:
        self.let_time_pass(seconds)
        self.work(data, keys)

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), seconds=SECONDS)
    def work_on(self, data: st.DataObject, keys: list[int], seconds: int) -> None:
        self.raise_watermark(seconds)
        self.work(data, keys)

    @rule()
    def look_at_everything(self) -> None:
        self._epoch({key: reads(self.processor) for key in self.world.keys})

    def let_time_pass(self, seconds: int) -> None:
        self.harness._time_us += seconds * 1_000_000
        self.world.now.times["processing"] = self.harness.now

    def raise_watermark(self, seconds: int) -> None:
        before = self.world.now.times["event"]
        now = START if before is None else before + dt.timedelta(seconds=seconds)
        self._set_watermark(now)

    @rule(times=st.sampled_from(["event", "processing"]), seconds=st.integers(1, 30))
    def reach_the_timers(self, times: str, seconds: int) -> None:
        later = START + LONGEST + dt.timedelta(seconds=seconds)
        before = self.world.now.times[times]
        if before is not None and before >= START + LONGEST:
            later = before
        if times == "event":
            self._set_watermark(later)
        else:
            self.harness._time_us = round(later.timestamp()) * 1_000_000
            self.world.now.times["processing"] = self.harness.now

    def _set_watermark(self, now: dt.datetime) -> None:
        self.harness._watermark_us = round(now.timestamp()) * 1_000_000
        self.world.now.times["event"] = now

    @rule()
    def restart(self) -> None:
        self.harness.reopen()

    @rule(shards=st.sampled_from([1, 2, 3, 16]))
    def rescale(self, shards: int) -> None:
        self.harness.rescale(shards)

    def _epoch(self, scripts: dict[int, list[Operation]]) -> None:
        now = self.world.now.times
        for key, script in list(scripts.items()):
            # A timer may not be set in the past, and that is tested elsewhere.
            scripts[key] = [
                (state, method, arguments)
                for state, method, arguments in script
                if method != "set"
                or not self.world.is_timer(state)
                or (now[self.world.declared[state].time] or START) < arguments[0]
            ]
        rows = [
            {"k": key, "script": pickle.dumps(script), "at": now["event"]}
            for key, script in scripts.items()
        ]
        expected = self.world.epoch(scripts)
        self._is_new = True
        emitted: dict[int, dict[str, list[Any]]] = {}
        for key, what, data in self.harness.send(rows):
            emitted.setdefault(key, {}).setdefault(what, []).append(pickle.loads(data))
        for outputs in emitted.values():
            for event_time in outputs.pop("event time", []):
                assert event_time == now["event"]
            if "timer" in outputs:
                fired = outputs["timer"]
                assert [time for _, _, time, _ in fired] == [at for _, _, _, at in fired]
                outputs["timer"] = [(time, name, label) for name, label, time, _ in fired]
        assert emitted.keys() == {k for k in self.world.keys if k in expected}
        for key, outputs in expected.items():
            seen = emitted[key]
            script = scripts.get(key, [])
            assert comparable(seen.get("result", []), script) == comparable(
                outputs.get("result", []), script
            )
            assert seen.get("timer", []) == outputs.get("timer", [])

    @invariant()
    def tables_hold_what_there_is(self) -> None:
        """What is stored, without what has expired, is the world."""
        if not self._is_new:
            return
        self._is_new = False
        for states in self.world.keys.values():
            for model in states.values():
                model.expire()
        values = {n for n, d in self.world.declared.items() if isinstance(d, scripted.mr.Value)}
        rows = self.harness.state()
        stored: dict[int, dict[str, Any]] = {row["k"]: row for row in rows}
        assert len(stored) == len(rows)
        for key, states in self.world.keys.items():
            for name in values:
                seen = self._alive(name, stored.get(key, {}).get(name), stored.get(key, {}), name)
                if isinstance(self.world.declared[name], scripted.mr.Pickled):
                    seen = None if seen is None else pickle.loads(seen)
                assert seen == states[name].content(), (key, name)
        for name in self.world.declared:
            if name not in values and not self.world.is_timer(name):
                self._check_collection(name)
        self._check_timers()

    def _alive(self, name: str, value: Any, row: dict[str, Any], prefix: str = "") -> Any:
        expires = row.get(f"{prefix}.expires" if prefix else "expires")
        if expires is None:
            return value
        now = self.world.now.times[self.world.declared[name].ttl_time]
        over = now is not None and expires <= round(now.timestamp() * 1_000_000)
        return None if over else value

    def _check_collection(self, name: str) -> None:
        rows = [r for r in self.harness.state(name) if self._alive(name, r, r) is not None]
        if isinstance(self.world.declared[name], scripted.mr.List):
            seen = [repr(hashable(r["value"])) for r in rows]
        else:
            seen = [repr((hashable(r.get("key", r.get("member"))), r.get("value"))) for r in rows]
        wanted: list[str] = []
        for states in self.world.keys.values():
            content = states[name].content()
            if isinstance(self.world.declared[name], scripted.mr.List):
                wanted += [repr(hashable(value)) for value in content]
            else:
                wanted += [repr((hashable(key), value)) for key, value in content]
        assert sorted(seen) == sorted(wanted), name

    def _check_timers(self) -> None:
        seen = [
            (row["timer"], row["label"], row["time"])
            for table in ("timers.event", "timers.processing")
            if any(map(self.world.is_timer, self.world.declared))
            for row in self.harness.state(table)
        ]
        wanted = [
            (name, label, round(time.timestamp() * 1_000_000))
            for states in self.world.keys.values()
            for name, model in states.items()
            if isinstance(model, scripted.TimerModel)
            for label, time in model.times.items()
        ]
        assert sorted(seen) == sorted(wanted)


class ValueMachine(Machine):
    processor = Values


class MapMachine(Machine):
    processor = Maps


class ListMachine(Machine):
    processor = Lists


EFFORT = settings(
    max_examples=settings.default.max_examples // 4, stateful_step_count=20, deadline=None
)
TestValues = ValueMachine.TestCase
TestMaps = MapMachine.TestCase
TestLists = ListMachine.TestCase
TestValues.settings = TestMaps.settings = TestLists.settings = EFFORT
