"""The journal: one writer, a chain without gaps, and errors that say what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, fingerprint
from tests.unit.recording import RecordingStore

from millrace.errors import (
    CorruptManifestError,
    FencedError,
    ForeignLocationError,
    MalformedError,
    NewerFormatError,
    NotALocationError,
    UnknownEpochError,
    UnwritableLocationError,
)
from millrace.ids import Epoch
from millrace.keygroups.scheme import CHAINED, Scheme
from millrace.log import Journal, open_store
from millrace.log import manifest as manifests
from millrace.log.journal import FULL_EVERY
from millrace.log.layout import IDENTITY
from millrace.log.leases import acquire
from millrace.log.manifest import manifest_path
from millrace.log.marks import LARGE, SMALL, mark
from millrace.log.retention import collect

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "location"


@pytest.fixture
def location(root: Path) -> Location:
    return Location(str(root), SCHEMA, 4)


def run(location: Location, epochs: int) -> None:
    for _ in range(epochs):
        location.step({fingerprint(location.epoch % 7): (location.epoch + 1,)})


def with_pause(location: Location, meanwhile: Callable[[], None]) -> Location:
    """A driver that is stopped right after it has created a manifest."""
    real = location.store.create

    def create(path: str, data: bytes) -> None:
        location.store.create = real  # type: ignore[method-assign]
        real(path, data)
        meanwhile()

    location.store.create = create  # type: ignore[method-assign]
    return location


def test_a_new_location_is_opened_as_it_was_created(root: Path, location: Location) -> None:
    again = Journal.open(open_store(str(root)))
    assert again.identity == location.journal.identity
    assert again.head() == 0
    assert again.trail(Epoch(0)).operators == {}


def test_creating_a_location_twice_keeps_the_first(root: Path, location: Location) -> None:
    again = Journal.create(open_store(str(root)), 256)
    assert again.identity == location.journal.identity


def test_what_is_not_a_location(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotALocationError, match=rf"{path} is not a Millrace location.*Check"):
            Journal.open(open_store(str(path)))


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    with pytest.raises(ForeignLocationError, match=r"such as offsets/0.*Choose an empty directory"):
        Journal.create(open_store(str(tmp_path)), 256)
    assert not (tmp_path / IDENTITY).exists()


def test_what_a_crash_left_behind_does_not_make_a_folder_foreign(tmp_path: Path) -> None:
    (tmp_path / f"{IDENTITY}.0af3.tmp").write_text("half")
    assert Journal.create(open_store(str(tmp_path)), 8).identity.key_groups == 8


def test_an_unwritable_location(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableLocationError):
        Journal.create(open_store(str(tmp_path / "file" / "below")), 256)
    with pytest.raises(UnwritableLocationError):
        Journal.create(open_store(str(tmp_path / "file")), 256)


def test_every_flipped_byte_of_the_identity_is_noticed(root: Path, location: Location) -> None:
    path = root / IDENTITY
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptManifestError, match=IDENTITY):
            Journal.open(open_store(str(root)))
    path.write_bytes(data)
    assert Journal.open(open_store(str(root))).identity == location.journal.identity


def test_an_identity_of_a_newer_format(root: Path, location: Location) -> None:
    (root / IDENTITY).write_bytes(manifests.seal({"format": 99})[0])
    with pytest.raises(NewerFormatError, match="format 99"):
        Journal.open(open_store(str(root)))


def test_every_flipped_byte_of_a_manifest_is_noticed(root: Path, location: Location) -> None:
    """Through the journal this time: full and incremental, on the way to the head."""
    run(location, 3)
    for epoch in (1, 2, 3):
        path = root / manifest_path(Epoch(epoch))
        data = path.read_bytes()
        for at in range(0, len(data), 7):
            damaged = bytearray(data)
            damaged[at] ^= 0x20
            path.write_bytes(damaged)
            with pytest.raises(CorruptManifestError, match=path.name):
                location.journal.trail(Epoch(3))
        path.write_bytes(data)
    assert location.state() == {fingerprint(k): (k + 1,) for k in range(3)}


def test_of_two_drivers_one_is_fenced(root: Path, location: Location) -> None:
    run(location, 2)
    other = Location(str(root), SCHEMA, 4)
    key = fingerprint(50)
    winner = location.write(location.replica(), location.every, {key: (1,)})
    loser = other.write(other.replica(), other.every, {key: (2,)})
    location.commit([winner], run="the-winner")
    with pytest.raises(FencedError, match=r"epoch 3 of .* by run the-winner.*this run, the-loser"):
        other.commit([loser], run="the-loser")
    assert other.epoch == 2
    assert location.state()[key] == (1,)
    # The loser stays fenced, and the winner goes on.
    with pytest.raises(FencedError):
        other.commit([loser], run="the-loser")
    run(location, 1)
    assert location.journal.head() == 4


def test_a_commit_that_was_made_but_not_acknowledged_may_be_repeated(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that wrote the file and then failed: the same bytes again are no conflict."""
    run(location, 1)
    entry = location.write(location.replica(), location.every, {fingerprint(1): (9,)})
    monkeypatch.setattr("millrace.clock.now_ms", lambda: 1_700_000_000_000)
    twin = Location(location.store.url, SCHEMA, 4)
    location.commit([entry])
    twin.commit([entry])
    assert twin.trail.checksum == location.trail.checksum


