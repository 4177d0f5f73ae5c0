"""Remote segments, page by page: what is read, what is fetched again, what is an error."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, fingerprint, to_state

from millrace.errors import CorruptSegmentError, MissingFileError, StoreError, UnsafeFolderError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.log import copies as copies_module
from millrace.log.copies import COALESCE, VARIABLE, SegmentCopy, coalesced, copies_of, prune
from millrace.log.segment import SegmentEntry, encoding, open_segment
from millrace.log.segment import reading as segment_reading
from millrace.log.store import LocalStore, Store, open_store
from millrace.state.replica import Replica

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class CountingStore:
    """A store whose files cannot be mapped, and that counts what is read of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.ranges: list[tuple[str, int, int]] = []
        self.whole: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @property
    def url(self) -> str:
        return self._store.url

    def local_path(self, path: str) -> None:
        return None

    def read(self, path: str) -> bytes:
        self.whole.append(path)
        return self._store.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        self.ranges.append((path, offset, length))
        return self._store.read_range(path, offset, length)

    @property
    def bytes(self) -> int:
        return sum(length for _, _, length in self.ranges)

    def forget(self) -> None:
        self.ranges.clear()
        self.whole.clear()


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in a folder of the test's own; pages of a few rows, fetched one by one."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(encoding, "PAGE_ROWS", 8)
    monkeypatch.setattr(segment_reading, "SMALL", 0)
    monkeypatch.setattr(copies_module, "COALESCE", 0)


@pytest.fixture
def location(tmp_path: Path) -> Location:
    made = Location(str(tmp_path / "location"), SCHEMA, key_groups=16)
    made.step({fingerprint(i): (i, "x" * 50) for i in range(400)}, Assignment.even(16, 1))
    return made


@pytest.fixture
def remote(location: Location) -> CountingStore:
    return CountingStore(location.store)


def entry_of(location: Location) -> SegmentEntry:
    (entry,) = location.trail.operator(OPERATOR).segments().values()
    return entry


def followed(location: Location, store: CountingStore, groups: Sequence[int]) -> Replica:
    replica = Replica(store, SCHEMA, location.key_groups)  # type: ignore[arg-type]
    wanted = np.asarray(groups, np.int64)
    replica.follow(location.trail.operator(OPERATOR), location.epoch, wanted)
    replica.touch(wanted)
    return replica


def frame_bytes(entry: SegmentEntry) -> int:
    return entry.bytes - sum(length for _, length, _ in entry.pages)


def pages_of(store: Store, entry: SegmentEntry, groups: Sequence[int]) -> set[int]:
    """Pages that hold rows of some key groups."""
    segment = open_segment(store, entry)
    found = set()
    for number, section in enumerate(entry.sections):
        index = segment.group_index(number)
        pages = index.pages[np.isin(index.groups, list(groups))]
        found |= {section.first_page + int(page) for page in pages}
    return found


def test_following_some_key_groups_reads_only_their_pages(
    location: Location, remote: CountingStore
) -> None:
    entry = entry_of(location)
    groups = [2, 3, 11]
    wanted = pages_of(location.store, entry, groups)
    assert 0 < len(wanted) < len(entry.pages) / 2
    replica = followed(location, remote, groups)
    assert remote.whole == []
    assert remote.bytes == frame_bytes(entry) + sum(entry.pages[n][1] for n in wanted)
    fetched = [(offset, offset + length) for _, offset, length in remote.ranges]
    for offset, length in (entry.pages[n][:2] for n in wanted):
        assert any(start <= offset and offset + length <= end for start, end in fetched)
    assert to_state(replica.read(np.asarray(groups))) == {
        key: row for key, row in location.state().items() if key[0] >> 60 in groups
    }


def test_deltas_are_read_by_page_too(location: Location, remote: CountingStore) -> None:
    followed(location, remote, range(16))
    location.step({fingerprint(i): (-i, "y" * 50) for i in range(0, 400, 2)})
    (delta,) = (piece.segment for piece, _ in location.trail.operator(OPERATOR).live().after())
    remote.forget()
    followed(location, remote, [7])
    wanted = pages_of(location.store, delta, [7])
    of_delta = sum(length for path, _, length in remote.ranges if path == delta.path)
    assert len(wanted) < len(delta.pages) / 2
    assert of_delta == frame_bytes(delta) + sum(delta.pages[n][1] for n in wanted)


