"""Mirrors of a counted stream in every kind of store."""

from __future__ import annotations

import dataclasses
import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.restoring import Backup
from tests.unit.mirrors.places import Place, Rows
from tests.unit.reading.streams import AGGREGATES, KEYS, Counted, Oracle, draw
from tests.waiting import until

import millrace as mr
from millrace.epoch.commit import Commit, collect_reports, commit_epoch
from millrace.errors import (
    ForeignMirrorError,
    MirrorHistoryError,
    MirrorMovedError,
    UnsupportedMirrorError,
    UsageError,
)
from millrace.ids import Epoch
from millrace.log.leases import leases
from millrace.log.retention import collect
from millrace.mirrors.contract import CHANGES, COMPARISON, COPY
from millrace.mirrors.mirror import Behind
from millrace.mirrors.rows import MirroredTable
from millrace.mirrors.steps import copy
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.reading import open_location


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    made = Counted(str(tmp_path / "location"))
    made.send(draw(random.Random(3), 60))
    return made


def as_rows(oracle: Oracle) -> Rows:
    names = ("n", "total", "average")
    return {key: dict(zip(names, row, strict=True)) for key, row in oracle.items()}


def assert_shows(place: Place, counted: Counted, epoch: int) -> None:
    assert place.epoch() == epoch
    assert place.rows() == as_rows(counted.history[epoch])


def test_a_mirror_follows_and_resumes(place: Place, counted: Counted) -> None:
    rng = random.Random(4)
    with mr.mirror(counted.url, place.url) as mirror:
        assert mirror.epoch == 0
        assert mirror.committed_at is None
        assert mirror.behind().epochs == 1
        assert mirror.catch_up() == 1
        assert mirror.applied is not None
        assert mirror.applied.kind == COPY
        assert mirror.behind() == Behind(0, 0.0)
        counted.send(draw(rng, 20))
        assert mirror.behind().epochs == 1
        assert mirror.behind().seconds > 0
        assert mirror.epoch == 1
        assert mirror.catch_up() == 2
        assert (mirror.applied.kind, mirror.applied.upserts) == (CHANGES, 20)
    assert_shows(place, counted, 2)
    for _ in range(3):
        counted.send(draw(rng, 30))
    with mr.mirror(counted.url, place.url, operator="totals") as mirror:
        assert (mirror.epoch, mirror.behind().epochs) == (2, 3)
        assert mirror.catch_up() == 5
        assert mirror.catch_up() == 5
        assert mirror.applied is not None
        assert (mirror.applied.kind, mirror.applied.epoch) == (CHANGES, 5)
        assert mirror.committed_at is not None
    assert_shows(place, counted, 5)


def test_follow_takes_every_epoch_in_until_it_is_stopped(place: Place, counted: Counted) -> None:
    rng, stop, ends = random.Random(5), threading.Event(), []
    with mr.mirror(counted.url, place.url) as mirror:
        thread = threading.Thread(
            target=lambda: ends.append(mirror.follow(poll_seconds=0.001, stop=stop))
        )
        thread.start()
        for epoch in range(2, 6):
            counted.send(draw(rng, 20))
            until(
                lambda epoch=epoch: mirror.applied and mirror.applied.epoch == epoch,  # type: ignore[misc]
                f"epoch {epoch} mirrored",
            )
        stop.set()
        thread.join()
    assert ends == [5]
    assert_shows(place, counted, 5)


def test_epochs_that_were_collected(place: Place, counted: Counted) -> None:
    rng = random.Random(6)
    # Full manifests are rare, and a collection keeps what is after the last.
    with mr.mirror(counted.url, place.url) as mirror:
        mirror.catch_up()
        for _ in range(70):
            counted.send(draw(rng, 5))
        assert collect(counted.journal, 1).manifests
        # The epoch that is shown was kept for the mirror; those after it were not.
        assert counted.journal.has(1)
        assert not counted.journal.has(2)
        assert mirror.catch_up() == 71
        assert mirror.applied is not None
        assert mirror.applied.kind == COMPARISON
        assert_rows(place, counted, mirror.close)
    assert not leases(counted.journal.store)[0]
    for _ in range(70):
        counted.send(draw(rng, 5))
    collect(counted.journal, 1)
    assert not counted.journal.has(71)
    with mr.mirror(counted.url, place.url) as mirror:
        assert mirror.behind().epochs == 70
        assert mirror.catch_up() == 141
        assert mirror.applied is not None
        assert mirror.applied.kind == COPY
    assert_shows(place, counted, 141)


def assert_rows(place: Place, counted: Counted, close: object) -> None:
    """What is shown is the newest; a RocksDB is read when the mirror is closed."""
    assert callable(close)
    close()
    assert_shows(place, counted, counted.journal.head())