def test_a_broken_chain_is_noticed(root: Path, tmp_path: Path, location: Location) -> None:
    run(location, 5)
    path = root / manifest_path(Epoch(4))
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(CorruptManifestError, match=r"needs a manifest that is missing.*4\.json"):
        location.journal.trail(Epoch(5))
    assert location.journal.trail(Epoch(3)).epoch == 3
    # A manifest that is whole, and this query's, but has another parent.
    fork = tmp_path / "fork"
    shutil.copytree(root, fork)
    (fork / manifest_path(Epoch(5))).unlink()
    (fork / manifest_path(Epoch(3))).unlink()
    (fork / manifest_path(Epoch(2))).unlink()
    forked = Location(str(fork), SCHEMA, 4)
    forked.trail = forked.journal.trail(Epoch(1))
    for n in range(3):
        forked.step({fingerprint(n): (-n,)})
    path.write_bytes((fork / manifest_path(Epoch(4))).read_bytes())
    with pytest.raises(CorruptManifestError, match=r"epoch 4 does not follow that of epoch 3"):
        location.journal.trail(Epoch(5))
    path.write_bytes(whole)
    assert location.journal.trail(Epoch(5)).epoch == 5


def test_a_manifest_in_the_wrong_place_is_noticed(
    root: Path, tmp_path: Path, location: Location
) -> None:
    run(location, 3)
    other = Location(str(tmp_path / "other"), SCHEMA, 4)
    run(other, 3)
    last = root / manifest_path(Epoch(3))
    for wrong in (
        root / manifest_path(Epoch(1)),
        root / manifest_path(Epoch(2)),
        tmp_path / "other" / manifest_path(Epoch(3)),
    ):
        last.write_bytes(wrong.read_bytes())
        with pytest.raises(CorruptManifestError, match="is another manifest"):
            location.journal.trail(Epoch(3))


def test_unknown_epochs_name_the_range(location: Location) -> None:
    with pytest.raises(UnknownEpochError, match=r"has no committed epoch yet; epoch 1 was asked"):
        location.journal.trail(Epoch(1))
    run(location, 3)
    for epoch in (4, 99):
        with pytest.raises(
            UnknownEpochError, match=rf"epoch {epoch} of .*epochs 1 to 3 are retained"
        ):
            location.journal.trail(Epoch(epoch))
    with pytest.raises(UnknownEpochError):
        location.journal.trail(Epoch(-1))


def test_a_driver_that_never_committed_is_fenced_when_its_epoch_is_long_collected(
    root: Path, location: Location
) -> None:
    late = Location(str(root), location.schema, location.key_groups)
    run(location, FULL_EVERY + 3)
    location.commit([], run="the-winner")
    collect(location.journal, 1)
    before = location.journal.epochs()
    assert before[0] > 1
    with pytest.raises(FencedError, match=r"run the-winner has committed up to epoch"):
        late.commit([], run="late")
    collect(location.journal, 1)
    assert location.journal.epochs() == before


def test_a_driver_that_committed_goes_on_when_others_built_on_its_epoch(
    root: Path, location: Location
) -> None:
    """Stopped right after its first manifest, while another driver continued from there."""
    other = Location(str(root), SCHEMA, 4)

    def overtake() -> None:
        other.trail = other.journal.trail(Epoch(1))
        run(other, 2)

    with_pause(location, overtake).commit([])
    assert location.journal.epochs() == [1, 2, 3]
    with pytest.raises(FencedError, match=r"epoch 2 of"):
        location.commit([])
    assert other.state() == {fingerprint(1): (2,), fingerprint(2): (3,)}


def test_a_parent_that_is_collected_at_once_is_no_reason_to_take_an_epoch_back(
    root: Path, location: Location
) -> None:
    """`millrace gc --retain 1` between the creation of a manifest and the look for its parent."""
    run(location, 2)
    journal = Journal.open(open_store(str(root)))
    with_pause(location, lambda: collect(journal, 1) and None).commit([], full=True)
    assert location.epoch == 3
    assert location.journal.epochs() == [3]