def test_what_is_on_this_machine_is_not_read_again(
    location: Location, remote: CountingStore
) -> None:
    """Whichever process fetched it; this is what a new worker finds."""
    followed(location, remote, [1, 2, 3])
    remote.forget()
    followed(location, remote, [2, 3])
    assert remote.ranges == []
    followed(location, remote, [3, 4])
    entry = entry_of(location)
    new = pages_of(location.store, entry, [4]) - pages_of(location.store, entry, [1, 2, 3])
    assert remote.bytes == sum(entry.pages[n][1] for n in new)


def copy_of(store: CountingStore, entry: SegmentEntry) -> Path:
    return Path(copies_of(store)) / f"{entry.path}.{entry.bytes}"  # type: ignore[arg-type]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("damage", ["hole", "half", "flip"])
def test_a_page_that_is_not_whole_is_fetched_again(
    location: Location, remote: CountingStore, damage: str
) -> None:
    state = location.state()
    followed(location, remote, range(16))
    entry = entry_of(location)
    offset, length, _ = entry.pages[3]
    path = copy_of(remote, entry)
    if damage == "hole":
        overwrite(path, offset, bytes(length))
    elif damage == "half":
        overwrite(path, offset + length // 2, bytes(length - length // 2))
    else:
        byte = path.read_bytes()[offset + 30]
        overwrite(path, offset + 30, bytes([byte ^ 1]))
    remote.forget()
    replica = followed(location, remote, range(16))
    assert remote.ranges == [(entry.path, offset, length)]
    assert to_state(replica.read(location.every)) == state


@pytest.mark.parametrize("size", [0, 100, "double"])
def test_a_copy_of_the_wrong_length_is_made_whole(
    location: Location, remote: CountingStore, size: int | str
) -> None:
    state = location.state()
    followed(location, remote, range(16))
    entry = entry_of(location)
    os.truncate(copy_of(remote, entry), 2 * entry.bytes if size == "double" else int(size))
    replica = followed(location, remote, range(16))
    assert to_state(replica.read(location.every)) == state
    assert copy_of(remote, entry).stat().st_size == entry.bytes


def test_a_frame_that_is_damaged_is_fetched_again(
    location: Location, remote: CountingStore
) -> None:
    followed(location, remote, [0])
    entry = entry_of(location)
    overwrite(copy_of(remote, entry), 20, b"\xff\xff")
    remote.forget()
    followed(location, remote, [0])
    assert remote.bytes == frame_bytes(entry)


@pytest.mark.parametrize("where", ["page", "frame"])
def test_a_damaged_remote_is_an_error(
    location: Location, remote: CountingStore, where: str
) -> None:
    entry = entry_of(location)
    offset = entry.pages[3][0] + 30 if where == "page" else 20
    full = Path(location.store.local_path(entry.path) or "")
    overwrite(full, offset, bytes([full.read_bytes()[offset] ^ 1]))
    message = "page 3 of segment" if where == "page" else "damaged outside its pages"
    with pytest.raises(CorruptSegmentError, match=message):
        followed(location, remote, range(16))


@pytest.mark.parametrize("left", [0, 1, 0.5])
def test_a_remote_that_was_cut_short_is_an_error(
    location: Location, remote: CountingStore, left: float
) -> None:
    entry = entry_of(location)
    os.truncate(location.store.local_path(entry.path) or "", int(entry.bytes * left) - (left == 1))
    with pytest.raises(CorruptSegmentError):
        followed(location, remote, range(16))


def test_a_remote_that_is_gone_is_an_error(location: Location, remote: CountingStore) -> None:
    entry = entry_of(location)
    location.store.delete(entry.path)
    with pytest.raises(MissingFileError, match="A retained manifest names it"):
        followed(location, remote, range(16))


def test_a_small_segment_is_one_request(
    location: Location, remote: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(location)
    monkeypatch.setattr(segment_reading, "SMALL", entry.bytes)
    followed(location, remote, [5])
    assert remote.ranges == [(entry.path, 0, entry.bytes)]


def test_prefetching_takes_few_requests(
    location: Location, remote: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(location)
    segment = open_segment(remote, entry)  # type: ignore[arg-type]
    monkeypatch.setattr(copies_module, "COALESCE", COALESCE)
    remote.forget()
    segment.prefetch([1, 2, 7])
    assert len(remote.ranges) == 1
    remote.forget()
    for number in (1, 2, 7):
        segment.page(number)
    segment.prefetch(range(1, 8))
    assert remote.ranges == []


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        ([], []),
        ([(5, 0)], []),
        ([(10, 5), (0, 5)], [(0, 15)]),
        ([(0, 5), (5 + COALESCE, 5)], [(0, COALESCE + 10)]),
        ([(0, 5), (6 + COALESCE, 5)], [(0, 5), (6 + COALESCE, 5)]),
        ([(0, 100), (10, 5)], [(0, 100)]),
    ],
)
def test_near_ranges_are_joined(
    ranges: list[tuple[int, int]],
    joined: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies_module, "COALESCE", COALESCE)
    assert coalesced(ranges) == joined


def test_copies_of_what_is_not_live_are_deleted(location: Location, remote: CountingStore) -> None:
    first = entry_of(location)
    followed(location, remote, range(16))
    location.step({fingerprint(i): (i, "z") for i in range(400)})
    replica = followed(location, remote, range(16))
    live = set(location.trail.operator(OPERATOR).segments()) - {first.path}
    # Written in a later epoch than the one that is looked at.
    assert prune(remote, live, Epoch(0)) == 0  # type: ignore[arg-type]
    at = location.trail.epoch
    assert prune(remote, live, at) == 1  # type: ignore[arg-type]
    assert not copy_of(remote, first).exists()
    # Who has it mapped keeps it.
    assert to_state(replica.read(location.every)) == location.state()
    assert prune(remote, live, at) == 0  # type: ignore[arg-type]
    nowhere = CountingStore(open_store("/nowhere/at/all"))
    assert prune(nowhere, live, at) == 0  # type: ignore[arg-type]


def test_without_a_folder_for_copies_pages_are_read_into_memory(
    location: Location,
    remote: CountingStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "copies"))
    replica = followed(location, remote, range(16))
    assert to_state(replica.read(location.every)) == location.state()
    assert "reading into memory" in caplog.text


