"""Leases: what a reader has open is not collected, on whichever process."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reading.streams import Counted, as_oracle, draw

import millrace as mr
from millrace import clock
from millrace.errors import UnknownEpochError
from millrace.ids import Epoch
from millrace.log import journal as journal_module
from millrace.log import leases as leases_module
from millrace.log.inspection import inspect
from millrace.log.leases import GRACE_MS, LASTS_MS, RENEW_MS, Holder, Lease, leases
from millrace.log.manifest import manifest_path
from millrace.log.retention import collect
from millrace.reading import reader as reader_module


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock, in a list of one."""
    time = [1_700_000_000_000]
    monkeypatch.setattr(clock, "now_ms", lambda: time[0])
    return time


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(journal_module, "FULL_EVERY", 5)
    counted = Counted(str(tmp_path / "location"), 4)
    run(counted, 23)
    return counted


def run(counted: Counted, epochs: int) -> None:
    rng = random.Random(epochs)
    for _ in range(epochs):
        counted.send(draw(rng, 20, 10))


def test_names_can_be_read_back() -> None:
    for lease in (Lease(Epoch(12), True, 5, "ab"), Lease(Epoch(1), False, 10**13, "cd")):
        assert Lease.parse(lease.path) == lease
    for odd in ("leases/x.json", "leases/1-only-2-a.json.tmp", "leases/1-some-2-a.json"):
        assert Lease.parse(odd) is None
    assert Lease.parse("leases/1-only-x-a.json") is None


def test_an_open_reader_keeps_its_epoch_and_nothing_else(stream: Counted) -> None:
    with mr.open(stream.url, epoch=7) as reader:
        assert reader.is_leased
        collect(stream.journal, 2)
        kept = stream.journal.epochs()
        # Epoch 7 back to a full manifest, and the last ones back to another.
        assert kept == [5, 6, 7, 20, 21, 22, 23] or kept == [6, 7, 21, 22, 23]
        # Reads that begin only now, in this reader and in others.
        assert as_oracle(reader.to_arrow()) == stream.history[7]
        for epoch in kept:
            assert as_oracle(mr.open(stream.url, epoch=epoch).to_arrow()) == stream.history[epoch]
        found = inspect(stream.journal)
        assert found.is_sound
        assert not found.orphans
        assert not found.strangers
        with pytest.raises(UnknownEpochError, match=r"epochs \d to 7, 2\d to 23 are retained"):
            mr.open(stream.url, epoch=12)
        # The gap does not confuse later collections, however much they want to keep.
        run(stream, 3)
        collect(stream.journal, 100)
        assert set(kept) <= set(stream.journal.epochs())
        assert as_oracle(reader.to_arrow()) == stream.history[7]
    collect(stream.journal, 2)
    assert stream.journal.epochs()[0] >= 20
    assert stream.store_is_tidy()


def test_a_reader_that_follows_keeps_what_is_to_come(stream: Counted) -> None:
    with mr.open(stream.url) as reader:
        assert reader.refresh() == 23
        run(stream, 20)
        collect(stream.journal, 1)
        # None of the manifests that it has to follow is gone.
        assert as_oracle(reader.to_arrow()) == stream.history[23]
        assert reader.refresh() == 43
        assert as_oracle(reader.to_arrow()) == stream.history[43]
    collect(stream.journal, 1)
    assert stream.journal.epochs()[0] > 38


def test_a_lease_is_renewed_and_ends(stream: Counted, now: list[int]) -> None:
    store = stream.journal.store
    holder = Holder(store, Epoch(7))
    (first,), _ = leases(store)
    holder.renew()
    assert leases(store)[0] == [first]
    now[0] += RENEW_MS + 1
    holder.renew()
    (second,), over = leases(store)
    assert not over
    assert second.expires_ms == now[0] + LASTS_MS
    assert (second.epoch, second.id) == (first.epoch, first.id)
    collect(stream.journal, 2)
    assert 7 in stream.journal.epochs()
    # Its process has died: after a while it does not count, and is removed.
    now[0] += LASTS_MS + GRACE_MS + 1
    assert leases(store) == ([], [second])
    collect(stream.journal, 2)
    assert 7 not in stream.journal.epochs()
    assert store.list("leases") == []


def test_a_released_lease_is_gone_and_stays_gone(stream: Counted, now: list[int]) -> None:
    store = stream.journal.store
    holder = Holder(store, Epoch(7))
    holder.release()
    now[0] += LASTS_MS
    holder.renew()
    holder.follow()
    holder.release()
    assert store.list("leases") == []
    reader = mr.open(stream.url)
    assert len(store.list("leases")) == 1
    del reader
    gc.collect()
    assert store.list("leases") == []


def test_the_thread_renews(stream: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[Any] = []
    monkeypatch.setattr(leases_module, "RENEW_MS", 4)
    monkeypatch.setattr(leases_module, "_keeper", leases_module._Keeper())
    monkeypatch.setattr(Holder, "renew", lambda self: renewed.append(self))
    with mr.open(stream.url) as reader:
        while len(renewed) < 3:
            clock.sleep(0.002)
        assert renewed[0] is reader._lease


def test_a_collection_between_opening_and_lease(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest goes right before the lease is there: then the epoch is not open."""
    real = reader_module.acquire

    def late(store: Any, epoch: Epoch) -> Any:
        collect(stream.journal, 2)
        return real(store, epoch)

    monkeypatch.setattr(reader_module, "acquire", late)
    with pytest.raises(UnknownEpochError, match=r"epoch 7 .* is not there"):
        mr.open(stream.url, epoch=7)
    assert stream.journal.store.list("leases") == []


def test_a_lease_between_manifests_and_segments(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease comes when the collection has decided: then the segments stay."""
    journal = stream.journal
    real = type(journal.store).delete
    opened: list[mr.Reader] = []

    def delete(store: Any, path: str) -> None:
        if not opened and path == manifest_path(Epoch(3)):
            opened.append(mr.open(stream.url, epoch=7))
        real(store, path)

    monkeypatch.setattr(type(journal.store), "delete", delete)
    collect(journal, 2)
    (reader,) = opened
    assert 7 not in journal.epochs()
    assert as_oracle(reader.to_arrow()) == stream.history[7]
    # Also in the next collection, which finds a lease on an epoch without a manifest.
    collect(journal, 2)
    assert as_oracle(mr.open(stream.url).to_arrow()) == stream.history[23]
    assert as_oracle(reader.to_arrow(key_groups=[0, 1, 2, 3])) == stream.history[7]
    reader.close()
    collect(journal, 2)
    assert stream.store_is_tidy()


READ_ONLY = """
import os, sys
import millrace as mr
mr.open(sys.argv[1]).to_arrow()  # loads all it needs, as long as it may
os.setgroups([]); os.setgid(65534); os.setuid(65534)
reader = mr.open(sys.argv[1])
print(reader.is_leased, reader.to_arrow().num_rows)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become a user who may not write")
def test_a_location_that_cannot_be_written_is_read_all_the_same(
    stream: Counted, tmp_path: Path
) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, stream.url],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False", str(len(stream.history[23]))], done.stderr


def test_without_a_lease_the_files_are_mapped_at_once(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "acquire", lambda store, epoch: None)
    reader = mr.open(stream.url, epoch=7)
    assert not reader.is_leased
    collect(stream.journal, 1)
    assert as_oracle(reader.to_arrow()) == stream.history[7]
