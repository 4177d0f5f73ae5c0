"""What the handles of states do that other tests do not come by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.errors import UsageError
from millrace.testing import Harness


class Merging(mr.Processor):
    """Merges the sum of each call into a running one."""

    total = mr.Aggregating(
        "long", create=int, add=lambda a, x: a + x, merge=lambda a, b: a + b, result=lambda a: -a
    )
    plain = mr.Aggregating("long", create=int, add=lambda a, x: a + x)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[int]]:
        if rows[0].x < 0:
            self.plain.merge(1)
        self.total.merge(sum(row.x for row in rows))
        yield (self.total.get(),)


def test_accumulators_are_merged() -> None:
    tested = Harness(Merging(), key="k", schema="k long, x long", output="x long")
    rows = [{"k": 1, "x": 2}, {"k": 1, "x": 3}]
    assert tested.send(rows) == [(-5,)]
    assert tested.send([{"k": 1, "x": 4}]) == [(-9,)]
    tested.reopen()
    assert sorted(tested.send([{"k": 1, "x": 1}, {"k": 2, "x": 7}])) == [(-10,), (-7,)]


def test_without_a_merge_function_merging_is_refused() -> None:
    tested = Harness(Merging(), key="k", schema="k long, x long", output="x long")
    with pytest.raises(UsageError, match="aggregating state 'plain' has no merge function"):
        tested.send([{"k": 1, "x": -1}])


class TwoValues(mr.Processor):
    """Sets the value that a row names, and shows both."""

    a = mr.Value("struct<x:long>")
    b = mr.Value("long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[str]]:
        for row in rows:
            if row.state == "a":
                self.a.set({"x": row.x})
            elif row.state == "b":
                self.b.set(row.x)
        yield (repr((self.a.get(), self.b.get())),)


def test_values_that_some_keys_of_an_epoch_set_and_others_do_not() -> None:
    schema = "k long, state string, x long"
    tested = Harness(TwoValues(), key="k", schema=schema, output="x string")
    keys = range(6)
    tested.send([{"k": k, "state": "a", "x": k} for k in keys])
    tested.send([{"k": k, "state": "ab"[k % 2], "x": 10 * k} for k in keys])
    assert sorted(row["k"] for row in tested.state()) == list(keys)
    shown = tested.send([{"k": k, "state": None, "x": None} for k in keys])
    expected = [({"x": k if k % 2 else 10 * k}, 10 * k if k % 2 else None) for k in keys]
    assert sorted(shown) == sorted((repr(pair),) for pair in expected)


def test_an_empty_collection_is_false() -> None:
    class Filling(mr.Processor):
        xs = mr.List("long")
        m = mr.Map("long", "long")
        s = mr.Set("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[tuple[bool]]:
            collections = (self.xs, self.m, self.s)
            yield (any(collections),)
            self.xs.append(1)
            self.m[1] = 1
            self.s.add(1)
            yield (all(collections),)

    tested = Harness(Filling(), key="k", schema="k long", output="x boolean")
    assert tested.send([{"k": 1}]) == [(False,), (True,)]
    assert tested.send([{"k": 1}]) == [(True,), (True,)]


def test_a_key_without_any_entries_is_gone() -> None:
    class Emptied(mr.Processor):
        m = mr.Map("long", "long")
        s = mr.Set("long")
        xs = mr.List("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
            for row in rows:
                if row.fill:
                    self.m[1] = self.m[2] = 1
                    self.s.add(1)
                    self.xs.append(1)
                else:
                    self.m.delete(1)
                    self.m.delete(2)
                    self.s.clear()
                    self.xs.clear()

    tested = Harness(Emptied(), key="k", schema="k long, fill boolean", output="x long")
    tested.send([{"k": 1, "fill": True}, {"k": 2, "fill": True}])
    tested.send([{"k": 1, "fill": False}, {"k": 3, "fill": False}])
    assert [row["k"] for row in tested.state()] == [2]
    assert tested._shards.trail.operators[tested._operator.name].rows == 1  # type: ignore[index]