def test_a_copy_is_never_cut_short_under_one_who_has_it_mapped(remote: CountingStore) -> None:
    """As when a location was deleted and another one made in its place."""
    remote._store.put("segments/x", b"a" * 8192)
    first = SegmentCopy(remote, "segments/x", 8192)  # type: ignore[arg-type]
    first.fetch([(0, 8192)])
    remote._store.put("segments/x", b"b" * 100)
    second = SegmentCopy(remote, "segments/x", 100)  # type: ignore[arg-type]
    second.fetch([(0, 100)])
    # Were the file shorter now, this would end the process.
    assert bytes(first.data) == b"a" * 8192
    assert bytes(second.data) == b"b" * 100


def test_no_space_for_copies_is_an_error_that_says_where(
    remote: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote._store.put("segments/x", b"a" * 8192)
    copy = SegmentCopy(remote, "segments/x", 8192)  # type: ignore[arg-type]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=f"No space left on device.*{VARIABLE}"):
        copy.fetch([(0, 8192)])
    monkeypatch.undo()
    copy.fetch([(0, 8192)])
    assert bytes(copy.data) == b"a" * 8192


def test_two_locations_do_not_share_copies(tmp_path: Path) -> None:
    folders = {copies_of(LocalStore(str(tmp_path / name))) for name in ("a", "b")}
    assert len(folders) == 2


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared temporary folder, where anyone can make any name."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"millrace-{os.geteuid()}"


def test_the_folder_in_the_temporary_folder_is_the_users_own(shared: Path) -> None:
    for _ in range(2):
        assert copies_of(open_store("memory://somewhere")).startswith(f"{shared}/")
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_refused(shared: Path) -> None:
    shared.mkdir()
    shared.chmod(0o770)
    with pytest.raises(UnsafeFolderError, match=f"{shared} is not.*{VARIABLE}"):
        copies_of(open_store("memory://somewhere"))


def test_a_link_is_refused(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    shared.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFolderError, match="is not a folder of this user's alone"):
        copies_of(open_store("memory://somewhere"))


def test_a_folder_of_somebody_else_is_refused(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.mkdir(mode=0o700)
    other = os.geteuid() + 1
    theirs = shared.parent / f"millrace-{other}"
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(UnsafeFolderError, match=str(theirs)):
        copies_of(open_store("memory://somewhere"))
