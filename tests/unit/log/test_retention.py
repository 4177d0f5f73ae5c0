"""Retention: nothing a kept epoch needs is deleted, and everything else is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, State, fingerprint, updated

from millrace.errors import FencedError, UnknownEpochError
from millrace.ids import Epoch
from millrace.log import Journal
from millrace.log import journal as journal_module
from millrace.log.layout import segment_epoch
from millrace.log.leases import Holder
from millrace.log.manifest import manifest_path
from millrace.log.retention import Swept, collect

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(journal_module, "FULL_EVERY", 5)
    return Location(str(tmp_path / "location"), SCHEMA, 4)


def run(location: Location, epochs: int) -> dict[int, State]:
    """Epochs that touch a third of the keys each: segments stay live for different times."""
    history: dict[int, State] = {0: {}}
    for _ in range(epochs):
        epoch = location.epoch + 1
        changes = {fingerprint(k): (epoch,) for k in range(epoch % 3, 30, 3)}
        location.step(changes)
        history[epoch] = updated(history.get(epoch - 1, {}), changes)
    return history


def live_paths(location: Location, epochs: list[Epoch]) -> set[str]:
    return {e.path for at in epochs for e in location.journal.trail(at).segments()}


@pytest.mark.parametrize("retain", [1, 2, 5, 7, 22, 23, 24, 1000])
def test_kept_epochs_can_be_read_and_nothing_else_is_kept(location: Location, retain: int) -> None:
    history = run(location, 23)
    swept = collect(location.journal, retain)
    kept = location.journal.epochs()
    assert kept == list(range(kept[0], 24))
    # At least what was asked for; at most back to the full manifest before that.
    assert kept[0] <= max(1, 23 - retain + 1)
    assert max(1, 23 - retain + 1) - kept[0] < 5
    for epoch in kept:
        assert location.state(epoch) == history[epoch]
    assert set(location.store.list("segments")) == live_paths(location, kept)
    assert swept.manifests == 23 - len(kept)
    assert collect(location.journal, retain) == Swept(0, 0)


def test_what_is_no_longer_retained_says_so(location: Location) -> None:
    run(location, 23)
    collect(location.journal, 2)
    first = location.journal.epochs()[0]
    with pytest.raises(UnknownEpochError, match=rf"epochs {first} to 23 are retained"):
        location.state(first - 1)


def test_orphans_go_and_files_being_written_stay(location: Location) -> None:
    run(location, 4)
    store = location.store
    orphan = location.write(location.replica(), location.every, {fingerprint(1): (0,)})
    store.put("segments/table/stray", b"x")
    store.put("segments/table/000000000003-0000-zombie.arrow", b"half")
    collect(location.journal, 100)
    assert store.size(orphan.path) is not None
    assert store.size("segments/table/stray") is None
    assert store.size("segments/table/000000000003-0000-zombie.arrow") is None
    # Once the epoch is committed without it, the orphan goes too.
    location.step({fingerprint(1): (5,)})
    collect(location.journal, 100)
    assert store.size(orphan.path) is None
    assert location.state()[fingerprint(1)] == (5,)


def test_nothing_to_collect(location: Location) -> None:
    location.store.put("segments/table/000000000001-0000-a.arrow", b"being written")
    assert collect(location.journal, 1) == Swept(0, 0)
    assert location.store.list("segments") != []


def test_a_collection_that_was_interrupted_is_finished_by_the_next(location: Location) -> None:
    history = run(location, 23)
    for epoch in range(1, 9):
        location.store.delete(manifest_path(Epoch(epoch)))
    for retain in (1000, 3):
        collect(location.journal, retain)
        kept = location.journal.epochs()
        assert kept[0] > 8
        for epoch in kept:
            assert location.state(epoch) == history[epoch]


def test_a_reader_keeps_its_segments_though_its_manifest_is_gone(location: Location) -> None:
    """It read the manifest, then a collection deleted that, and only then was its lease there."""
    run(location, 23)
    needed = live_paths(location, [Epoch(9)])
    for epoch in range(1, 12):
        location.store.delete(manifest_path(Epoch(epoch)))
    holder = Holder(location.store, Epoch(9))
    holder.hold(Epoch(9))
    collect(location.journal, 1)
    assert needed <= set(location.store.list("segments"))
    holder.release()
    collect(location.journal, 1)
    kept = location.journal.epochs()
    assert set(location.store.list("segments")) == live_paths(location, kept)
    assert not needed <= live_paths(location, kept)


def test_a_driver_that_slept_through_a_collection_is_fenced(location: Location) -> None:
    """The name of its epoch is free again; it must not be able to take it."""
    run(location, 3)
    sleeper = Location(location.store.url, SCHEMA, 4)
    entry = sleeper.write(sleeper.replica(), sleeper.every, {fingerprint(70): (1,)})
    run(location, 20)
    collect(location.journal, 1)
    before = location.journal.epochs()
    assert 4 not in before
    with pytest.raises(FencedError, match=r"epoch 4 of .*up to epoch 23.*stop one"):
        sleeper.commit([entry])
    collect(location.journal, 1)
    assert location.journal.epochs() == before


def test_a_running_driver_is_not_disturbed(location: Location) -> None:
    history = run(location, 12)
    for _ in range(12):
        epoch = location.epoch + 1
        changes = {fingerprint(epoch): (epoch,)}
        location.step(changes)
        history[epoch] = updated(history[epoch - 1], changes)
        collect(location.journal, 1)
        assert location.state() == history[epoch]
    again = Journal.open(location.store)
    assert again.trail(again.head()).checksum == location.trail.checksum


@pytest.mark.parametrize(
    ("path", "epoch"),
    [("segments/op/000000000012-0001-abc.arrow", 12), ("segments/op/notes.txt", 0)],
)
def test_segment_epoch(path: str, epoch: int) -> None:
    assert segment_epoch(path) == epoch
