"""Exports and imports of operators over event time: what goes on at the new place goes on as here.

An operator runs for some minutes, its state is moved, and then it runs in both places on the same
rows: they emit, count and show the same.
"""

from __future__ import annotations

import copy
import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.stress import few

import millrace as mr
from millrace import clock
from millrace.epoch.local import LocalShards
from millrace.interchange.transfer import FORMATS, export, import_state
from millrace.keygroups import Assignment
from millrace.log import Journal, open_store
from millrace.testing.epochs import START, OperatorHarness
from millrace.testing.joins import TwoStreamHarness

MINUTE = dt.timedelta(minutes=1)
BEHIND = (0, 1, 1, 2, 3, 3, 9)
"""By how many minutes rows come late."""
KEY_GROUPS = 64
"""At the new place; a harness has 16."""

ROWS: dict[str, Any] = {
    "key": "id",
    "schema": "id long, at timestamp, value long",
    "event_time": "at",
}
AGGREGATES: dict[str, Any] = {
    "n": mr.count(),
    "total": mr.sum("value"),
    "values": mr.collect_list("value"),
}
TWO: dict[str, Any] = {
    "on": "id",
    "left": "id long, at timestamp, a long",
    "right": "id long, seen timestamp, b long",
    "left_time": "at",
    "right_time": "seen",
}


def windows(size: Any, **options: Any) -> OperatorHarness[Any]:
    return mr.testing.WindowHarness(size=size, aggregates=AGGREGATES, **ROWS, **options)


def sessions(emit: str) -> OperatorHarness[Any]:
    return mr.testing.SessionHarness(
        gap="90 seconds", aggregates=AGGREGATES, emit=emit, shards=2, **ROWS
    )


def join(how: str) -> OperatorHarness[Any]:
    return mr.testing.JoinHarness(within=("-2 minutes", "3 minutes"), how=how, **TWO)


LENGTHS = ["2 minutes", "3 minutes", "6 minutes"]
HARNESSES: dict[str, Callable[[], OperatorHarness[Any]]] = {
    "tumbling windows": lambda: windows("4 minutes", shards=3),
    "hopping windows": lambda: windows("4 minutes", slide="1 minute", emit="early=2 minutes"),
    "tiles to be read": lambda: windows(LENGTHS, slide="1 minute", emit="none"),
    "tiles": lambda: windows(LENGTHS, slide="1 minute", emit="final"),
    "sessions": lambda: sessions("final"),
    "early sessions": lambda: sessions("early=2 minutes"),
    "dedup within the watermark": lambda: mr.testing.DedupHarness(watermark="3 minutes", **ROWS),
    "dedup for a time": lambda: mr.testing.DedupHarness(ttl="3 minutes", **ROWS),
    "dedup for ever": lambda: mr.testing.DedupHarness(ttl=None, **ROWS),
    "inner join": lambda: join("inner"),
    "left join": lambda: join("left"),
    "full join": lambda: join("full"),
    "anti join": lambda: join("anti"),
    "as of": lambda: mr.testing.AsOfHarness(tolerance="4 minutes", **TWO),
    "lookup": lambda: mr.testing.LookupHarness(
        on="id", left=TWO["left"], right=TWO["right"], right_time="seen"
    ),
}
NEVER_EMPTY = ("dedup for a time", "dedup for ever", "lookup")
"""What keeps keys by another time than the watermark, or the newest row of each."""


def moved(harness: OperatorHarness[Any], way: str) -> OperatorHarness[Any]:
    """The same operator over a copy of the state, which takes this way."""
    shards = harness._shards
    # What Spark keeps of a query: without it, the watermark would start over.
    logs = [f"spark/{log}/{shards.trail.batch_id}" for log in ("offsets", "commits")]
    for path in logs:
        shards.journal.store.put(path, b"v1\n{}\n{}")
    source = harness.location
    if way in FORMATS:
        source = export(source, f"{source}-exported", file_format=way).location
    place = f"memory://moved-{clock.fresh_id()}"
    import_state(source, place, key_groups=KEY_GROUPS, parallelism=3)
    twin = copy.copy(harness)
    journal = Journal.open(open_store(place))
    for path in logs:
        # A harness numbers its batches as its epochs, which begin again at the new place.
        journal.store.delete(path)
        shards.journal.store.delete(path)
    twin._shards = LocalShards(journal, harness._operator, Assignment.even(KEY_GROUPS, 3))
    twin.counters = dict(harness.counters)
    return twin


