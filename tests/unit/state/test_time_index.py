"""Rows that are due: against looking at all of them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from tests.stress import few
from tests.unit.driving import Location, State, fingerprint, updated

from millrace.keygroups import Assignment
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.time_index import TimeIndex

SCHEMA = pa.schema([("time", pa.int64())])


def expired(
    replica: Replica, groups: np.ndarray, now: int, since: int | None = None
) -> list[tuple[int, int]]:
    index = TimeIndex(replica, "time", step=3)
    addresses = index.due(groups, now) if since is None else index.between(groups, since, now)
    hi, lo, time = (c.to_pylist() for c in replica.gather(addresses, ["_hi", "_lo", "time"]))
    assert all(t <= now for t in time)
    found = list(zip(hi, lo, strict=True))
    assert len(set(found)) == len(found)
    return sorted(found)


def brute_force(state: State, groups: np.ndarray, now: int) -> list[tuple[int, int]]:
    mine = set(groups.tolist())
    return sorted(key for key, (time,) in state.items() if time <= now and key[0] >> 60 in mine)


@pytest.mark.parametrize("seed", few(range(5), 0, 1))
def test_what_is_due_equals_what_is_found_by_looking_at_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "RUN_PIECES", 4)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    chance = random.Random(seed)
    location = Location(f"memory://times-{seed}", SCHEMA)
    replica, state, now = location.replica(), {}, 0  # type: tuple[Replica, State, int]
    keys = [fingerprint(n) for n in range(60)]
    for _ in range(50):
        if chance.random() < 0.1:
            # Another replica has other pages, whatever their numbers.
            replica = location.replica()
        location.follow(replica)
        now += chance.randrange(4)
        parts = chance.choice([1, 1, 3])
        assignment = Assignment.even(16, parts)
        fired: list[tuple[int, int]] = []
        for part in range(parts):
            groups = assignment.groups_of(part)  # type: ignore[arg-type]
            found = expired(replica, groups, now)
            assert found == brute_force(state, groups, now)
            # A failed epoch asks again.
            assert expired(replica, groups, now) == found
            since, until = now + chance.randrange(-9, 9), now + chance.randrange(20)
            within = expired(replica, groups, until, since)
            before = set(brute_force(state, groups, since - 1))
            assert within == [k for k in brute_force(state, groups, until) if k not in before]
            fired += found
        changes: dict[tuple[int, int], tuple[int] | None] = {}
        if chance.random() < 0.8:
            changes |= dict.fromkeys(fired)
        for key in chance.sample(keys, chance.randrange(1, 8)):
            absent = chance.random() < 0.2
            changes[key] = None if absent else (now + chance.randrange(1, 20),)
        location.step(changes)
        state = updated(state, changes)
    assert state


def test_nothing_is_due_in_an_empty_table() -> None:
    location = Location("memory://times-empty", SCHEMA)
    replica = location.follow(location.replica())
    assert len(TimeIndex(replica, "time").due(location.every, 10**9)) == 0
    assert len(TimeIndex(replica, "time").between(location.every, -5, 10**9)) == 0