def test_a_parent_that_a_reader_keeps_does_not_make_a_late_driver_right(
    root: Path, location: Location
) -> None:
    run(location, 2)
    late = Location(str(root), SCHEMA, 4)
    lease = acquire(location.store, Epoch(2))
    assert lease is not None
    run(location, FULL_EVERY + 3)
    collect(location.journal, 1)
    assert {2, FULL_EVERY + 5} < set(location.journal.epochs())
    assert 3 not in location.journal.epochs()
    with pytest.raises(FencedError, match=r"epoch 3 of .* committed up to epoch"):
        late.commit([], run="late")
    lease.release()
    collect(location.journal, 1)
    assert location.journal.epochs()[0] > 3


def test_a_late_manifest_next_to_those_that_count_is_taken_away(
    root: Path, location: Location
) -> None:
    run(location, 2)
    late = Location(str(root), SCHEMA, 4)
    run(location, 2)
    # As a collection does.
    mark(location.store, [Epoch(3)])
    (root / manifest_path(Epoch(3))).unlink()
    with pytest.raises(FencedError, match=r"epoch 3 of .* committed up to epoch 4"):
        late.commit([], run="late")
    assert location.journal.epochs() == [1, 2, 4]


def test_an_epoch_that_a_reader_holds_is_not_taken_away_by_its_own_driver(
    root: Path, location: Location
) -> None:
    """Stopped after creating it, for so long that only the reader's lease has kept it."""
    run(location, 2)
    other = Location(str(root), SCHEMA, 4)

    def overtake() -> None:
        other.trail = other.journal.trail(Epoch(3))
        lease = acquire(other.store, Epoch(3))
        assert lease is not None
        run(other, FULL_EVERY + 3)
        collect(other.journal, 1)
        assert 4 not in other.journal.epochs()

    with pytest.raises(FencedError, match="committed up to epoch"):
        with_pause(location, overtake).commit([], full=True)
    assert 3 in other.journal.epochs()
    assert other.state(3) == {fingerprint(0): (1,), fingerprint(1): (2,)}


def test_a_winner_that_is_collected_meanwhile_still_wins(root: Path, location: Location) -> None:
    run(location, 2)
    loser = Location(str(root), SCHEMA, 4)
    run(location, 1)
    real = loser.store.create

    def create(path: str, data: bytes) -> None:
        try:
            real(path, data)
        finally:
            (root / manifest_path(Epoch(3))).unlink()

    loser.store.create = create  # type: ignore[method-assign]
    with pytest.raises(FencedError, match="another run, whose manifest is no longer retained"):
        loser.commit([], run="loser")


def test_a_manifest_of_a_newer_format(root: Path, location: Location) -> None:
    run(location, 2)
    (root / manifest_path(Epoch(2))).write_bytes(manifests.seal({"format": 99})[0])
    with pytest.raises(NewerFormatError, match=r"000000000002.json has format 99"):
        location.journal.trail(Epoch(2))


def test_opening_reads_a_bounded_number_of_manifests(location: Location) -> None:
    run(location, 2 * FULL_EVERY + 5)
    store = RecordingStore(location.store)
    journal = Journal(store, location.journal.identity)
    for epoch in (1, FULL_EVERY, FULL_EVERY + 1, 2 * FULL_EVERY, location.epoch):
        store.asked.clear()
        assert journal.trail(Epoch(epoch)).epoch == epoch
        assert len(store.asked) == len(set(store.asked)) <= FULL_EVERY


