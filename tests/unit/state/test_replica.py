"""A replica follows the log: the cases that are too rare, or too rough, for the state machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import (
    Fingerprint,
    Location,
    Row,
    State,
    changed_batch,
    fingerprint,
    to_state,
    updated,
    words,
)

from millrace.errors import CorruptSegmentError, MissingFileError
from millrace.keygroups import Assignment, groups_of
from millrace.log.segment import encoding
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.sections import due_merges

SCHEMA = pa.schema([("n", pa.int64())])


def key_in(group: int, number: int, key_groups: int = 4) -> Fingerprint:
    """Some key of a key group."""
    hi, lo = fingerprint(number)
    bits = key_groups.bit_length() - 1
    return group << (64 - bits) | hi >> bits, lo


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(str(tmp_path / "location"), SCHEMA, 4)


def grown(location: Location, epochs: int, keys: int = 40) -> State:
    """Some epochs of updates, inserts and deletions."""
    state: State = {}
    for epoch in range(epochs):
        changes: dict[Fingerprint, Row | None] = {
            fingerprint(k): None if (k + epoch) % 7 == 0 else (k * 1000 + epoch,)
            for k in range(epoch % 3, keys, 3)
        }
        location.step(changes)
        state = updated(state, changes)
    return state


def test_a_run_does_not_swallow_a_large_delta_of_another_shard(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard 0 wrote a run over many epochs, shard 1 a large delta in the middle of them. After both
    are united, a run that begins where shard 0's began must hold shard 1's delta as well."""
    monkeypatch.setattr(merging, "RUN_PIECES", 3)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    monkeypatch.setattr(merging, "RUN_ROWS", 8)
    monkeypatch.setattr(merging, "MERGE_RATIO", 1e9)
    two, one = Assignment.even(4, 2), Assignment.even(4, 1)
    state: State = {}

    def step(changes: dict[Fingerprint, Row | None], assignment: Assignment) -> None:
        nonlocal state
        location.step(changes, assignment)
        state = updated(state, changes)

    left, right = key_in(0, 1), key_in(3, 2)
    step({left: (0,), right: (0,)}, two)
    for n in range(1, 5):
        step({left: (n,)}, two)
    large = {key_in(3, k): (k,) for k in range(10, 30)}
    step({left: (5,), **large}, two)
    for n in range(6, 12):
        step({left: (n,)}, two)
    for n in range(12, 20):
        step({left: (n,), right: (n,)}, one)
        assert location.state() == state


