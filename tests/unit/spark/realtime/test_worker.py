"""The process of a shard: an epoch in frames is the epoch in one piece, for every kind of operator.

The oracle is the same operator in the harness that runs each epoch in one step.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.spark.realtime.resident import (
    Cut,
    ResidentShards,
    in_frames,
    write_opening,
)

import millrace as mr
from millrace import clock
from millrace.epoch.report import ShardReport
from millrace.errors import EpochFailedError
from millrace.spark.realtime import frames, worker
from millrace.state.table import Table
from millrace.testing import DedupHarness, Harness, JoinHarness, SessionHarness, WindowHarness

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
KEYS = "abcdefgh"


class Basket(mr.Processor):
    """State of every kind, and a timer that is due in a later epoch."""

    total = mr.Value("long", default=0)
    items = mr.List("long")
    seen = mr.Map("long", "long")
    deadline = mr.ProcessingTimeTimer()

    def process(self, key: Any, rows: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.total.set(self.total.get() + row.v)
            self.items.append(row.v)
            self.seen[row.v % 3] = self.seen.get(row.v % 3, 0) + 1
        self.deadline.set(context.processing_time + dt.timedelta(seconds=90))
        yield key.k, self.total.get(), False

    def on_timer(self, key: Any, timer: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield key.k, self.total.get(), True
        self.items.clear()


def basket() -> Harness:
    return Harness(
        Basket(), key="k", schema="k string, v long", output="k string, total long, due boolean"
    )


def windows() -> WindowHarness:
    return WindowHarness(
        key="k",
        schema="k string, v long, t timestamp",
        event_time="t",
        size="1 minute",
        aggregates={"n": mr.count(), "total": mr.sum("v"), "most": mr.max("v")},
        shards=2,
    )


def sessions() -> SessionHarness:
    return SessionHarness(
        key="k",
        schema="k string, v long, t timestamp",
        event_time="t",
        gap="30 seconds",
        aggregates={"n": mr.count(), "total": mr.sum("v")},
    )


def dedup() -> DedupHarness:
    return DedupHarness(
        key=["k", "v"], schema="k string, v long, t timestamp", event_time="t", shards=3
    )


def of_one(_: int) -> list[int]:
    return [1] * _


def of_some(count: int) -> list[int]:
    sizes, dice = [], clock.dice(f"frames of {count}")
    while count:
        sizes.append(dice.randint(1, min(count, 5)))
        count -= sizes[-1]
    return sizes


def epochs() -> Iterator[list[dict[str, Any]]]:
    dice = clock.dice("epochs in frames")
    for number in range(6):
        begin = NOON + dt.timedelta(seconds=40 * number)
        yield [
            {
                "k": dice.choice(KEYS),
                "v": dice.randint(0, 5),
                "t": begin + dt.timedelta(seconds=dice.randint(0, 59)),
            }
            for _ in range(dice.choice([0, 1, 7, 25]))
        ]


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def last_of_each(rows: list[tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row for row in rows}


def states(harness: Any) -> dict[str, list[dict[str, Any]]]:
    return {name: harness.state(name) for name in harness._operator.tables}


@pytest.mark.parametrize("cut", [of_one, of_some])
@pytest.mark.parametrize("make", [basket, windows, sessions, dedup])
def test_an_epoch_in_frames_is_the_epoch_in_one_piece(make: Callable[[], Any], cut: Cut) -> None:
    whole, framed = make(), in_frames(make(), cut)
    for number, rows in enumerate(epochs()):
        if make is basket:
            rows = [{"k": row["k"], "v": row["v"]} for row in rows]
        expected, found = whole.send(rows), framed.send(rows)
        assert states(framed) == states(whole)
        if make is basket:
            # An answer for each frame; the last of each key is that of the whole epoch.
            assert last_of_each(found) == last_of_each(expected)
            assert len(found) >= len(expected)
            moved = [h.advance_time(dt.timedelta(seconds=35)) for h in (whole, framed)]
        else:
            assert in_order(found) == in_order(expected)
            mark = NOON + dt.timedelta(seconds=40 * number)
            moved = [h.advance_watermark(mark) for h in (whole, framed)]
        assert in_order(moved[1]) == in_order(moved[0])
        assert states(framed) == states(whole)


def test_windows_in_update_mode_answer_each_frame() -> None:
    harness = in_frames(
        WindowHarness(
            key="k",
            schema="k string, t timestamp",
            event_time="t",
            size="1 minute",
            aggregates={"n": mr.count()},
            emit="update",
        ),
        of_one,
    )
    sent = harness.send([{"k": "a", "t": NOON}] * 3)
    at = harness._operator.output_schema.names.index("n")
    assert [row[at] for row in sent] == [1, 2, 3]


def test_joins_meet_rows_of_earlier_frames() -> None:
    harness = in_frames(
        JoinHarness(
            on="k",
            left="k string, l long, lt timestamp",
            right="k string, r long, rt timestamp",
            left_time="lt",
            right_time="rt",
            within=("-1 minute", "1 minute"),
        ),
        of_one,
    )
    left = [{"k": "a", "l": n, "lt": NOON} for n in range(3)]
    right = [{"k": "a", "r": n, "rt": NOON} for n in range(4)]
    assert len(harness.send(left, right)) == 12


def test_the_first_frame_of_an_epoch_does_not_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = in_frames(basket(), of_one)
    rows = [{"k": key, "v": 1} for key in KEYS]
    harness.send(rows)
    harness.send(rows)
    taken = []
    take = Table.take

    def noted(table: Table, piece: Any, takers: Any) -> None:
        taken.append(piece)
        take(table, piece, takers)

    def apply(shard: worker.ResidentShard, data: bytes) -> list[pa.RecordBatch]:
        before = len(taken)
        answers = applied(shard, data)
        assert len(taken) == before
        return answers

    applied = worker.ResidentShard.apply
    monkeypatch.setattr(Table, "take", noted)
    monkeypatch.setattr(worker.ResidentShard, "apply", apply)
    harness.send(rows)
    assert taken


def opened() -> tuple[ResidentShards, frames.Opening, bytes]:
    harness = in_frames(basket(), of_one)
    shards: ResidentShards = harness._shards
    rows = pa.RecordBatch.from_pydict(
        {
            "_hi": pa.array([1], pa.int64()),
            "_lo": pa.array([1], pa.int64()),
            "_part": pa.array([0], pa.int32()),
            "_k0": ["a"],
            "_c0": ["a"],
            "_c1": pa.array([5], pa.int64()),
        }
    )
    return shards, shards.opening(shards.times(), 0, rows.schema), rows.serialize().to_pybytes()


def served(*sent: tuple[int, bytes], opening: frames.Opening | None) -> list[frames.Frame]:
    """What a process answers to some frames, until its input ends or it gives up."""
    given, answered = io.BytesIO(), io.BytesIO()
    if opening is not None:
        write_opening(given, opening)
    for kind, data in sent:
        frames.write(given, kind, data)
    given.seek(0)
    with contextlib.suppress(SystemExit):
        worker.main(given, answered)
    answered.seek(0)
    found = []
    while (frame := frames.read(answered)) is not None:
        assert isinstance(frame, frames.Frame)
        found.append(frame)
    return found


def test_a_process_answers_frames_and_reports_at_the_end() -> None:
    shards, opening, rows = opened()
    found = served((frames.ROWS, rows), (frames.ROWS, rows), (frames.END, b""), opening=opening)
    assert [frame.kind for frame in found] == [
        frames.OPENED,
        *(frames.ANSWER, frames.DONE) * 2,
        frames.REPORT,
    ]
    report = pickle.loads(found[-1].data)
    assert isinstance(report, ShardReport)
    assert (report.input_rows, report.counters["steps"], report.executor) == (2, 2, "executor-1")
    paths = set(shards.journal.store.list(""))
    assert all(table.segment.path in paths for table in report.tables.values())


def test_a_process_serves_epoch_after_epoch() -> None:
    _, opening, rows = opened()
    given, answered = io.BytesIO(), io.BytesIO()
    for _ in range(2):
        write_opening(given, opening)
        frames.write(given, frames.ROWS, rows)
        frames.write(given, frames.END)
    given.seek(0)
    worker.main(given, answered)
    answered.seek(0)
    kinds = []
    while (frame := frames.read(answered)) is not None:
        kinds.append(frame.kind if isinstance(frame, frames.Frame) else frames.OPEN)
    # Nothing was committed, so the second is the same epoch again.
    assert kinds == [frames.OPENED, frames.ANSWER, frames.DONE, frames.REPORT] * 2


def test_an_error_is_told_with_its_class_and_ends_the_process() -> None:
    _, opening, rows = opened()
    found = served((frames.ROWS, rows[:-8]), opening=opening)
    assert [frame.kind for frame in found] == [frames.OPENED, frames.FAILED]
    assert b"Traceback" in found[-1].data
    told = served((frames.END, b""), opening=None)
    assert [frame.kind for frame in told] == [frames.FAILED]
    assert f"{EpochFailedError.__module__}.EpochFailedError: ".encode() in told[0].data


def test_a_task_that_leaves_is_told_nothing() -> None:
    _, opening, rows = opened()
    assert [f.kind for f in served(opening=opening)] == [frames.OPENED]
    answered = [f.kind for f in served((frames.ROWS, rows), opening=opening)]
    assert answered == [frames.OPENED, frames.ANSWER, frames.DONE]