def sent(harness: OperatorHarness[Any], minute: int, seed: str) -> list[Any]:
    """What comes out in a minute in which rows come, and both clocks go on."""
    chance = random.Random(f"{seed} {minute}")
    rows = [
        (
            chance.choice([None, *range(6 + minute)]),
            chance.choice([None, *6 * [START + (minute - chance.choice(BEHIND)) * MINUTE]]),
            100 * minute + number,
        )
        for number in range(8)
    ]
    if isinstance(harness, TwoStreamHarness):
        left = [{"id": key, "at": at, "a": value} for key, at, value in rows[:5]]
        right = [{"id": key, "seen": at, "b": value} for key, at, value in rows[3:]]
        found = [harness.send(left=left, right=right)]
    else:
        found = [harness.send({"id": key, "at": at, "value": v} for key, at, v in rows)]
    found.append(harness.advance_time(MINUTE))
    found.append(harness.advance_watermark(START + (minute - 2) * MINUTE))
    # Shards have no order among each other.
    return [
        (
            sorted(map(repr, one)),
            {name: sorted(map(repr, rows)) for name, rows in one._sides.items()},
        )
        for one in found
    ]


def shown(harness: OperatorHarness[Any]) -> list[str]:
    """All that a reader sees."""
    with mr.open(harness.location) as reader:
        return sorted(map(repr, reader.to_arrow().to_pylist()))


@pytest.mark.parametrize("way", few(["location", *FORMATS], "parquet"))
@pytest.mark.parametrize("kind", HARNESSES)
def test_it_goes_on_where_it_was(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = HARNESSES[kind]()
    monkeypatch.setattr("millrace.clock.now_ms", lambda: here._time_us // 1000)
    for minute in range(6):
        sent(here, minute, kind)
    there = moved(here, way)
    assert shown(here) == shown(there)
    assert shown(here) or kind == "anti join"
    emitted = 0
    for minute in range(6, 11):
        ours, theirs = sent(here, minute, kind), sent(there, minute, kind)
        assert ours == theirs
        assert here.counters == there.counters
        assert shown(here) == shown(there)
        emitted += sum(len(rows) for rows, _ in ours)
    assert emitted or kind == "tiles to be read"
    assert here.counters.get("late", 0) > 0 or kind in NEVER_EMPTY
    # All that the watermark lets go comes out, or is forgotten.
    last = [sorted(map(repr, h.advance_watermark(START + 90 * MINUTE))) for h in (here, there)]
    assert last[0] == last[1]
    assert (shown(there) == []) == (kind not in NEVER_EMPTY)


@pytest.mark.parametrize("way", ["location", "parquet"])
def test_new_rows_never_take_the_place_of_those_that_wait(way: str) -> None:
    """Rows of one key and time differ by their number alone, in which their epoch is."""
    here = join("inner")
    for number in range(4):
        here.send(left=[{"id": 1, "at": START, "a": number}])
    there = moved(here, way)
    for number in range(4, 12):
        there.send(left=[{"id": 1, "at": START, "a": number}])
    pairs = there.send(right=[{"id": 1, "seen": START, "b": 0}])
    assert sorted(row[2] for row in pairs) == list(range(12))


@pytest.mark.parametrize("way", ["location", *FORMATS])
@pytest.mark.parametrize("kind", ["tumbling windows", "full join", "dedup within the watermark"])
def test_state_that_has_let_everything_go(kind: str, way: str) -> None:
    here = HARNESSES[kind]()
    for minute in range(4):
        sent(here, minute, kind)
    here.advance_watermark(START + 10 * MINUTE)
    there = moved(here, way)
    assert shown(here) == shown(there) == []
    # What was late stays late.
    for minute in (12, 13, 15):
        assert sent(here, minute, kind) == sent(there, minute, kind)
    assert here.counters == there.counters
