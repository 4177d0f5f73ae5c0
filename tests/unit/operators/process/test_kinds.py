"""The registry of kinds of state: complete, and with the tables that locations have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from millrace.operators.operator import MAIN
from millrace.operators.process.declarations import Declaration
from millrace.operators.process.kinds import KINDS
from millrace.operators.process.layout import layout
from millrace.operators.process.shared.declarations import Broadcast, TaskState

KEY = pa.field("k", pa.int64())


def subclasses(kind: type) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_declaration_is_of_a_kind_of_the_registry_and_every_kind_can_be_declared() -> None:
    assert {Broadcast.kind, TaskState.kind} == {"broadcast", "task"}
    assert {each.kind for each in subclasses(Declaration)} - {""} == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "main", "table"),
    [
        *((kind, ["s"], None) for kind in ("value", "reducing", "aggregating", "pickled")),
        ("list", ["s.start", "s.end"], ["position", "value"]),
        ("map", ["s.size"], ["key", "value"]),
        ("set", ["s.size"], ["member"]),
        ("broadcast", [], ["key", "value"]),
        ("task", [], ["shard", "groups", "value"]),
    ],
)
@pytest.mark.parametrize("ttl", [None, [1000, "event"]], ids=["", "ttl"])
def test_a_location_has_these_columns(
    kind: str, main: list[str], table: list[str] | None, ttl: Any
) -> None:
    given = [T.LongType().jsonValue() for _ in KINDS[kind].columns]
    tables = layout([KEY], [{"name": "s", "kind": kind, "types": given, "ttl": ttl}])
    if ttl is not None and main:
        main = [*main, *(["s.mixed"] if kind == "list" else []), "s.expires"]
        table = table and [*table, "expires"]
    assert tables[MAIN].schema.names == ["k", *main]
    assert set(tables) - {MAIN} == ({"s"} if table else set())
    if table:
        assert tables["s"].schema.names == table
        assert tables["s"].owned == bool(main)
        assert tables["s"].everywhere != bool(main)
        assert tables["s"].per_shard == (kind == "task")


@pytest.mark.parametrize("time", ["event", "processing"])
def test_timers_of_one_time_share_a_table(time: str) -> None:
    timers = [{"name": name, "kind": f"{time}-time timer"} for name in ("a", "b")]
    tables = layout([KEY], timers)
    assert tables[MAIN].schema.names == ["k", f"timers.{time}.size"]
    assert tables[f"timers.{time}"].schema.names == ["timer", "label", "time"]