def test_runs_of_two_shards_together_retire_the_pieces_they_share(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deltas written by one shard, then taken over by two: each rewrites its half once, not in
    every epoch from then on."""
    monkeypatch.setattr(merging, "RUN_PIECES", 4)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    monkeypatch.setattr(merging, "MERGE_RATIO", 1e9)
    one, two = Assignment.even(4, 1), Assignment.even(4, 2)
    left, right = key_in(0, 1), key_in(3, 2)
    for n in range(4):
        location.step({left: (n,), right: (n,)}, one)
    for n in range(4, 16):
        location.step({left: (n,), right: (n,)}, two)
        live = list(location.trail.operator("table").live().after())  # type: ignore[arg-type]
        per_group = [sum(g in groups for _, groups in live) for g in range(4)]
        assert max(per_group) <= 4
    assert location.state() == {left: (15,), right: (15,)}


def test_deltas_of_one_epoch_may_become_a_run(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four shards wrote one epoch; their single successor unites their deltas, once."""
    monkeypatch.setattr(merging, "RUN_PIECES", 4)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    monkeypatch.setattr(merging, "MERGE_RATIO", 1e9)
    keys = [key_in(group, group) for group in range(4)]
    location.step(dict.fromkeys(keys, (0,)))
    location.step(dict.fromkeys(keys, (1,)), Assignment.even(4, 4))
    location.step({keys[0]: (2,)})
    pieces = list(location.trail.operator("table").live().after())  # type: ignore[arg-type]
    assert len(pieces) == 2
    assert location.state() == {keys[0]: (2,), **dict.fromkeys(keys[1:], (1,))}


def test_what_a_run_replaces_no_longer_counts_as_logged(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that saw every delta and one that saw only the run plan the same merges."""
    monkeypatch.setattr(merging, "RUN_PIECES", 4)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    old = location.replica()
    keys = [fingerprint(k) for k in range(20)]
    location.step(dict.fromkeys(keys, (0,)))
    for n in range(30):
        location.step(dict.fromkeys(keys[:: 3 + n % 2], (n,)))
        location.follow(old)
        new = location.follow(location.replica())
        plans = [due_merges(r, location.every, 10, 1 << 60).tolist() for r in (old, new)]
        assert plans[0] == plans[1]


def test_pages_that_nothing_points_to_are_let_go(location: Location) -> None:
    follower = location.replica()
    sizes = []
    for n in range(200):
        location.step({fingerprint(k): (n,) for k in range(20)})
        location.follow(follower)
        follower.read(location.every)
        sizes.append((follower.mapped_bytes, follower.heap_bytes))
    assert max(sizes[100:]) <= max(sizes[:100])


def test_a_failed_follow_leaves_no_trace(location: Location) -> None:
    """A page is damaged while a replica catches up, and repaired before it tries again."""
    grown(location, 3)
    replica = location.follow(location.replica())
    replica.read(location.every)
    state = location.state()
    more = {fingerprint(k): (-k,) for k in range(40)}
    location.step(more)
    state = updated(state, more)
    entry = next(e for e in location.trail.segments() if e.epoch == location.epoch)
    path = Path(location.store.local_path(entry.path) or "")
    whole = path.read_bytes()
    offset, length, _ = entry.pages[entry.sections[0].first_page]
    damaged = bytearray(whole)
    damaged[offset + length // 2] ^= 1
    path.write_bytes(damaged)
    location.follow(replica)
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="page"):
            replica.read(location.every)
    path.write_bytes(whole)
    assert to_state(replica.read(location.every)) == state


def test_following_maps_and_touching_indexes(location: Location) -> None:
    """What a key group costs is paid when it is read, and only for that key group."""
    state = grown(location, 6)
    replica = location.follow(location.replica())
    assert (replica.heap_bytes, replica.mapped_bytes) == (0, 0)
    rows = to_state(replica.read(np.asarray([2])))
    mine = groups_of(words(hi for hi, _ in state), 4) == 2
    assert rows == {k: v for (k, v), here in zip(state.items(), mine, strict=True) if here}
    assert replica.held().tolist() == [0, 1, 2, 3]
    assert replica.warm().tolist() == [2]
    one = replica.heap_bytes
    replica.touch(np.asarray([2]))
    assert replica.heap_bytes == one
    replica.touch(location.every)
    assert replica.heap_bytes > 2 * one
    assert to_state(replica.read(location.every)) == state


def test_a_replica_stays_at_its_version_when_the_log_goes_on(location: Location) -> None:
    """Key groups that are touched late are read as of the version that was followed."""
    then = grown(location, 4)
    replica = location.follow(location.replica())
    grown(location, 4, keys=60)
    assert location.state() != then
    assert to_state(replica.read(location.every)) == then


def test_files_that_are_collected_after_following_are_not_missed(location: Location) -> None:
    then = grown(location, 8)
    replica = location.follow(location.replica())
    for entry in location.trail.segments():
        Path(location.store.local_path(entry.path) or "").unlink()
    assert to_state(replica.read(location.every)) == then


def test_key_groups_that_are_not_followed_on_stay_where_they_were_read(
    location: Location,
) -> None:
    then = grown(location, 4)
    replica = location.follow(location.replica())
    replica.touch(np.asarray([3]))
    third = location.follow(location.replica(), np.asarray([3]))
    grown(location, 3, keys=60)
    location.follow(replica, np.asarray([0]))
    # Key groups 1 and 2 were followed, but never read: there is nothing to keep.
    assert replica.held().tolist() == [0, 3]
    first = location.follow(location.replica(), np.asarray([0]))
    assert replica.most_rows == first.most_rows + third.most_rows
    assert replica.lag(3) == 3
    rows = to_state(replica.read(np.asarray([3])))
    mine = groups_of(words(hi for hi, _ in then), 4) == 3
    assert rows == {k: v for (k, v), here in zip(then.items(), mine, strict=True) if here}


def test_a_missing_segment_is_named(location: Location) -> None:
    grown(location, 3)
    entry = next(iter(location.trail.segments()))
    path = Path(location.store.local_path(entry.path) or "")
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        location.state()


def test_a_damaged_base_page_is_noticed_when_it_is_touched(location: Location) -> None:
    location.step({fingerprint(k): (k,) for k in range(100)})
    entry = next(iter(location.trail.segments()))
    path = Path(location.store.local_path(entry.path) or "")
    offset, length, _ = entry.pages[0]
    data = bytearray(path.read_bytes())
    data[offset + length - 9] ^= 4
    path.write_bytes(data)
    replica = location.follow(location.replica())
    hi, lo = zip(*[fingerprint(k) for k in range(100)], strict=True)
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="damaged"):
            replica.find(words(hi), words(lo))


@pytest.mark.parametrize("key_groups", [2, 64, 4096])
def test_large_groups_are_found_through_the_directory(tmp_path: Path, key_groups: int) -> None:
    location = Location(str(tmp_path / "location"), SCHEMA, key_groups)
    rows: dict[Fingerprint, Row | None] = {fingerprint(k): (k,) for k in range(20_000)}
    # Keys that share all of hi, and whole runs of neighbouring ones, must not confuse it.
    rows |= {(2**62 + 5, lo): (-lo,) for lo in range(300)}
    rows |= {(2**62 + hi, 1): (hi,) for hi in range(300)}
    location.step(rows)
    replica = location.follow(location.replica())
    keys = list(rows) + [(hi ^ 1, lo) for hi, lo in list(rows)[:20_000]]
    addresses = replica.find(words(hi for hi, _ in keys), words(lo for _, lo in keys))
    (found,) = replica.gather(addresses, ["n"])
    assert found.to_pylist() == [rows.get(key, (None,))[0] for key in keys]  # type: ignore[index]


def test_key_groups_can_be_forgotten_and_taken_again(location: Location) -> None:
    state = grown(location, 5)
    replica = location.follow(location.replica())
    replica.read(location.every)
    replica.forget(np.asarray([1, 2]))
    assert replica.held().tolist() == [0, 3]
    grown_more = {fingerprint(k): (k,) for k in range(10)}
    location.step(grown_more)
    location.follow(replica, np.asarray([0, 1]))
    state = updated(state, grown_more)
    got = to_state(replica.read(np.asarray([0, 1])))
    mine = groups_of(words(hi for hi, _ in state), 4) <= 1
    assert got == {k: v for (k, v), here in zip(state.items(), mine, strict=True) if here}
    assert replica.lag(3) == 1


def test_a_column_added_later_is_null_in_older_rows(tmp_path: Path) -> None:
    url = str(tmp_path / "location")
    old = Location(url, SCHEMA, 4)
    state = grown(old, 4)
    wider = pa.schema([("extra", pa.string()), *SCHEMA])
    new = Location(url, wider, 4)
    change = {fingerprint(1): ("x", 1)}
    new.step(change)
    expected = {key: (None, row[0]) for key, row in state.items()} | change
    assert new.state() == expected
    new.step({fingerprint(k): ("y", k) for k in range(200)})
    expected |= {fingerprint(k): ("y", k) for k in range(200)}
    assert new.state() == expected


def test_a_group_that_was_emptied_starts_over(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MERGE_RATIO", 0.5)
    keys = [fingerprint(k) for k in range(30)]
    location.step(dict.fromkeys(keys, (1,)))
    location.step(dict.fromkeys(keys))
    location.step({key_in(0, 99): (1,)})
    location.step(dict.fromkeys(keys, (2,)))
    assert location.state() == dict.fromkeys(keys, (2,)) | {key_in(0, 99): (1,)}


def test_deleting_what_was_never_there_writes_an_empty_segment(location: Location) -> None:
    location.step({fingerprint(1): None})
    assert location.state() == {}
    assert location.epoch == 1


def test_the_index_budget_bounds_the_heap(location: Location) -> None:
    replica = location.replica()
    budget = 4000
    location.step({fingerprint(k): (0,) for k in range(2000)}, index_budget=budget)
    for n in range(20):
        changes = {fingerprint(k): (n,) for k in range(n, 2000, 40)}
        location.step(changes, replicas=[replica], index_budget=budget)
    location.follow(replica)
    directories = replica.heap_bytes
    fresh = location.replica()
    location.follow(fresh)
    # What is over the budget is at most what one epoch adds.
    assert fresh.heap_bytes <= budget + 4 * 24 * 64
    assert directories < 10 * budget


def test_pages_are_cut_at_key_groups(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PAGE_ROWS", 10)
    location.step({fingerprint(k): (k,) for k in range(100)})
    (entry,) = location.trail.segments()
    assert len(entry.pages) == 4
    only = location.follow(location.replica(), np.asarray([2]))
    mine = groups_of(words(fingerprint(k)[0] for k in range(100)), 4) == 2
    assert len(to_state(only.read(np.asarray([2])))) == int(mine.sum())


def test_whole_rows_are_verified_where_columns_are_on_demand(location: Location) -> None:
    """A page is opened with what finds rows only; the rest counts once it was looked at."""
    number = 0x1122334455667788
    location.step({fingerprint(1): (number,)})
    (entry,) = location.trail.segments()
    path = Path(location.store.local_path(entry.path) or "")
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(number.to_bytes(8, "little"))] ^= 1
    for data in (damaged, whole):
        path.write_bytes(data)
        replica = location.follow(Replica(location.store, SCHEMA, 4, by_column=True))
        if data is damaged:
            with pytest.raises(CorruptSegmentError, match="column 'n'"):
                replica.read(location.every)
        else:
            assert to_state(replica.read(location.every)) == {fingerprint(1): (number,)}


def test_rows_laid_over_a_version_are_seen_until_they_are_dropped(tmp_path: Path) -> None:
    location = Location(str(tmp_path), SCHEMA, 4)
    before: State = {fingerprint(n): (n,) for n in range(8)}
    location.step(before)
    location.step({fingerprint(0): (100,)})
    before[fingerprint(0)] = (100,)
    replica = location.follow(location.replica())
    assert to_state(replica.read(location.every)) == before
    first = {fingerprint(0): (7,), fingerprint(20): (20,)}
    second = {fingerprint(0): None, fingerprint(1): (11,)}
    replica.overlay(changed_batch(SCHEMA, first))
    assert to_state(replica.read(location.every)) == updated(before, first)
    replica.overlay(changed_batch(SCHEMA, second))
    assert to_state(replica.read(location.every)) == updated(updated(before, first), second)
    assert replica.laid_over == 4
    laid_over = replica.drop_overlay()
    assert laid_over is not None
    # Each row once, with its last value.
    assert laid_over.equals(changed_batch(SCHEMA, {**first, **second}))
    assert to_state(replica.read(location.every)) == before
    assert replica.drop_overlay() is None
    assert replica.laid_over == 0


def test_what_a_replica_counts(tmp_path: Path) -> None:
    location = Location(str(tmp_path), SCHEMA, 4)
    location.step({(group << 62, 0): (1,) for group in (0, 0, 1, 3)})
    location.step({(1 << 62, 0): (2,), (1 << 62 | 1, 0): (3,)})
    replica = location.follow(location.replica())
    base, logged = replica.row_counts()
    assert (base.tolist(), logged.tolist()) == ([1, 1, 0, 1], [0, 2, 0, 0])
    assert replica.most_rows == 5
    assert replica.warm().tolist() == []
    assert replica.held().tolist() == [0, 1, 2, 3]
    replica.touch(np.asarray([1]))
    assert replica.warm().tolist() == [1]
    assert replica.index_bytes(location.every).tolist() == [0, 16 * 24, 0, 0]
    assert replica.heap_bytes == 16 * 24 + 3 * 4
    superseded, beside = replica.changed(1)
    assert (len(superseded), len(beside)) == (1, 2)
    assert replica.heap_bytes == 16 * 24 + 3 * 4 + 3 * 8
    replica.forget(np.asarray([1]))
    assert replica.heap_bytes == 0
    assert not replica.holds(np.asarray([0, 1]))
    assert replica.holds(np.asarray([0, 2]))
    assert len(replica.segments()) == 2