def test_the_newest_epoch_while_others_go_on_and_collect(
    root: Path, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(location, 2)
    journal = Journal.open(open_store(str(root)))
    real = Journal.head
    heads: list[Epoch] = []

    def head(self: Journal) -> Epoch:
        found = real(self)
        heads.append(found)
        if len(heads) == 1:
            run(location, FULL_EVERY + 3)
            collect(location.journal, 1)
        return found

    monkeypatch.setattr(Journal, "head", head)
    assert journal.newest().epoch == location.epoch == FULL_EVERY + 5
    assert heads[0] == 2
    # What is damaged stays an error.
    (root / manifest_path(location.epoch)).write_bytes(b"nonsense")
    with pytest.raises(CorruptManifestError, match="is damaged"):
        journal.newest()


def test_a_commit_lists_nothing(location: Location) -> None:
    run(location, 2)
    store = RecordingStore(location.store)
    location.journal = Journal(store, location.journal.identity)
    location.commit([])
    looks = [("size", f"collected/{size}/000000000000") for size in (SMALL, LARGE)]
    assert store.asked == [("create", manifest_path(Epoch(3))), *looks]


def test_half_written_manifests_do_not_count(root: Path, location: Location) -> None:
    run(location, 2)
    (root / (manifest_path(Epoch(3)) + ".1234.tmp")).write_bytes(b"half")
    assert location.journal.epochs() == [1, 2]


def test_what_the_driver_knows_is_kept(location: Location) -> None:
    run(location, 2)
    trail = location.journal.trail(Epoch(2))
    assert trail.batch_id == 1
    assert trail.specs == {"table": {"kind": "table"}}
    assert trail.operator("table").assignment == location.trail.operator("table").assignment  # type: ignore[arg-type]


def test_what_a_list_leaves_out_is_looked_for(location: Location) -> None:
    run(location, 70)
    store, real = location.store, location.store.list

    def listed(*left_out: int) -> list[int]:
        hidden = {manifest_path(Epoch(epoch)) for epoch in left_out}
        store.list = lambda folder: [p for p in real(folder) if p not in hidden]  # type: ignore[method-assign]
        return [int(epoch) for epoch in location.journal.epochs()]

    everything = list(range(1, 71))
    assert listed() == everything
    assert listed(70) == everything
    assert listed(68, 69, 70) == everything
    # The last 64 of what a list shows are looked at, from the oldest it shows on.
    assert listed(7, 30, 69) == everything
    assert listed(6) == [e for e in everything if e != 6]
    assert listed(*range(1, 10)) == list(range(10, 71))
    store.list = lambda folder: []  # type: ignore[method-assign]
    assert location.journal.epochs() == everything
    assert location.journal.head() == 70


def test_what_is_retained_in_words(location: Location) -> None:
    assert location.journal.retained() == "no epoch is retained."
    with pytest.raises(
        UnknownEpochError, match="has no committed epoch yet; epoch 3 was asked for"
    ):
        location.journal.trail(Epoch(3))
    run(location, 6)
    assert location.journal.retained() == "epochs 1 to 6 are retained."
    location.store.delete(manifest_path(Epoch(2)))
    location.store.delete(manifest_path(Epoch(5)))
    assert location.journal.retained() == "epochs 1 to 1, 3 to 4, 6 to 6 are retained."


def test_full_manifests_come_at_least_every_32_epochs(location: Location) -> None:
    assert FULL_EVERY == 32
    run(location, 66)
    full = [e for e in range(1, 67) if location.journal.read(Epoch(e))[0].is_full]
    assert full == [1, 33, 65]
    assert location.journal.read(Epoch(64))[0].last_full == 33


def test_a_commit_has_the_time_it_is_given(location: Location) -> None:
    manifest = location.journal.commit(
        location.trail,
        run="r",
        batch_id=4,
        watermark_ms=5,
        operators={},
        specs={},
        full=False,
        figures={"rows": 1},
        time_ms=6,
        processing_ms=7,
        unmet_parallelism={OPERATOR: 3},
    )
    read, _ = location.journal.read(Epoch(1))
    assert read == manifest
    assert (read.batch_id, read.watermark_ms, read.time_ms, read.processing_ms) == (4, 5, 6, 7)
    assert (read.figures, read.unmet_parallelism, read.parent) == ({"rows": 1}, {OPERATOR: 3}, "")
    assert location.trail.unmet_parallelism == {OPERATOR: 3}


def test_an_older_millrace_refuses_a_new_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Journal.create(open_store(str(tmp_path / "new")), 16)
    assert made.identity.scheme.version == 2
    assert Journal.open(made.store).identity == made.identity
    old = Journal.create(open_store(str(tmp_path / "old")), 16, CHAINED)
    assert "fingerprints" not in json.loads(old.store.read("millrace.json").split(b"\n")[0])
    monkeypatch.setattr(manifests, "FORMAT_VERSION", 1)
    with pytest.raises(NewerFormatError, match="format 2; this Millrace reads up to 1"):
        Journal.open(made.store)
    assert Journal.open(old.store).identity == old.identity


def test_a_location_keeps_its_format(tmp_path: Path) -> None:
    for scheme, version in ((CHAINED, 1), (Scheme(2, 77), 2)):
        journal = Journal.create(open_store(str(tmp_path / str(version))), 16, scheme)
        journal = Journal.open(journal.store)
        assert journal.identity.scheme == scheme
        trail = journal.trail(Epoch(0))
        journal.commit(
            trail, run="r", batch_id=0, watermark_ms=None, operators={}, specs={}, full=True
        )
        assert journal.read(Epoch(1))[0].format == version


def test_salts_differ_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    salts = {Scheme.fresh().salt for _ in range(10)}
    assert len(salts) == 10
    for scheme in (Scheme(2, 0), Scheme(2, 2**64 - 1)):
        assert Scheme.from_json(scheme.to_json()) == scheme
    with pytest.raises(NewerFormatError, match="scheme 3"):
        Scheme.from_json({"scheme": 3, "salt": "0" * 16})
    with pytest.raises(MalformedError, match="salt"):
        Scheme.from_json({"scheme": 2, "salt": "1"})
