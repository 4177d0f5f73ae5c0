"""Leases: what a reader has open is not collected, on whichever process."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tempfile
import threading
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reading.streams import Counted, as_oracle, draw
from tests.waiting import until

import millrace as mr
from millrace import clock
from millrace.errors import HistoryReplacedError, StoreError, UnknownEpochError
from millrace.ids import Epoch
from millrace.log import journal as journal_module
from millrace.log import leases as leases_module
from millrace.log.inspection import inspect
from millrace.log.leases import (
    GRACE_MS,
    IDLE_MS,
    LASTS_MS,
    RENEW_MS,
    Holder,
    Lease,
    acquire,
    leases,
)
from millrace.log.manifest import manifest_path
from millrace.log.retention import collect
from millrace.log.store import open_store
from millrace.reading import reader as reader_module
from millrace.reading.reader import follow_live


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


def test_a_reader_that_was_refreshed_keeps_one_epoch(stream: Counted) -> None:
    with mr.open(stream.url) as reader:
        assert reader.refresh() == 23
        run(stream, 20)
        collect(stream.journal, 1)
        # The manifests between its epoch and the retained ones are gone.
        assert not {26, 30} & set(stream.journal.epochs())
        assert as_oracle(reader.to_arrow()) == stream.history[23]
        assert reader.refresh() == 43
        assert as_oracle(reader.to_arrow()) == stream.history[43]
        ((lease,), _) = leases(stream.journal.store)
        assert (lease.epoch, lease.follows) == (43, False)
        run(stream, 20)
        collect(stream.journal, 1)
        assert 23 not in stream.journal.epochs()
        assert reader.refresh(63) == 63
        assert as_oracle(reader.to_arrow()) == stream.history[63]
    collect(stream.journal, 1)
    assert stream.journal.epochs()[0] > 38


def test_an_epoch_that_goes_before_its_lease_is_there(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Holder.hold

    def late(holder: Holder, epoch: Epoch) -> bool:
        if epoch == 23:
            run(stream, 20)
            collect(stream.journal, 1)
        return real(holder, epoch)

    with mr.open(stream.url, epoch=22) as reader:
        monkeypatch.setattr(Holder, "hold", late)
        assert reader.refresh(23) == 43
        assert as_oracle(reader.to_arrow()) == stream.history[43]


def test_a_reader_whose_manifests_were_all_lost_says_so(stream: Counted, now: list[int]) -> None:
    reader = follow_live(stream.journal, stream.journal.newest().specs)
    assert reader._lease is not None
    now[0] += IDLE_MS + 1
    reader._lease.renew()
    for path in stream.journal.store.list("manifests"):
        stream.journal.store.delete(path)
    with pytest.raises(HistoryReplacedError, match=r"epoch 23,.* no epoch is retained"):
        reader.refresh()


def test_a_live_lease_that_nobody_uses_lapses_and_comes_back(
    stream: Counted, now: list[int]
) -> None:
    """One `query.sql()` must not stop retention until the query ends."""
    store = stream.journal.store
    reader = follow_live(stream.journal, stream.journal.newest().specs)
    assert reader._lease is not None
    reader.sql_at("SELECT count(*) FROM millrace_tables", Epoch(23))
    now[0] += IDLE_MS
    reader._lease.renew()
    assert [lease.epoch for lease in leases(store)[0]] == [23]
    now[0] += 1
    reader._lease.renew()
    assert store.list("leases") == []
    run(stream, 40)
    collect(stream.journal, 1)
    assert 23 not in stream.journal.epochs()
    # Its manifests are gone, and the next question is answered all the same.
    epoch, _ = reader.sql_at("SELECT count(*) FROM millrace_tables", Epoch(63))
    assert epoch == 63
    assert [lease.epoch for lease in leases(store)[0]] == [63]
    reader.close()
    assert store.list("leases") == []


def test_a_readers_own_lease_does_not_lapse(stream: Counted, now: list[int]) -> None:
    with mr.open(stream.url) as reader:
        assert reader._lease is not None
        now[0] += 10 * IDLE_MS
        reader._lease.renew()
        assert len(stream.journal.store.list("leases")) == 1


def test_a_lease_is_renewed_and_ends(stream: Counted, now: list[int]) -> None:
    store = stream.journal.store
    holder = Holder(store, Epoch(7))
    holder.hold(Epoch(7))
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
    holder.hold(Epoch(7))
    holder.release()
    now[0] += LASTS_MS
    holder.renew()
    holder.hold(Epoch(9))
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
        # The thread of the process's own keeper may renew leases of other tests.
        until(lambda: renewed.count(reader._lease) >= 3, "renewed three times")


def test_a_lease_is_written_once_the_store_is_back(
    stream: Counted, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_keeper", leases_module._Keeper())
    store = open_store(stream.url)

    def unreachable(path: str, data: object) -> None:
        raise StoreError("no answer")

    with monkeypatch.context() as outage:
        outage.setattr(store, "create", unreachable)
        holder = acquire(store, Epoch(20))
        assert holder is not None
        assert not holder.is_written
        with pytest.raises(StoreError, match="no answer"):
            holder.renew()
    holder.renew()
    assert holder.is_written
    assert [lease.epoch for lease in leases(store)[0]] == [20]
    holder.release()
    holder.renew()
    assert store.list("leases") == []


def test_no_error_of_one_location_keeps_others_from_being_renewed(
    stream: Counted, now: list[int]
) -> None:
    """Not even one that is no `Exception`, such as those of asynchronous clients."""
    keeper = leases_module._Keeper()
    store = open_store(stream.url)
    holders = [Holder(store, Epoch(epoch)) for epoch in (18, 19, 20)]

    def cancelled() -> None:
        raise CancelledError("by the client")

    holders[1].renew = cancelled  # type: ignore[method-assign]
    for holder in holders:
        holder.hold(holder.epoch)
        keeper._holders.add(holder)
    now[0] += RENEW_MS + 1
    with pytest.raises(CancelledError):
        keeper._renew()
    assert {lease.epoch: lease.expires_ms - now[0] for lease in leases(store)[0]} == {
        18: LASTS_MS,
        19: LASTS_MS - RENEW_MS - 1,
        20: LASTS_MS,
    }


def test_a_thread_that_could_not_be_started_is_started_with_the_next_lease(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = leases_module._Keeper()
    monkeypatch.setattr(leases_module, "_keeper", keeper)

    def failing(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            mr.open(stream.url)
    with mr.open(stream.url):
        assert keeper.thread.is_alive
    keeper.thread.close()


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
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
reader = mr.open(sys.argv[1])
print(reader.is_leased, reader.to_arrow().num_rows)
"""


