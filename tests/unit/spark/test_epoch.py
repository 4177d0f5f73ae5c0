"""Epochs without rows: moves that go on and end while no batch comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.reconfigure.test_director import Executors
from tests.unit.serve.counting import NAME, Counting

import millrace as mr
from millrace.errors import FencedError, StoreError
from millrace.ids import table_name
from millrace.keygroups import Assignment
from millrace.log.spark_logs import OFFSETS
from millrace.log.store import Store
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests
from millrace.reconfigure.strategies import STRATEGIES
from millrace.spark.epoch import EpochRunner

GROUPS = 16


class Idle:
    """A driver on a location with some epochs, for which no batch comes."""

    def __init__(self, url: str, epochs: int = 2, shards: int = 2) -> None:
        self.counting = Counting(url, key_groups=GROUPS)
        for _ in range(epochs):
            self.counting.epoch({f"key-{i}": (1, i) for i in range(50)})
        self.journal = self.counting.journal
        self.start(shards)

    def start(self, shards: int) -> None:
        self.requests = Requests(self.journal.store)
        assignments = {NAME: Assignment.even(GROUPS, shards)}
        cluster = Executors("a", "b", "c", "d")
        self.director = Director(cluster, self.requests, "run", assignments, DirectorOptions())
        spark: Any = None
        self.runner = EpochRunner(
            self.journal, [self.counting.operator], spark, self.director, spark, spark, run_id="run"
        )

    def step(self) -> int | None:
        """What the threads beside the epochs do, once."""
        epoch = self.runner.run_without_rows()
        if self.director.restarting.is_set():
            self.director.adopt()
            self.runner._is_first = True
        if self.director.has_work():
            self.director.follow_once()
        return epoch

    def assignment(self) -> Assignment:
        """That of the newest manifest."""
        found = self.journal.newest().operator(table_name(NAME)).assignment
        assert found is not None
        return found


@pytest.fixture
def idle(tmp_path: Path) -> Idle:
    return Idle(str(tmp_path))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rescale_ends_without_a_batch(idle: Idle, strategy: str) -> None:
    before = idle.journal.newest()
    with mr.open(idle.counting.url) as reader:
        rows = reader.to_arrow()
    # The first step of a run places the shards on the executors of now.
    idle.step()
    move = idle.director.submit("rescale", strategy, parallelism=4)
    steps = 0
    while move.is_open:
        idle.step()
        steps += 1
        assert steps < 40
    move.wait(0)
    answer = idle.requests.answered(move.id)
    assert answer is not None
    assert answer.state == "done"
    # It is done when a manifest says so.
    assert idle.assignment() == idle.director.assignments()[NAME]
    assert idle.assignment().shards == 4
    after = idle.journal.newest()
    assert after.epoch > before.epoch
    assert after.batch_id == before.batch_id
    assert (after.watermark_ms, after.processing_ms) == (before.watermark_ms, before.processing_ms)
    with mr.open(idle.counting.url) as reader:
        assert reader.to_arrow() == rows
    # Then nothing is left to do.
    assert idle.step() is None
    assert idle.journal.head() == after.epoch


def test_with_nothing_asked_there_is_no_epoch(idle: Idle) -> None:
    idle.step()
    head = idle.journal.head()
    assert not idle.director.waits_for_epoch
    for _ in range(3):
        assert idle.step() is None
    assert idle.journal.head() == head


def test_before_the_first_epoch_a_request_waits(tmp_path: Path) -> None:
    idle = Idle(str(tmp_path), epochs=0)
    move = idle.director.submit("rescale", "pause", parallelism=4)
    for _ in range(3):
        assert idle.step() is None
    assert move.is_open
    assert idle.journal.head() == 0


class Forgetful:
    """A store that writes a file, and says that it has not."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, path: str, data: bytes) -> None:
        if self.fails and path.startswith("manifests/"):
            self.fails = False
            if self.writes:
                self._store.create(path, data)
            raise StoreError("no network")
        self._store.create(path, data)

    writes = True


@pytest.mark.parametrize("writes", [True, False])
def test_an_epoch_that_may_have_been_committed_is_looked_for(idle: Idle, writes: bool) -> None:
    idle.step()
    head = idle.journal.head()
    store: Any = Forgetful(idle.journal.store)
    store.writes = writes
    idle.journal.store = store
    move = idle.director.submit("rescale", "pause", parallelism=4)
    with pytest.raises(StoreError):
        idle.step()
    while move.is_open:
        idle.step()
    assert idle.assignment().shards == 4
    assert idle.journal.head() == head + 1 + writes


def test_another_driver_is_noticed(idle: Idle) -> None:
    idle.step()
    idle.director.submit("rescale", "pause", parallelism=4)
    other = Idle(idle.counting.url, epochs=0)
    other.director.submit("rescale", "pause", parallelism=3)
    assert other.step() is not None
    head = other.journal.head()
    # One that has not run a batch yet does not get in the way of the other.
    assert idle.step() is None
    assert other.journal.head() == head
    idle.runner._is_first = False
    with pytest.raises(FencedError, match="only one query may run on a location"):
        idle.step()


def test_an_epoch_without_rows_waits_for_a_batch_that_was_begun(idle: Idle) -> None:
    idle.step()
    idle.director.submit("rescale", "pause", parallelism=4)
    head = idle.journal.head()
    batch = idle.journal.newest().batch_id
    assert batch is not None
    # By this driver's Spark, or by that of a driver which has replaced this one.
    idle.journal.store.put(f"{OFFSETS}/{batch + 1}", b"v1")
    assert idle.step() is None
    assert idle.journal.head() == head
    idle.journal.store.delete(f"{OFFSETS}/{batch + 1}")
    assert idle.step() == head + 1
