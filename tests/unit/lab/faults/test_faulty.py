"""The store that fails, and a journal that lives with it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

from millrace import clock
from millrace.errors import AlreadyExistsError, FencedError, StoreError, UsageError
from millrace.ids import Epoch
from millrace.log import Journal
from millrace.log import journal as journal_module
from millrace.log.retention import collect
from millrace.log.store import LocalStore, open_store
from millrace_lab.faults import faulty
from millrace_lab.faults.faulty import Faults, FaultyStore

SCHEMA = pa.schema([("n", pa.int64())])


def failing(root: Path, seed: int = 0, **rates: float) -> FaultyStore:
    return FaultyStore(LocalStore(str(root)), Faults(**rates), random.Random(seed))


def test_the_environment_says_how_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in faulty.environment("seed=7,error=1").items():
        monkeypatch.setenv(name, value)
    store = open_store(str(tmp_path))
    assert open_store(str(tmp_path)) is store
    with pytest.raises(StoreError, match=r"cannot read .*/a: an injected fault"):
        store.read("a")
    monkeypatch.delenv(faulty.VARIABLE)
    assert isinstance(open_store(str(tmp_path)), LocalStore)


def test_faults_are_written_as_they_are_read() -> None:
    faults = Faults(error=0.5, stale=0.25, seed="s")
    assert Faults.parse(str(faults)) == faults
    with pytest.raises(UsageError, match=r"there is no fault 'eror'; there are after, error"):
        Faults.parse("eror=1")
    with pytest.raises(UsageError, match="could not convert"):
        Faults.parse("error=often")


def test_an_error_before_and_after_the_fact(tmp_path: Path) -> None:
    plain = LocalStore(str(tmp_path))
    with pytest.raises(StoreError):
        failing(tmp_path, partial=1).create("a", b"1234")
    assert plain.size("a") is None
    with pytest.raises(StoreError):
        failing(tmp_path, after=1).create("a", b"1234")
    assert plain.read("a") == b"1234"


def test_half_a_file(tmp_path: Path) -> None:
    store = failing(tmp_path, partial=1)
    sizes = set()
    for number in range(20):
        with pytest.raises(StoreError):
            store.put(f"f{number}", b"0123456789")
        sizes.add(len(LocalStore(str(tmp_path)).read(f"f{number}")))
    assert len(sizes) > 3
    assert store.faults == 20


def test_a_request_that_arrives_late_does_not_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "stopwatch", lambda: now[0])
    store = failing(tmp_path, late=1)
    for name in ("a", "b"):
        with pytest.raises(StoreError):
            store.create(name, b"late")
    assert store.list("") == []
    LocalStore(str(tmp_path)).create("a", b"first")
    now[0] = faulty.LATE_SECONDS
    assert store.read("b") == b"late"
    assert store.read("a") == b"first"


def test_a_request_that_arrives_twice_finds_itself(tmp_path: Path) -> None:
    store = failing(tmp_path, twice=1)
    with pytest.raises(AlreadyExistsError):
        store.create("a", b"1")
    assert store.read("a") == b"1"


def driven(root: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(journal_module, "FULL_EVERY", 5)
    location = Location(str(root), SCHEMA, 4)
    location.journal.store = store
    return location


def test_a_commit_that_arrives_twice_is_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = driven(tmp_path / "l", failing(tmp_path / "l", twice=1), monkeypatch)
    for epoch in range(1, 4):
        location.step({fingerprint(epoch): (epoch,)})
        assert location.journal.head() == epoch


def test_a_manifest_that_arrives_late_fences_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "stopwatch", lambda: now[0])
    store = failing(tmp_path / "l", late=1)
    store.faulty = False
    location = driven(tmp_path / "l", store, monkeypatch)
    location.step({fingerprint(1): (1,)})
    store.faulty = True
    with pytest.raises(StoreError):
        location.commit([], run="dead")
    store.faulty = False
    successor = Location(str(tmp_path / "l"), SCHEMA, 4)
    now[0] = faulty.LATE_SECONDS
    store.size("anything")
    with pytest.raises(FencedError, match=r"epoch 2 .* was committed by run dead"):
        successor.commit([], run="alive")


@pytest.mark.parametrize("seed", range(8))
def test_lists_that_lag_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The head is found, and a collection takes nothing that is needed."""
    store = failing(tmp_path / "l", seed, stale=1)
    location = driven(tmp_path / "l", store, monkeypatch)
    for epoch in range(1, 30):
        location.step({fingerprint(k): (epoch,) for k in range(epoch % 3, 30, 3)})
        assert Journal(store, location.journal.identity).head() == epoch
        collect(location.journal, 2)
        state = Location(str(tmp_path / "l"), SCHEMA, 4)
        for kept in (Epoch(epoch), Epoch(max(1, epoch - 1))):
            for entry in state.journal.trail(kept).segments():
                assert state.store.size(entry.path) == entry.bytes
