"""Replicas that a process keeps, however long it was away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.restoring import Backup
from tests.unit.driving import OPERATOR, Location, State, fingerprint, to_state

import millrace as mr
from millrace.errors import EpochFailedError
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


def opened(cache: ReplicaCache, location: Location, version: int) -> CachedVersion:
    checksum = location.journal.trail(Epoch(version)).checksum
    identity = location.journal.identity
    return cache.at(location.store.url, identity, Epoch(version), checksum)


def followed(cache: ReplicaCache, location: Location, version: int) -> CachedVersion:
    identity = location.journal.identity
    return cache.at_least(location.store.url, identity, Epoch(version))


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
    held = followed(cache, location, 2)
    assert held.version == 3
    run(location, 2)
    assert followed(cache, location, 3).version == 5
    assert followed(cache, location, 1).version == 5
    assert state(followed(cache, location, 5)) == location.state()


def test_at_least_goes_on_where_the_next_manifests_were_collected(
    cache: ReplicaCache, location: Location
) -> None:
    run(location, 2)
    state(opened(cache, location, 2))
    with mr.open(location.store.url, epoch=2):
        run(location, 20)
        collect(location.journal, 1)
        held = followed(cache, location, 22)
        assert held.version == 22
        assert held.holds(OPERATOR) == set(range(16)), "it is the same history: they stay warm"
        assert state(held) == location.state()


@pytest.fixture
def lost(cache: ReplicaCache, location: Location) -> Location:
    """A location that was restored to epoch 3, with a process that is at the lost epoch 6."""
    run(location, 3)
    backup = Backup(location.store.url)
    run(location, 3)
    state(opened(cache, location, 6))
    backup.restore()
    return Location(location.store.url, SCHEMA)


def other_epochs(location: Location, epochs: int) -> None:
    """Of a history without anything of the lost one."""
    for _ in range(epochs):
        location.step({fingerprint(100 + int(location.epoch)): (-1,)})


@pytest.mark.parametrize("epochs", [2, 3, 4, 30], ids=lambda n: f"{n} epochs later")
def test_a_lost_history_is_not_mixed_with_the_new_one(
    cache: ReplicaCache, lost: Location, epochs: int
) -> None:
    other_epochs(lost, epochs)
    if epochs == 30:
        collect(lost.journal, 1)
        assert lost.journal.epochs()[0] > 6, "no manifest says what became of the lost epochs"
    assert state(opened(cache, lost, int(lost.epoch))) == lost.state()


@pytest.mark.parametrize("epochs", [1, 3, 4], ids=lambda n: f"{n} epochs later")
def test_following_does_not_go_on_from_a_lost_history(
    cache: ReplicaCache, lost: Location, epochs: int
) -> None:
    other_epochs(lost, epochs)
    held = followed(cache, lost, 4)
    assert held.version == lost.epoch
    assert state(held) == lost.state()


def test_a_task_of_a_history_that_was_lost_is_refused(cache: ReplicaCache, lost: Location) -> None:
    """Its driver has not noticed yet that the location was restored."""
    other_epochs(lost, 3)
    with pytest.raises(EpochFailedError, match="restored while the query ran"):
        cache.at(lost.store.url, lost.journal.identity, Epoch(6), "the lost epoch 6")


def test_a_cleared_cache_starts_over(cache: ReplicaCache, location: Location) -> None:
    run(location, 3)
    assert state(opened(cache, location, 3)) == location.state()
    assert cache.heap_bytes > 0
    cache.clear()
    assert cache.heap_bytes == 0
    assert opened(cache, location, 3).holds(OPERATOR) == set()
    assert state(opened(cache, location, 3)) == location.state()
