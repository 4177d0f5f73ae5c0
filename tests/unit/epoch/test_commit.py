"""An epoch's times, and its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.epoch.counting import NAME, Counting, Driven

from millrace.epoch.commit import (
    Commit,
    Times,
    Watermark,
    collect_reports,
    commit_epoch,
    commit_without_rows,
    figures_of,
    group_loads,
)
from millrace.epoch.report import ShardReport
from millrace.errors import EpochFailedError, FencedError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment
from millrace.log import Trail
from millrace.spark.shard import decode_times, encode_times


def report(operator: str, epoch: int, shard: int, **more: Any) -> ShardReport:
    name, number = OperatorName(operator), Epoch(epoch)
    return ShardReport(name, number, Shard(shard), {}, more.pop("input_rows", 0), 0, "", **more)


@pytest.fixture
def driven(tmp_path: Path) -> Driven:
    return Driven(str(tmp_path), shards=2)


def test_times_of_the_first_epoch() -> None:
    times = Times.after(Trail(8), 5_000_123, 7_000_001)
    assert times == Times(Epoch(0), 5_000_123, 7_000_001, None)
    assert times.epoch == 1
    assert times.watermark_ms == 7_000
    moment = times.moment(Assignment.even(8, 2))
    assert (moment.epoch, moment.processing_us, moment.watermark_us) == (1, 5_000_123, 7_000_001)
    assert moment.late_us is None
    assert moment.assignment == Assignment.even(8, 2)


def test_without_a_watermark(driven: Driven) -> None:
    assert Times.after(driven.trail, 1, None).watermark_ms is None


def test_late_is_what_is_behind_the_watermark_of_the_epoch_before(driven: Driven) -> None:
    driven.commit(driven.run([1]), Times.after(driven.trail, 9_000_000, 4_000_000))
    times = Times.after(driven.trail, 9_500_000, 6_000_000)
    checksum = driven.trail.checksum
    assert times == Times(Epoch(1), 9_500_000, 6_000_000, 4_000_000, checksum, 9_000_000)


def test_each_operator_has_a_watermark_which_never_falls(driven: Driven) -> None:
    assert driven.trail.watermark_us(NAME) is None
    first = Times.after(driven.trail, 1_000, 4_000_000, {NAME: 3_999_999})
    assert first.watermark(NAME) == Watermark(3_999_999, None)
    assert first.watermark(OperatorName("other")) == Watermark(4_000_000, None)
    driven.commit(driven.run([1]), first)
    assert driven.journal.read(Epoch(1))[0].watermarks == {NAME: 3_999_999}
    assert driven.journal.newest().watermark_us(NAME) == 3_999_999
    assert driven.journal.newest().watermark_us(OperatorName("other")) == 4_000_000
    second = Times.after(driven.trail, 1_000, 9_000_000, {NAME: 2_000_000})
    assert second.watermark(NAME) == Watermark(3_999_999, 3_999_999)
    moment = second.moment(driven.assignment, NAME)
    assert (moment.watermark_us, moment.late_us) == (3_999_999, 3_999_999)
    moment = second.moment(driven.assignment)
    assert (moment.watermark_us, moment.late_us) == (9_000_000, 4_000_000)
    assert decode_times(json.loads(encode_times(second))) == second


def test_processing_time_stands_still_where_the_clock_was_set_back(driven: Driven) -> None:
    driven.commit(driven.run([1]), Times.after(driven.trail, 9_000_000, None))
    assert driven.journal.read(Epoch(1))[0].processing_ms == 9_000
    assert Times.after(driven.trail, 8_000_000, None).processing_us == 9_000_000
    assert Times.after(driven.trail, 9_000_001, None).processing_us == 9_000_001


def test_a_manifest_has_what_the_shards_and_the_driver_say(driven: Driven) -> None:
    reports = driven.run([1, 2, 3, 4, 4])
    times = Times.after(driven.trail, 3_000_000, 2_000_000)
    assignments = {NAME: driven.assignment}
    found = collect_reports(Epoch(1), assignments, reports)
    commit = Commit("r1", 17, full=True, figures={"x": 1}, time_ms=55, unmet_parallelism={NAME: 4})
    operators = [driven.operator]
    commit_epoch(driven.journal, driven.trail, times, operators, assignments, found, commit)
    manifest = driven.journal.read(Epoch(1))[0]
    assert driven.trail.epoch == 1
    assert (manifest.run, manifest.batch_id, manifest.epoch) == ("r1", 17, 1)
    assert (manifest.watermark_ms, manifest.processing_ms, manifest.time_ms) == (2_000, 3_000, 55)
    assert manifest.is_full
    assert manifest.specs == {NAME: Counting().spec()}
    assert manifest.figures == {"x": 1}
    assert manifest.unmet_parallelism == {NAME: 4}
    assert {name: c.rows for name, c in manifest.operators.items()} == {
        "counts": 4,
        "counts/twice": 4,
    }
    segments = [t.segment.path for r in reports for t in r.tables.values()]
    named = [s.path for c in manifest.operators.values() for s in c.segments]
    assert sorted(named) == sorted(segments)
    assert all(c.assignment == driven.assignment for c in manifest.operators.values())


def test_offsets_stay_with_their_batch(driven: Driven) -> None:
    """An epoch without rows repeats the last batch and what it has read; another batch does not."""
    assignments, operators = {NAME: driven.assignment}, [driven.operator]

    def commit(batch: int, offsets: str | None) -> None:
        times = Times.after(driven.trail, 0, None)
        found = collect_reports(times.epoch, assignments, driven.run([1]))
        given = Commit("r1", batch, full=False, offsets=offsets)
        commit_epoch(driven.journal, driven.trail, times, operators, assignments, found, given)

    commit(3, "v1\nhere")
    idle = Commit("r1", None, full=False)
    commit_without_rows(driven.journal, driven.trail, operators, assignments, idle)
    trail = driven.journal.newest()
    assert (trail.epoch, trail.batch_id, trail.offsets) == (2, 3, "v1\nhere")
    commit(4, None)
    trail = driven.journal.newest()
    assert (trail.epoch, trail.batch_id, trail.offsets) == (3, 4, None)


def test_an_epoch_without_changes_still_names_the_main_table(driven: Driven) -> None:
    driven.epoch([1, 2])
    driven.epoch([])
    manifest = driven.journal.read(Epoch(2))[0]
    assert {name: (c.rows, c.segments) for name, c in manifest.operators.items()} == {
        "counts": (2, ())
    }


def test_rows_grow_and_shrink(driven: Driven) -> None:
    driven.epoch([1, 2, 3])
    driven.epoch([1] * 4)
    assert driven.trail.operators["counts"].rows == 2  # type: ignore[index]


def test_a_missing_report_fails_the_epoch() -> None:
    assignments = {
        OperatorName("a"): Assignment.even(8, 2),
        OperatorName("b"): Assignment.even(8, 1),
    }
    reports = [report("a", 4, 0), report("b", 4, 0), report("a", 3, 1)]
    with pytest.raises(EpochFailedError, match=r"epoch 4: shards \[1\] of operator 'a'"):
        collect_reports(Epoch(4), assignments, reports)


def test_of_a_shard_that_ran_twice_one_report_counts() -> None:
    assignments = {OperatorName("a"): Assignment.even(8, 1)}
    first, second = report("a", 4, 0, input_rows=1), report("a", 4, 0, input_rows=2)
    found = collect_reports(Epoch(4), assignments, [first, second])
    assert found == {"a": {0: second}}


def test_a_second_driver_is_fenced(driven: Driven) -> None:
    late = driven.journal.trail(Epoch(0))
    reports = driven.run([1])
    driven.commit(reports)
    assignments = {NAME: driven.assignment}
    found = collect_reports(Epoch(1), assignments, reports)
    with pytest.raises(FencedError, match="epoch 1"):
        commit_epoch(
            driven.journal,
            late,
            Times.after(late, 0, None),
            [driven.operator],
            assignments,
            found,
            Commit("late", 0, full=False),
        )
    assert late.epoch == 0


def test_figures_of_reports() -> None:
    a, b = OperatorName("a"), OperatorName("b")
    few, many = {"late": 1}, {"late": 2, "evicted": 5, "expired": 4, "duplicates": 8}
    reports = {
        a: {
            Shard(0): report("a", 1, 0, input_rows=3, group_rows={0: 2, 1: 1}, counters=few),
            Shard(1): report("a", 1, 1, input_rows=4, group_rows={2: 5}, counters=many),
        },
        b: {Shard(0): report("b", 1, 0, counters={"late": 0, "expired": 2})},
    }
    assert figures_of(0.123456, reports) == {
        "seconds": 0.1235,
        "inputRows": {"a": 7, "b": 0},
        "lateRows": {"a": 3},
        "evictedRows": {"a": 9, "b": 2},
    }
    loads = group_loads(reports, 4)
    assert loads[a].tolist() == [2, 1, 5, 0]
    assert loads[b].tolist() == [0, 0, 0, 0]