def test_a_location_that_cannot_be_written_is_read_all_the_same() -> None:
    # Not in pytest's folder, which nobody else may look into.
    with tempfile.TemporaryDirectory() as name:
        stream = Counted(f"{name}/location", 4)
        run(stream, 5)
        folders = [path for path in Path(name).rglob("*") if path.is_dir()]
        for folder in [Path(name), *folders]:
            folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, stream.url],
            capture_output=True,
            text=True,
        )
        for folder in [Path(name), *folders]:
            folder.chmod(0o755)
    assert done.stdout.split() == ["False", str(len(stream.history[5]))], done.stderr


def test_without_a_lease_the_files_are_mapped_at_once(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "acquire", lambda store, epoch: None)
    reader = mr.open(stream.url, epoch=7)
    assert not reader.is_leased
    collect(stream.journal, 1)
    assert as_oracle(reader.to_arrow()) == stream.history[7]


def test_a_lease_counts_until_the_grace_is_over(tmp_path: Path, now: list[int]) -> None:
    store = open_store(str(tmp_path))
    holder = Holder(store, Epoch(7))
    holder.hold(Epoch(7))
    (lease,), _ = leases(store)
    assert lease == Lease(Epoch(7), False, now[0] + LASTS_MS, holder.id)
    now[0] = lease.expires_ms + GRACE_MS
    assert leases(store) == ([lease], [])
    now[0] += 1
    assert leases(store) == ([], [lease])


def test_a_lease_is_renewed_when_it_is_old_enough(tmp_path: Path, now: list[int]) -> None:
    store = open_store(str(tmp_path))
    holder = Holder(store, Epoch(7))
    holder.hold(Epoch(7))
    names = store.list("leases")
    now[0] += RENEW_MS
    holder.renew()
    assert store.list("leases") == names
    now[0] += 1
    holder.renew()
    assert len(store.list("leases")) == 1
    assert store.list("leases") != names


def test_a_lease_that_is_renewed_within_a_millisecond_stays(
    tmp_path: Path, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    holder = Holder(store, Epoch(7))
    holder.hold(Epoch(7))
    names = store.list("leases")
    monkeypatch.setattr(leases_module, "RENEW_MS", -1)
    holder.renew()
    assert store.list("leases") == names
    holder.release()
    assert store.list("leases") == []


def test_a_lease_moves_with_its_reader(tmp_path: Path, now: list[int]) -> None:
    store = open_store(str(tmp_path))
    holder = Holder(store, Epoch(7))
    holder.hold(Epoch(7))
    (first,), _ = leases(store)
    holder.hold(Epoch(7))
    assert leases(store)[0] == [first]
    holder.hold(Epoch(9))
    (second,), _ = leases(store)
    assert (second.epoch, second.follows, second.id) == (9, False, first.id)
    holder.release()
    holder.hold(Epoch(11))
    assert store.list("leases") == []


@pytest.mark.parametrize(
    "name",
    [
        "000000000012-only-5-x.tmp",
        "000000000012-once-5-x.json",
        "000000000012-only-x-5.json",
        "x-only-5-y.json",
        "000000000012-only-5.json",
        "000000000012-only-5-x-y.json",
    ],
)
def test_other_files_are_no_leases(name: str) -> None:
    assert Lease.parse(f"leases/{name}") is None


def test_without_a_writable_store_there_is_no_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(str(tmp_path / "file"))
    with caplog.at_level("INFO", "millrace"):
        assert acquire(store, Epoch(3)) is None
    assert f"no lease on epoch 3 of {tmp_path}/file: cannot create" in caplog.text