def test_before_the_first_epoch(place: Place, tmp_path: Path) -> None:
    counted = Counted(str(tmp_path / "location"))
    with pytest.raises(UsageError, match="name the operator"):
        mr.mirror(counted.url, place.url)
    with mr.mirror(counted.url, place.url, operator="totals") as mirror:
        assert mirror.catch_up() == 0
        assert (mirror.epoch, mirror.behind()) == (0, Behind(0, 0.0))
        counted.send(draw(random.Random(1), 9))
        assert mirror.catch_up() == 1
    assert_shows(place, counted, 1)


def test_a_mark_that_is_ahead_is_refused(place: Place, counted: Counted) -> None:
    with mr.mirror(counted.url, place.url) as mirror:
        mirror.catch_up()
        mark = mirror._target.mark()
    assert mark is not None
    place.forge(dataclasses.replace(mark, epoch=Epoch(9)))
    with mr.mirror(counted.url, place.url) as mirror:
        for refused in (mirror.catch_up, mirror.behind, lambda: mirror.epoch):
            with pytest.raises(
                MirrorHistoryError, match=r"shows epoch 9.*last epoch.* is 1.*reset"
            ):
                refused()
        assert mirror.reset() == 1
        assert mirror.epoch == 1
    assert_shows(place, counted, 1)


def test_a_mirror_of_another_location_is_refused(
    place: Place, counted: Counted, tmp_path: Path
) -> None:
    other = Counted(str(tmp_path / "other"))
    other.send(draw(random.Random(8), 30))
    with mr.mirror(other.url, place.url) as mirror:
        mirror.catch_up()
    with mr.mirror(counted.url, place.url) as mirror:
        with pytest.raises(ForeignMirrorError, match="is a mirror of operator 'totals' of query"):
            mirror.catch_up()
        mirror.reset()
    assert_shows(place, counted, 1)


def test_other_things_are_left_alone(place: Place, counted: Counted) -> None:
    place.intrude()
    with pytest.raises(ForeignMirrorError, match=r"not a mirror"):
        mr.mirror(counted.url, place.url).catch_up()
    with pytest.raises(ForeignMirrorError, match=r"not a mirror"):
        mr.mirror(counted.url, place.url).reset()


def test_a_restored_location_is_noticed(place: Place, counted: Counted, tmp_path: Path) -> None:
    rng = random.Random(9)
    backup = Backup(tmp_path / "location")
    with mr.mirror(counted.url, place.url) as mirror:
        counted.send(draw(rng, 30))
        mirror.catch_up()
        backup.restore()
        counted.restart()
        del counted._rows[60:]
        counted.send(draw(rng, 30))
        with pytest.raises(MirrorHistoryError, match="epoch 2 is another one"):
            mirror.catch_up()
        assert mirror.reset() == 2
    assert_shows(place, counted, 2)


def test_a_step_from_elsewhere_is_refused(place: Place, counted: Counted) -> None:
    with mr.mirror(counted.url, place.url) as mirror:
        mirror.catch_up()
        mark = mirror._target.mark()
        assert mark is not None
        with open_location(counted.url) as reader:
            table = MirroredTable(reader.snapshot, "totals")
            stale = dataclasses.replace(mark, epoch=Epoch(7))
            for before in (None, stale):
                with pytest.raises(MirrorMovedError, match="another process"):
                    mirror._target.apply(copy(mark, table, before))
        assert mirror.catch_up() == 1
    assert_shows(place, counted, 1)


def test_aggregates_that_are_added_are_copied(place: Place, tmp_path: Path) -> None:
    counted = Counted(str(tmp_path / "location"))
    counted.send(draw(random.Random(3), 60))
    with mr.mirror(counted.url, place.url) as mirror:
        mirror.catch_up()
        more = [*AGGREGATES, AggregateSpec("most", "max", "v", T.LongType(), ())]
        operator = AggregateOperator(counted.operator.name, KEYS, more)
        commit_full(Epochs(counted.url, operator, counted.key_groups))
        assert mirror.catch_up() == 2
        assert mirror.applied is not None
        assert (mirror.applied.kind, mirror.applied.upserts) == (COPY, len(counted.history[1]))
    assert place.epoch() == 2
    old = as_rows(counted.history[1])
    assert place.rows() == {key: {**row, "most": None} for key, row in old.items()}


def commit_full(epochs: Epochs) -> None:
    """An epoch without rows, whose manifest says what the operators are."""
    times, assignments = epochs.times(), {epochs.operator.name: epochs.assignment}
    reports = collect_reports(times.epoch, assignments, epochs.run())
    commit = Commit("run", epochs.trail.epoch, full=True)
    commit_epoch(
        epochs.journal, epochs.trail, times, [epochs.operator], assignments, reports, commit
    )


@pytest.mark.parametrize(
    "target", ["", "redis:", "mysql://host/db", "rocksdb:", "/data/x", "kafka://u:secret@h"]
)
def test_targets_that_there_are_not(counted: Counted, target: str) -> None:
    with pytest.raises(UnsupportedMirrorError, match="rocksdb:PATH") as raised:
        mr.mirror(counted.url, target)
    assert "secret" not in str(raised.value)
