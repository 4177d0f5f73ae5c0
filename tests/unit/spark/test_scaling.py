"""What autoscaling sees of an epoch, without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from millrace import clock
from millrace.epoch.arrivals import HotKey
from millrace.epoch.report import ShardReport
from millrace.ids import Epoch, OperatorName, Shard
from millrace.log import open_store
from millrace.reconfigure.autoscale.observing import HotGroup, Observation
from millrace.reconfigure.cluster import Executor
from millrace.spark import scaling
from millrace.spark.scaling import EndedEpoch, ScalingThread, operator_load
from millrace.spark.source_limits import SourceLimits

OP = OperatorName("op")


def report(shard: int, rows: int, **more: Any) -> ShardReport:
    facts = {"seconds": {"input": 0.1, "apply": 0.2}, "processor_seconds": 0.15, **more}
    return ShardReport(OP, Epoch(1), Shard(shard), {}, rows, 0, f"executor-{shard}", **facts)


def test_shards_and_hot_groups_of_an_operator() -> None:
    first = report(0, 60, arrived_rows={0: 50, 1: 10}, hot_key=HotKey(0, "'a'", 0.9))
    second = report(1, 40, arrived_rows={2: 30, 3: 10}, group_rows={2: 10})
    load = operator_load("op", [first, second])
    assert load.rows == 100
    assert [round(s.busy, 3) for s in load.shards] == [0.3, 0.3]
    assert [s.executor for s in load.shards] == ["executor-0", "executor-1"]
    assert [s.cpu for s in load.shards] == [0.15, 0.15]
    assert load.hot == (
        HotGroup(0, round(50 / 110, 4), "'a'", 0.45),
        HotGroup(2, round(40 / 110, 4)),
        HotGroup(1, round(10 / 110, 4)),
    )
    assert operator_load("op", [report(0, 0)]).hot == ()


class Scaler:
    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.written = 0

    def observe(self, seen: Observation) -> None:
        self.seen.append(seen)

    def write(self) -> None:
        self.written += 1


def progress(batch: int, rows: int, read: int = 0, there: int = 0) -> dict[str, Any]:
    offsets = {"endOffset": {"t": {"0": read}}, "latestOffset": {"t": {"0": there}}}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "timestamp": f"2024-01-01T00:00:{batch:02d}.000Z",
        "sources": [{"description": "kafka", **offsets}],
    }


def test_epochs_become_observations_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "POLL_SECONDS", 0.0)
    published: list[dict[str, Any]] = []
    scaler = Scaler()
    director: Any = SimpleNamespace(
        executors=lambda: (Executor("executor-0", "h", 2), Executor("executor-1", "h", 2))
    )
    thread = ScalingThread(
        scaler,  # type: ignore[arg-type]
        director,
        lambda: published[-1] if published else None,
        2.5,
        SourceLimits(open_store(f"memory://scaling-{clock.fresh_id()}"), list),
    )
    thread.thread.start()
    reports = {OP: {Shard(1): report(1, 40), Shard(0): report(0, 60)}}
    ended = EndedEpoch(1, 0, 100.0, 0.5, 10.0, reports, 77)

    def next_epoch(number: int, began: float) -> None:
        before = len(scaler.seen)
        thread.after_epoch(replace(ended, epoch=number, batch_id=number - 1, began=began))
        until(lambda: len(scaler.seen) > before, "an epoch seen")

    # Nobody knows how long the rows of the first took to come.
    published.append(progress(0, 1000, 10, 10))
    thread.after_epoch(ended)
    until(lambda: not thread._ended, "the first one taken")
    published.append(progress(1, 1000, 20, 20))
    next_epoch(2, 11.5)
    published.append(progress(2, 2000, 30, 130))
    next_epoch(3, 13.5)
    # Spark says nothing about this one, and has gone on without one word about the next.
    next_epoch(4, 14.0)
    published.append(progress(9, 5))
    next_epoch(5, 14.5)
    # Nothing came for a long time: the rows did not take that long to come.
    next_epoch(6, 1000.0)
    assert scaler.seen.pop().interval == 4.5
    thread.close()
    first, second, silent, missed = scaler.seen
    assert (first.epoch, first.interval, first.rows, first.backlog) == (2, 1.5, 1000, 0)
    assert (second.interval, second.rows, second.backlog, second.behind) == (2.0, 2000, 100, 1.0)
    assert (silent.rows, silent.backlog) == (100, None)
    assert (missed.epoch, missed.rows) == (5, 100)
    assert (first.cores, first.executors, first.trigger, first.state_bytes) == (4, 2, 2.5, 77)
    assert [s.rows for s in first.operators[0].shards] == [60, 40]
    assert scaler.written == 1
