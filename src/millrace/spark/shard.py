"""A shard: one Spark task that reads version v and writes segments of version v + 1.

It runs inside `mapInArrow`, in a Python worker. It changes nothing that exists: running it twice,
on two executors, or half-way, harms nothing, because only the manifest makes a segment real.
Segments are written while the output goes back to Spark, and are durable before the report is sent.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from millrace import clock, crashpoints
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, group_shift, parse_ranges
from millrace.log.segment import segment_path
from millrace.log.store import open_store
from millrace.operators import Change, Moment, Operator, from_spec
from millrace.operators.operator import MAIN_OUTPUT, runs_every_epoch, table_name
from millrace.spark.outputs import outgoing
from millrace.spark.report import ShardReport, TableReport
from millrace.state import cache
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups
from millrace.state.writing import compose_segment

MOMENT_PROPERTY = "millrace.moment"
"""The local property that says, for each attempt of a task, which shard it is, on which executor it
runs, and what differs between epochs: version, time and watermark."""


@dataclass(frozen=True)
class ShardTask:
    """What a shard needs to know. It is the same for all epochs, so that their plan is too."""

    location: str
    query: str
    operator: OperatorName
    spec: str
    code: bytes | None
    """The operator itself, for those that a spec does not describe completely."""
    key_groups: int
    groups: tuple[str, ...]
    """The key groups of each shard, as ranges."""
    index_budget: int
    ansi: bool
    outputs: tuple[str, ...] = (MAIN_OUTPUT,)
    """The operator's outputs that somebody reads."""
    driver: int | None = None
    """The driver's process id, when a test wants it killed."""


Batches = Iterator[pa.RecordBatch]


def shard_function(
    task: ShardTask, reports: Accumulator[list[ShardReport]]
) -> Callable[[Batches], Batches]:
    """The function that Spark ships to its workers."""
    return functools.partial(_run, task, reports)


def encode_moment(
    version: Epoch, processing_us: int, watermark_us: int | None, late_us: int | None
) -> str:
    return json.dumps([version, processing_us, watermark_us, late_us])


@functools.lru_cache(maxsize=64)
def _operator(name: OperatorName, spec: str, code: bytes | None, ansi: bool) -> Operator:
    if code is not None:
        # The query's own program, shipped by its driver with the task; never read from a location.
        cls, arguments = pickle.loads(code)
        operator: Operator = cls(*arguments)
        return operator
    return from_spec(name, json.loads(spec), ansi=ansi)


@functools.lru_cache(maxsize=64)
def _assignment(groups: tuple[str, ...], key_groups: int) -> Assignment:
    return Assignment.from_json({"shards": len(groups), "groups": groups}, key_groups)


def task_operator(task: ShardTask) -> Operator:
    """The operator that a task is for."""
    return _operator(task.operator, task.spec, task.code, task.ansi)


@dataclass(frozen=True)
class Told:
    """What a task was told by the rows it computes."""

    shard: Shard
    executor: str
    moment: Any


def told() -> Told:
    """This task's shard, executor and moment."""
    context = TaskContext.get()
    assert context is not None
    for line in (context.getLocalProperty(MOMENT_PROPERTY) or "").splitlines():
        attempt, shard, executor, moment = line.split(" ", 3)
        if int(attempt) == context.taskAttemptId():
            return Told(Shard(int(shard)), f"executor-{executor}", json.loads(moment))
    raise EpochFailedError(
        "a shard was run without its epoch. This is a bug in Millrace; nothing was committed."
    )


