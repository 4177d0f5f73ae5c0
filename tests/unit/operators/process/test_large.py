"""A large collection costs what is touched, and behaves like a small one."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.epoch.shard import open_shard
from millrace.ids import Shard
from millrace.operators.operator import Change
from millrace.operators.process.factory import make_operator
from millrace.operators.process.tables import WHOLE
from millrace.state.cache import ReplicaCache
from millrace.state.replica import Replica
from millrace.testing import Harness

SIZE = 4 * WHOLE


class Large(mr.Processor):
    m = mr.Map("long", "string")
    s = mr.Set("string")
    xs = mr.List("long")
    fading = mr.List("long", ttl="1 hour")
    alarm = mr.EventTimeTimer()

    def __init__(self) -> None:
        self.action: Any = None

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        if rows[0].fill:
            self.m.update({n: str(n) for n in range(SIZE)})
            for n in range(SIZE):
                self.s.add(str(n))
            self.xs.extend(range(SIZE))
            self.fading.extend(range(SIZE))
            for n in range(SIZE):
                self.alarm.set(ctx.processing_time + mr.seconds(n + 1), label=str(n))
        else:
            yield (repr(self.action(self)),)

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        yield (timer.label,)


@pytest.fixture
def filled() -> tuple[Harness, Large]:
    processor = Large()
    tested = Harness(processor, key="k", schema="k long, fill boolean", output="x string")
    tested.send([{"k": 1, "fill": True}, {"k": 2, "fill": True}])
    tested.reopen()
    return tested, processor


def touched(tested: Harness, processor: Large, action: Any) -> tuple[Change, str]:
    """What an epoch that does this for one key would write, and what the action gave."""
    processor.action = action
    moment = tested._shards.moment(tested._shards.times(tested._time_us))
    shard = open_shard(tested._shards.task, tested._operator, Shard(0), moment, ReplicaCache())
    change = shard.apply(tested._input([{"k": 1, "fill": False}]))
    return change, change.output.column(0)[0].as_py()


@pytest.mark.parametrize(
    ("action", "table", "gives"),
    [
        (lambda p: (p.xs.append(7), len(p.xs))[1], "xs", SIZE + 1),
        (lambda p: (p.xs.__setitem__(5, 0), p.xs[4:7])[1], "xs", [4, 0, 6]),
        (lambda p: (p.xs.drop_first(), p.xs[0])[1], "xs", 1),
        (lambda p: (p.m.set(9, "x"), p.m[9], p.m[10])[1:], "m", ("x", "10")),
        (lambda p: (p.m.delete(9), 9 in p.m, len(p.m))[1:], "m", (False, SIZE - 1)),
        (lambda p: (p.m.set(-1, "x"), len(p.m))[1], "m", SIZE + 1),
        (lambda p: (p.s.add("new"), p.s.add("9"), len(p.s)), "s", (True, False, SIZE + 1)),
        (lambda p: (p.s.discard("9"), "9" in p.s), "s", (True, False)),
        (lambda p: p.fading.append(1), "fading", None),
        (lambda p: (p.fading.append(7), p.fading[-3:])[1], "fading", [SIZE - 2, SIZE - 1, 7]),
        (lambda p: (p.fading.append(7), len(p.fading), p.fading[9])[1:], "fading", (SIZE + 1, 9)),
        (lambda p: p.alarm.cancel("7"), "timers.event", True),
    ],
)
def test_touching_one_entry_reads_and_writes_one(
    filled: tuple[Harness, Large],
    action: Any,
    table: str,
    gives: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_scan(*_: object) -> Any:
        raise AssertionError("a whole collection was read")

    monkeypatch.setattr(Replica, "entries", no_scan)
    gathered: list[int] = []
    gather = Replica.gather

    def counting(self: Replica, addresses: Any, names: list[str]) -> Any:
        gathered.append(len(addresses))
        return gather(self, addresses, names)

    monkeypatch.setattr(Replica, "gather", counting)
    change, gave = touched(*filled, action)
    assert gave == repr(gives)
    assert change.tables.keys() == {"", table}
    assert change.tables[table].rows.num_rows == 1
    assert max(gathered) <= 3


def test_elements_of_a_large_list_expire_without_a_look_at_those_that_have_not(
    filled: tuple[Harness, Large], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested, processor = filled
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: p.fading.extend(range(1000, 1000 + SIZE))
    tested.send([{"k": 1, "fill": False}])
    tested.advance_time(mr.minutes(30))
    gathered: list[int] = []
    gather = Replica.gather

    def counting(self: Replica, addresses: Any, names: list[str]) -> Any:
        # Of those that go, only whose they are is looked at.
        if "value" in names:
            gathered.append(len(addresses))
        return gather(self, addresses, names)

    monkeypatch.setattr(Replica, "gather", counting)
    processor.action = lambda p: (len(p.fading), p.fading[0], p.fading[-2:])
    emitted = tested.send([{"k": 1, "fill": False}])
    assert emitted == [(repr((SIZE, 1000, [SIZE + 998, SIZE + 999])),)]
    assert sum(gathered) < 100
    assert tested.counters["expired"] == SIZE
    monkeypatch.undo()
    assert tested.send([{"k": 1, "fill": False}]) == emitted
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: (len(p.fading), p.fading.get())
    assert tested.send([{"k": 1, "fill": False}]) == [("(0, [])",)]


def test_an_element_that_was_set_again_outlives_those_behind_it(
    filled: tuple[Harness, Large],
) -> None:
    tested, processor = filled
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: p.fading.__setitem__(700, -1)
    tested.send([{"k": 1, "fill": False}])
    tested.reopen()
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: (len(p.fading), p.fading[0], list(p.fading))
    assert tested.send([{"k": 1, "fill": False}]) == [("(1, -1, [-1])",)]


class Shorter(Large):
    fading = mr.List("long", ttl="30 minutes")


def test_a_shorter_ttl_makes_elements_expire_out_of_order(filled: tuple[Harness, Large]) -> None:
    tested, _ = filled
    processor = Shorter()
    tested._use(make_operator(tested._operator.name, tested._operator.schemas, processor))
    processor.action = lambda p: p.fading.append(-1)
    tested.send([{"k": 1, "fill": False}])
    tested.reopen()
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: (len(p.fading), p.fading[-1])
    assert tested.send([{"k": 1, "fill": False}]) == [(repr((SIZE, SIZE - 1)),)]
    tested.advance_time(mr.minutes(30))
    processor.action = lambda p: (len(p.fading), list(p.fading))
    assert tested.send([{"k": 1, "fill": False}]) == [("(0, [])",)]


def test_a_large_collection_can_be_read_whole(filled: tuple[Harness, Large]) -> None:
    tested, processor = filled

    def every(p: Any) -> Any:
        return (
            sorted(p.m.items()) == [(n, str(n)) for n in range(SIZE)],
            set(p.s) == {str(n) for n in range(SIZE)},
            list(p.xs) == list(range(SIZE)) == list(p.fading),
            len(p.alarm.labels()) == SIZE,
            p.xs[-3:],
            p.xs[::-500],
        )

    change, gave = touched(tested, processor, every)
    assert gave == repr((True,) * 4 + (list(range(SIZE))[-3:], list(range(SIZE))[::-500]))
    assert change.tables == {}


def test_a_large_collection_can_be_cleared(filled: tuple[Harness, Large]) -> None:
    tested, processor = filled
    processor.action = lambda p: (p.m.clear(), p.s.clear(), p.xs.clear(), len(p.m), bool(p.s))
    assert tested.send([{"k": 1, "fill": False}]) == [("(None, None, None, 0, False)",)]
    assert [len(tested.state(table)) for table in ("m", "s", "xs")] == [SIZE] * 3
    tested.reopen()
    processor.action = lambda p: (p.m.items(), list(p.s), p.xs.get(), p.m.get(5))
    assert tested.send([{"k": 1, "fill": False}]) == [("([], [], [], None)",)]


def test_more_timers_than_are_read_at_once_all_fire_in_order(
    filled: tuple[Harness, Large],
) -> None:
    tested, _ = filled
    fired = tested.advance_watermark(tested.now + mr.seconds(SIZE // 2))
    labels = [label for (label,) in fired]
    assert labels == [str(n) for n in range(SIZE // 2) for _ in range(2)]
    rest = tested.advance_watermark(tested.now + mr.seconds(SIZE))
    assert len(rest) == SIZE
    assert tested.state("timers.event") == []
    assert tested.advance_watermark(tested.now + mr.days(1)) == []


class Remembers(mr.Processor):
    m = mr.Map("long", "string", ttl="1 hour")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        if rows[0].what == "fill":
            self.m.update({n: str(n) for n in range(SIZE)})
        elif rows[0].what == "touch":
            self.m[0] = "again"
        else:
            yield (repr(list(self.m.items())),)


def test_reading_a_large_map_deletes_what_has_expired() -> None:
    tested = Harness(Remembers(), key="k", schema="k long, what string", output="x string")
    tested.send([{"k": 1, "what": "fill"}])
    tested.advance_time(mr.minutes(30))
    tested.send([{"k": 1, "what": "touch"}])
    tested.advance_time(mr.minutes(31))
    moment = tested._shards.moment(tested._shards.times(tested._time_us))
    shard = open_shard(tested._shards.task, tested._operator, Shard(0), moment, ReplicaCache())
    change = shard.apply(tested._input([{"k": 1, "what": "read"}]))
    assert change.output.column(0).to_pylist() == [repr([(0, "again")])]
    entries = change.tables["m"]
    assert (entries.rows.num_rows, entries.added, entries.removed) == (SIZE - 1, 0, SIZE - 1)
    assert change.counters["expired"] == SIZE - 1


def test_an_entry_that_was_removed_and_set_again_is_last(filled: tuple[Harness, Large]) -> None:
    tested, processor = filled

    def again(p: Large) -> Any:
        first, second = 3, 4
        p.m.set(second, "changed in its place")
        p.m.delete(first)
        p.m.set(first, "again")
        items = list(p.m.items())
        return items[-1], items[-2] != (second, "changed in its place"), len(items)

    assert touched(tested, processor, again)[1] == repr(((3, "again"), True, SIZE))
