"""A shard: one Spark task that reads version v and writes a segment of version v + 1.

It runs inside `mapInArrow`, in a Python worker. It changes nothing that exists: running it twice,
on two executors, or half-way, harms nothing, because only the manifest makes a segment real.
The segment is written while the output goes back to Spark, and is durable before the report is
sent.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from millrace import clock, crashpoints
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import group_shift, parse_ranges
from millrace.log.segment import SectionData, SegmentEntry, encode_segment, segment_path
from millrace.log.store import open_store
from millrace.operators import Change, Operator, from_spec
from millrace.spark.report import ShardReport
from millrace.state import cache
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups

VERSION_PROPERTY = "millrace.version"
"""The job's local property that says which version its shards read."""

OUTPUT_ROWS = 65536
"""Rows per record batch that goes back to Spark."""


@dataclass(frozen=True)
class ShardTask:
    """What a shard needs to know. It is the same for all epochs, so that their plan is too."""

    location: str
    query: str
    operator: OperatorName
    spec: str
    key_groups: int
    groups: tuple[str, ...]
    """The key groups of each shard, as ranges."""
    index_budget: int
    ansi: bool
    driver: int | None = None
    """The driver's process id, when a test wants it killed."""


Batches = Iterator[pa.RecordBatch]


def shard_function(
    task: ShardTask, reports: Accumulator[list[ShardReport]]
) -> Callable[[Batches], Batches]:
    """The function that Spark ships to its workers."""
    return functools.partial(_run, task, reports)


@functools.lru_cache(maxsize=64)
def _operator(name: OperatorName, spec: str, ansi: bool) -> Operator:
    return from_spec(name, json.loads(spec), ansi=ansi)


def _run(task: ShardTask, reports: Accumulator[list[ShardReport]], batches: Batches) -> Batches:
    context = TaskContext.get()
    assert context is not None
    shard = Shard(context.partitionId())
    version = Epoch(int(context.getLocalProperty(VERSION_PROPERTY) or -1))
    groups = parse_ranges(task.groups[shard])
    watch = _Stopwatch()
    rows = [batch for batch in batches if batch.num_rows]
    watch.lap("input")
    if not rows:
        reports.add([_report(task, version, shard, None, None, 0, 0, watch)])
        return
    operator = _operator(task.operator, task.spec, task.ansi)
    replica = cache.replica_at(
        task.location,
        task.query,
        task.key_groups,
        task.operator,
        operator.state_schema,
        version,
        groups,
    )
    watch.lap("follow")
    table = pa.Table.from_batches(rows)
    change = operator.apply(replica, table)
    _check_routing(task, shard, groups, change)
    watch.lap("apply")
    with ThreadPoolExecutor(1, thread_name_prefix="millrace-segment") as writer:
        writing = writer.submit(_write_segment, task, shard, groups, replica, change)
        for start in range(0, change.output.num_rows, OUTPUT_ROWS):
            yield change.output.slice(start, OUTPUT_ROWS)
        watch.lap("output")
        entry, merged = writing.result()
    watch.lap("segment")
    reports.add([_report(task, version, shard, entry, change, table.num_rows, merged, watch)])
    crashpoints.reach(crashpoints.AFTER_SEGMENT, version + 1, task.driver)


def _write_segment(
    task: ShardTask,
    shard: Shard,
    groups: npt.NDArray[np.int64],
    replica: Replica,
    change: Change,
) -> tuple[SegmentEntry, int]:
    sections: list[SectionData] = replica.delta(change.rows)
    merging = replica.plan_merges(groups, change.rows.num_rows, task.index_budget)
    merged = 0
    if len(merging):
        base = replica.merged(merging)
        merged = base.rows.num_rows
        sections.append(base)
    run = replica.run(np.setdiff1d(groups, merging))
    if run is not None:
        sections.append(run)
        merged += run.rows.num_rows
    epoch = Epoch(replica.version + 1)
    path = segment_path(task.operator, epoch, shard, clock.fresh_id()[:12])
    buffer, entry = encode_segment(path, epoch, sections)
    open_store(task.location).put(path, memoryview(buffer))
    return entry, merged


def _check_routing(
    task: ShardTask, shard: Shard, groups: npt.NDArray[np.int64], change: Change
) -> None:
    hi = change.rows.column(0).to_numpy()
    counts = count_groups(hi, np.uint64(group_shift(task.key_groups)), task.key_groups)
    counts[groups] = 0
    if counts.any():
        raise EpochFailedError(
            f"shard {shard} of operator {task.operator!r} got rows of key group "
            f"{int(counts.argmax())}, which it does not own. This is a bug in Millrace; nothing "
            "was committed."
        )


def _report(
    task: ShardTask,
    version: Epoch,
    shard: Shard,
    entry: SegmentEntry | None,
    change: Change | None,
    input_rows: int,
    merged_rows: int,
    watch: _Stopwatch,
) -> ShardReport:
    return ShardReport(
        operator=task.operator,
        epoch=Epoch(version + 1),
        shard=shard,
        segment=entry,
        input_rows=input_rows,
        changed_rows=change.rows.num_rows if change else 0,
        added_rows=change.added if change else 0,
        removed_rows=change.removed if change else 0,
        merged_rows=merged_rows,
        heap_bytes=cache.heap_bytes(),
        seconds=watch.laps,
    )


class _Stopwatch:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = clock.stopwatch()

    def lap(self, name: str) -> None:
        now = clock.stopwatch()
        self.laps[name] = now - self._last
        self._last = now
