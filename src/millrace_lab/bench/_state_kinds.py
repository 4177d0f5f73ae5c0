"""The kinds of state that `bench state-types` measures, and what is done with each.

`fill` makes a key's state, `update` changes it once, `read` looks at one thing in it, and `total`
reduces it to a number, which after `u` updates must be `expected(key, u)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import millrace as mr

ENTRIES = 4
"""Elements, entries or members that a key's collection is filled with."""

Action = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of state."""

    name: str
    declare: Callable[[], Any]
    fill: Action
    update: Action
    read: Action
    total: Callable[[Any], int]
    expected: Callable[[int, int], int]
    table: str = ""
    """Where its rows are: a collection has a table of its own."""


class Subject(mr.Processor):
    """Does one thing with the state of every key it sees."""

    state: Any

    def __init__(self) -> None:
        self.action: Action | None = None
        self.shown: Callable[[Any], int] | None = None

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any] | None:
        if self.action is not None:
            self.action(self.state, key.key)
        return None if self.shown is None else iter([(key.key, self.shown(self.state))])


def subject(kind: Kind) -> Subject:
    """A processor with one state of a kind."""
    made: Subject = type(f"{kind.name.title()}Subject", (Subject,), {"state": kind.declare()})()
    return made


def _more(key: int, updates: int) -> int:
    return key + updates


def _nested(value: int) -> dict[str, Any]:
    return {"tags": [f"t{value % 10}", "all"], "limits": {"low": [0.5], "high": [float(value)]}}


def _high(value: dict[str, Any]) -> int:
    return int(value["limits"]["high"][0])


def _count(accumulator: dict[str, Any], value: float) -> dict[str, Any]:
    return {"n": accumulator["n"] + 1, "sum": accumulator["sum"] + value}


NESTED = "struct<tags:array<string>,limits:map<string,array<double>>>"

KINDS = (
    Kind(
        "value",
        lambda: mr.Value("long"),
        fill=lambda s, k: s.set(k),
        update=lambda s, k: s.set(s.get() + 1),
        read=lambda s, k: s.get(),
        total=lambda s: s.get(),
        expected=_more,
    ),
    Kind(
        "nested",
        lambda: mr.Value(NESTED),
        fill=lambda s, k: s.set(_nested(k)),
        update=lambda s, k: s.set(_nested(_high(s.get()) + 1)),
        read=lambda s, k: s.get(),
        total=lambda s: _high(s.get()),
        expected=_more,
    ),
    Kind(
        "pickled",
        lambda: mr.Pickled(),
        fill=lambda s, k: s.set((k, "x")),
        update=lambda s, k: s.set((s.get()[0] + 1, "x")),
        read=lambda s, k: s.get(),
        total=lambda s: s.get()[0],
        expected=_more,
    ),
    Kind(
        "reducing",
        lambda: mr.Reducing("long", operator.add),
        fill=lambda s, k: s.add(k),
        update=lambda s, k: s.add(1),
        read=lambda s, k: s.get(),
        total=lambda s: s.get(),
        expected=_more,
    ),
    Kind(
        "aggregating",
        lambda: mr.Aggregating(
            "struct<n:long,sum:double>",
            create=lambda: {"n": 0, "sum": 0.0},
            add=_count,
            result=lambda a: a["sum"],
        ),
        fill=lambda s, k: s.add(float(k)),
        update=lambda s, k: s.add(1.0),
        read=lambda s, k: s.get(),
        total=lambda s: int(s.get()),
        expected=_more,
    ),
    Kind(
        "list",
        lambda: mr.List("long"),
        fill=lambda s, k: s.extend(range(k, k + ENTRIES)),
        update=lambda s, k: s.append(1),
        read=lambda s, k: s[-1],
        total=lambda s: sum(s),
        expected=lambda k, u: sum(range(k, k + ENTRIES)) + u,
        table="state",
    ),
    Kind(
        "map",
        lambda: mr.Map("long", "long"),
        fill=lambda s, k: s.update(dict.fromkeys(range(ENTRIES), k)),
        update=lambda s, k: s.set(0, s[0] + 1),
        read=lambda s, k: s[1],
        total=lambda s: sum(s.values()),
        expected=lambda k, u: ENTRIES * k + u,
        table="state",
    ),
    Kind(
        "set",
        lambda: mr.Set("long"),
        fill=lambda s, k: [s.add(n) for n in range(ENTRIES)],
        update=lambda s, k: s.add(len(s)),
        read=lambda s, k: 1 in s,
        total=lambda s: len(s),
        expected=lambda k, u: ENTRIES + u,
        table="state",
    ),
)
