"""Replicas that a process keeps, however long it was away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, State, fingerprint, to_state

from millrace.ids import Epoch
from millrace.log import journal
from millrace.log.retention import collect
from millrace.state.cache import CachedVersion, ReplicaCache

SCHEMA = pa.schema([("n", pa.int64())])
EVERY = np.arange(16)


@pytest.fixture(autouse=True)
def few_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FULL_EVERY", 4)


@pytest.fixture
def cache() -> ReplicaCache:
    return ReplicaCache()


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(str(tmp_path), SCHEMA)


def run(location: Location, epochs: int) -> None:
    for _ in range(epochs):
        location.step({fingerprint(int(location.epoch) % 7): (int(location.epoch),)})


def opened(
    cache: ReplicaCache, location: Location, version: int, *, at_least: bool = False
) -> CachedVersion:
    query = location.journal.identity.query
    url = location.store.url
    return cache.at(url, query, 16, Epoch(version), at_least=at_least)


def state(held: CachedVersion) -> State:
    return to_state(held.replica(OPERATOR, SCHEMA, False, EVERY).read(EVERY))


def test_a_cache_follows_from_epoch_to_epoch(cache: ReplicaCache, location: Location) -> None:
    for epoch in range(1, 10):
        run(location, 1)
        held = opened(cache, location, epoch)
        assert held.version == epoch
        assert state(held) == location.state()
        assert held.holds(OPERATOR) == set(range(16))


def test_a_process_that_was_away_for_longer_than_manifests_are_kept(
    cache: ReplicaCache, location: Location
) -> None:
    run(location, 2)
    assert state(opened(cache, location, 2)) == location.state()
    run(location, 20)
    collect(location.journal, 1)
    assert location.journal.epochs()[0] > 3
    held = opened(cache, location, 22)
    assert state(held) == location.state()
    run(location, 1)
    assert state(opened(cache, location, 23)) == location.state()


def test_a_task_that_is_older_than_what_the_process_has_seen(
    cache: ReplicaCache, location: Location
) -> None:
    run(location, 3)
    old = location.state()
    run(location, 3)
    assert state(opened(cache, location, 6)) == location.state()
    assert state(opened(cache, location, 3)) == old
    assert state(opened(cache, location, 6)) == location.state()


def test_at_least_goes_on_to_the_last_committed_epoch(
    cache: ReplicaCache, location: Location
) -> None:
    run(location, 3)
    held = opened(cache, location, 2, at_least=True)
    assert held.version == 3
    run(location, 2)
    assert opened(cache, location, 3, at_least=True).version == 5
    assert opened(cache, location, 1, at_least=True).version == 5


def test_a_cleared_cache_starts_over(cache: ReplicaCache, location: Location) -> None:
    run(location, 3)
    assert state(opened(cache, location, 3)) == location.state()
    assert cache.heap_bytes > 0
    cache.clear()
    assert cache.heap_bytes == 0
    assert opened(cache, location, 3).holds(OPERATOR) == set()
    assert state(opened(cache, location, 3)) == location.state()
