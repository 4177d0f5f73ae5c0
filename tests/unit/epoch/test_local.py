"""All shards of an operator in one process: who gets which rows, and what an epoch leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.epoch.counting import KEY_GROUPS, NAME, Counting, Driven, encode, expected

from millrace.epoch.commit import Commit, Watermark
from millrace.epoch.local import LocalShards, run_shard, split
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, Shard
from millrace.keygroups import Assignment, groups_of
from millrace.log import Journal, open_store
from millrace.log.segment import HI

KEYS = list(range(40))


def made(path: Path, shards: int, processes: int | None = None) -> LocalShards:
    journal = Journal.create(open_store(str(path)), KEY_GROUPS)
    assignment = Assignment.even(KEY_GROUPS, shards)
    return LocalShards(journal, Counting(), assignment, processes=processes)


def test_every_row_goes_to_the_owner_of_its_key_group() -> None:
    assignment = Assignment(3, (0, 2, 1, 2, 0, 0, 1, 2))
    rows = encode(KEYS)
    parts = split(rows, assignment)
    assert [part.num_rows > 0 for part in parts] == [True] * 3
    assert sum(part.num_rows for part in parts) == rows.num_rows
    for shard, part in enumerate(parts):
        groups = groups_of(part.column(HI).to_numpy(), KEY_GROUPS)
        assert {assignment.owners[group] for group in groups.tolist()} == {shard}


@pytest.mark.parametrize("processes", [None, 1, 2])
def test_epochs_count_whatever_shards_and_processes_there_are(
    tmp_path: Path, processes: int | None
) -> None:
    shards = made(tmp_path, 3, processes)
    for number, count in enumerate([3, 2, 4, 1]):
        shards.assignment = Assignment.even(KEY_GROUPS, count)
        times = shards.times()
        parts = split(encode(KEYS), shards.assignment)
        ran = shards.run(times, [[part.slice(0, 1), part.slice(1)] for part in parts])
        assert [len(shard.changes) for shard in ran] == [2] * count
        found = shards.commit(times, [s.report for s in ran], Commit("r", number, full=False))
        assert sorted(found[NAME]) == list(range(count))
        if number == 1:
            shards.restart()
    assert shards.trail.epoch == 4
    assert len({id(shards.cache(Shard(n))) for n in range(3)}) == (processes or 3)
    read = Driven.__new__(Driven)
    read.journal = shards.journal
    assert read.state() == expected(KEYS * 4)


def test_a_shard_without_rows_is_not_opened_and_reports(tmp_path: Path) -> None:
    shards = made(tmp_path, 1)
    times = shards.times()
    (idle,) = shards.run(times, [[encode([])]])
    assert idle.changes == []
    assert (idle.report.epoch, idle.report.input_rows, idle.report.tables) == (1, 0, {})
    eager = Counting()
    eager.runs_without_rows = True
    moment = shards.moment(times)
    for steps in ([], [encode([])]):
        ran = run_shard(shards.task, eager, Shard(0), moment, steps, shards.cache(Shard(0)), "e-1")
        assert len(ran.changes) == 1
        assert ran.report.executor == "e-1"


def test_the_operator_has_its_watermark_to_the_microsecond(tmp_path: Path) -> None:
    shards = made(tmp_path, 1)
    for watermark_us in (4_000_001, None):
        times = shards.times(9_000_000, watermark_us)
        (ran,) = shards.run(times, [[encode([1])]])
        shards.commit(times, [ran.report], Commit("r", None, full=False))
    assert times.watermark(NAME) == Watermark(4_000_001, 4_000_001)
    moment = shards.moment(shards.times(9_000_000, 5_000_002))
    assert (moment.watermark_us, moment.late_us) == (5_000_002, 4_000_001)
    assert shards.journal.newest().watermark_us(NAME) == 4_000_001


def test_a_shard_that_did_not_run_fails_the_commit(tmp_path: Path) -> None:
    shards = made(tmp_path, 2)
    times = shards.times()
    opened = shards.open(times)
    assert [shard.shard for shard in opened] == [0, 1]
    opened[0].apply(split(encode(KEYS), shards.assignment)[0])
    with pytest.raises(EpochFailedError, match=r"shards \[1\]"):
        shards.commit(times, [opened[0].seal()], Commit("r", 0, full=False))
    assert shards.journal.head() == Epoch(0)