def _run(task: ShardTask, reports: Accumulator[list[ShardReport]], batches: Batches) -> Batches:
    mine = told()
    shard = mine.shard
    version, processing_us, watermark_us, late_us = mine.moment
    assignment = _assignment(task.groups, task.key_groups)
    moment = Moment(version + 1, processing_us, watermark_us, late_us, assignment)
    watch = _Stopwatch()
    rows = [batch for batch in batches if batch.num_rows]
    watch.lap("input")
    crashpoints.reach(crashpoints.AFTER_INPUT, moment.epoch, task.driver)
    operator = task_operator(task)
    if not rows and not runs_every_epoch(operator):
        reports.add([_report(task, moment, mine, watch, 0, {}, {}, {})])
        return
    groups = parse_ranges(task.groups[shard])
    held = cache.Cache(task.location, task.query, task.key_groups, Epoch(version))
    every = np.arange(task.key_groups)
    replicas = {
        table: held.replica(
            table_name(task.operator, table),
            layout.schema,
            layout.owned,
            every if layout.everywhere else groups,
        )
        for table, layout in operator.tables.items()
    }
    watch.lap("follow")
    table = pa.Table.from_batches(rows) if rows else operator.no_rows()
    change = operator.apply(replicas, table, groups, moment)
    changed = _changed_rows(task, change)
    _check_routing(task, shard, groups, changed)
    watch.lap("apply")
    crashpoints.reach(crashpoints.BEFORE_SEGMENT, moment.epoch, task.driver)
    with ThreadPoolExecutor(1, thread_name_prefix="millrace-segment") as writer:
        writing = writer.submit(
            _write_segments, task, operator, shard, groups, replicas, change, moment
        )
        yield from outgoing(operator, change, task.outputs)
        watch.lap("output")
        written = writing.result()
    watch.lap("segment")
    group_rows = {int(group): int(changed[group]) for group in np.flatnonzero(changed)}
    counters = _with_expired(change.counters, written)
    reports.add([_report(task, moment, mine, watch, table.num_rows, written, group_rows, counters)])
    crashpoints.reach(crashpoints.AFTER_SEGMENT, moment.epoch, task.driver)


def _write_segments(
    task: ShardTask,
    operator: Operator,
    shard: Shard,
    groups: npt.NDArray[np.int64],
    replicas: dict[str, Replica],
    change: Change,
    moment: Moment,
) -> dict[str, TableReport]:
    store = open_store(task.location)
    # One budget for all tables of an operator.
    budget = task.index_budget // len(replicas)
    reports = {}
    for table, changed in change.tables.items():
        if not changed.rows.num_rows:
            continue
        name = table_name(task.operator, table)
        path = segment_path(name, Epoch(moment.epoch), shard, clock.fresh_id()[:12])
        sweep = operator.sweep(table, moment)
        written = compose_segment(replicas[table], path, changed.rows, groups, budget, sweep)
        store.put(path, memoryview(written.buffer))
        reports[table] = TableReport(
            segment=written.entry,
            changed_rows=changed.rows.num_rows,
            added_rows=changed.added,
            removed_rows=changed.removed + written.swept_rows,
            merged_rows=written.merged_rows,
            expired_rows=written.swept_rows,
        )
    return reports


def _changed_rows(task: ShardTask, change: Change) -> npt.NDArray[np.int64]:
    """How many rows of state each key group changed."""
    total = np.zeros(task.key_groups, np.int64)
    for changed in change.tables.values():
        hi = changed.rows.column(0).to_numpy()
        total += count_groups(hi, np.uint64(group_shift(task.key_groups)), task.key_groups)
    return total


def _check_routing(
    task: ShardTask,
    shard: Shard,
    groups: npt.NDArray[np.int64],
    changed: npt.NDArray[np.int64],
) -> None:
    foreign = changed.copy()
    foreign[groups] = 0
    if foreign.any():
        raise EpochFailedError(
            f"shard {shard} of operator {task.operator!r} got rows of key group "
            f"{int(foreign.argmax())}, which it does not own. This is a bug in Millrace; "
            "nothing was committed."
        )


def _report(
    task: ShardTask,
    moment: Moment,
    mine: Told,
    watch: _Stopwatch,
    input_rows: int,
    tables: dict[str, TableReport],
    group_rows: dict[int, int],
    counters: dict[str, int],
) -> ShardReport:
    return ShardReport(
        operator=task.operator,
        epoch=Epoch(moment.epoch),
        shard=mine.shard,
        tables=tables,
        input_rows=input_rows,
        heap_bytes=cache.heap_bytes(),
        executor=mine.executor,
        group_rows=group_rows,
        counters=counters,
        seconds=watch.laps,
    )


def _with_expired(counters: dict[str, int], tables: dict[str, TableReport]) -> dict[str, int]:
    swept = sum(report.expired_rows for report in tables.values())
    return counters | {"expired": counters.get("expired", 0) + swept} if swept else counters


class _Stopwatch:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = clock.stopwatch()

    def lap(self, name: str) -> None:
        now = clock.stopwatch()
        self.laps[name] = now - self._last
        self._last = now
