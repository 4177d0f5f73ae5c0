"""What has expired is counted once, wherever it is removed: when it is read, or in a merge."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from tests.stress import few

import millrace as mr
from millrace.operators.process import tables
from millrace.state import merging
from millrace.testing import Harness


class Fading(mr.Processor):
    """Adds what was never there before, and looks at what is there."""

    stays = mr.Value("long")
    m = mr.Map("long", "long", ttl="5 seconds")
    s = mr.Set("long", ttl="7 seconds", ttl_time="event")
    xs = mr.List("long", ttl="5 seconds")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.stays.set(1)
        for row in rows:
            if row.kind == "look":
                yield len(self.m), len(list(self.s)), len(self.xs)
            else:
                self.m[row.n] = 1
                self.s.add(row.n)
                self.xs.append(row.n)


@pytest.mark.parametrize("whole", few([1, 512], 512))
@pytest.mark.parametrize("shards", few([1, 3], 3))
def test_rows_that_were_written_are_there_or_were_counted(
    whole: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WHOLE", whole)
    monkeypatch.setattr(merging, "MERGE_RATIO", 0.4)
    monkeypatch.setattr(merging, "RUN_PIECES", 6)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    chance = random.Random(whole + shards)
    tested = Harness(
        Fading(), key="k", schema="k long, kind string, n long", output="m long, s long, xs long",
        shards=shards,
    )  # fmt: skip
    start = tested.now
    written = 0
    for epoch in range(40):
        tested._time_us += 1_000_000
        if epoch > 3:
            tested._watermark_us = tested._time_us
        rows = []
        for _ in range(chance.randrange(1, 8)):
            kind = chance.choice(["add", "add", "add", "look"])
            written += kind == "add"
            rows.append({"k": chance.randrange(6), "kind": kind, "n": written})
        tested.send(rows)
        stored = sum(len(tested.state(table)) for table in ("m", "s", "xs"))
        assert stored + tested.counters["expired"] == 3 * written
    assert tested.counters["expired"] > written
    assert tested.now - start == dt.timedelta(seconds=40)


def test_expired_values_are_counted_and_a_key_without_any_is_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Values(mr.Processor):
        a = mr.Value("long", ttl="5 seconds")
        b = mr.Value("long", ttl="50 seconds")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            yield (self.a.get(),)
            if rows[0].n:
                self.b.set(rows[0].n)
            else:
                self.a.set(1)

    monkeypatch.setattr(merging, "MERGE_RATIO", 0.01)
    tested = Harness(Values(), key="k", schema="k long, n long", output="a long")
    many = [{"k": k, "n": 0} for k in range(200)]
    assert tested.send(many) == [(None,)] * 200
    tested.advance_time(mr.seconds(5))
    assert tested.counters["expired"] == 0
    # Setting one state removes what has expired of the other.
    assert tested.send([{"k": k, "n": 5} for k in range(100)]) == [(None,)] * 100
    assert tested.counters["expired"] == 100
    assert len(tested.state()) == 200
    # The rest goes when its key groups are merged.
    for _ in range(20):
        tested.send([{"k": k, "n": 5} for k in range(100)])
    assert len(tested.state()) == 100
    assert tested.counters["expired"] == 200


def test_event_time_without_a_watermark_does_not_pass() -> None:
    class Eventual(mr.Processor):
        m = mr.Map("long", "long", ttl="5 seconds", ttl_time="event")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.m[rows[0].n] = 1
            yield (repr(sorted(self.m)),)

    tested = Harness(Eventual(), key="k", schema="k long, n long", output="x string")
    tested.send([{"k": 1, "n": 1}])
    tested.advance_time(mr.days(1))
    tested.advance_watermark(tested.now)
    assert tested.send([{"k": 1, "n": 2}]) == [("[1, 2]",)]
    tested.advance_watermark(tested.now + mr.seconds(5))
    # The first entry was set before there was event time; it lives until it is set again.
    assert tested.send([{"k": 1, "n": 3}]) == [("[1, 3]",)]
    tested.send([{"k": 1, "n": 1}])
    tested.advance_watermark(tested.now + mr.seconds(10))
    assert tested.send([{"k": 1, "n": 4}]) == [("[4]",)]


def test_the_size_of_a_large_map_leaves_out_what_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Sized(mr.Processor):
        m = mr.Map("long", "long", ttl="5 seconds")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            for row in rows:
                if row.n is not None:
                    self.m[row.n] = 1
                else:
                    yield len(self.m), bool(self.m)

    monkeypatch.setattr(tables, "WHOLE", 2)
    tested = Harness(Sized(), key="k", schema="k long, n long", output="n long, any boolean")
    tested.send([{"k": 1, "n": n} for n in range(3)])
    tested.advance_time(mr.seconds(3))
    tested.send([{"k": 1, "n": n} for n in range(3, 6)])
    tested.advance_time(mr.seconds(3))
    # Three have expired. One of them is set again without a look at the others.
    tested.send([{"k": 1, "n": 0}])
    assert [row["m.size"] for row in tested.state()] == [6]
    assert tested.send([{"k": 1}]) == [(4, True)]
    tested.advance_time(mr.seconds(3))
    assert tested.send([{"k": 1}]) == [(1, True)]
    tested.advance_time(mr.seconds(3))
    assert tested.send([{"k": 1}]) == [(0, False)]


def test_adding_a_member_again_makes_it_live_longer() -> None:
    class Members(mr.Processor):
        s = mr.Set("long", ttl="5 seconds")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            yield repr(sorted(self.s)), self.s.add(rows[0].n)

    tested = Harness(Members(), key="k", schema="k long, n long", output="s string, is_new boolean")
    seen = []
    for n in (1, 2, 1, 3):
        seen += tested.send([{"k": 1, "n": n}])
        tested.advance_time(mr.seconds(3))
    # Six seconds later a member has expired; three seconds later it has not.
    assert seen == [("[]", True), ("[1]", True), ("[2]", True), ("[1]", True)]
    tested = Harness(Members(), key="k", schema="k long, n long", output="s string, is_new boolean")
    seen = []
    for _ in range(4):
        seen += tested.send([{"k": 1, "n": 1}])
        tested.advance_time(mr.seconds(3))
    assert seen == [("[]", True)] + [("[1]", False)] * 3


def test_a_key_with_a_timer_is_kept_though_all_else_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Waiting(mr.Processor):
        v = mr.Value("long", ttl="5 seconds")
        alarm = mr.ProcessingTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.v.set(1)
            if rows[0].waits:
                self.alarm.set(ctx.processing_time + mr.minutes(1))

        def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
            yield key.k, self.v.get()

    monkeypatch.setattr(merging, "MERGE_RATIO", 0.01)
    tested = Harness(Waiting(), key="k", schema="k long, waits boolean", output="k long, v long")
    tested.send([{"k": k, "waits": k % 2 == 0} for k in range(100)])
    tested.advance_time(mr.seconds(10))
    # Other keys of the same key groups change until all of them have been merged.
    for _ in range(20):
        tested.send([{"k": k, "waits": False} for k in range(100, 200)])
    assert sorted(row["k"] for row in tested.state()) == [*range(0, 100, 2), *range(100, 200)]
    fired = tested.advance_time(mr.minutes(2))
    assert sorted(fired) == [(k, None) for k in range(0, 100, 2)]
    assert tested.state("timers.processing") == []


class OneOfEach(mr.Processor):
    """One state of each kind that lives for five seconds, and one value that stays."""

    v = mr.Value("long", ttl="5 seconds")
    m = mr.Map("long", "long", ttl="5 seconds")
    s = mr.Set("long", ttl="5 seconds")
    xs = mr.List("long", ttl="5 seconds")
    stays = mr.Value("long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        yield (repr((self.v.get(), len(self.m), len(self.s), len(self.xs))),)
        if rows[0].fill:
            self.v.set(1)
            self.m.set(1, 1)
            self.s.add(1)
            self.xs.append(1)
            self.stays.set(1)


@pytest.mark.parametrize(("microseconds", "there"), [(4_999_999, True), (5_000_000, False)])
def test_the_end_of_a_lifetime_is_its_first_moment_without_it(
    microseconds: int, there: bool
) -> None:
    tested = Harness(OneOfEach(), key="k", schema="k long, fill boolean", output="x string")
    tested.send([{"k": 1, "fill": True}])
    tested._time_us += microseconds
    (row,) = tested.send([{"k": 1, "fill": False}])
    assert row == (repr((1, 1, 1, 1) if there else (None, 0, 0, 0)),)
