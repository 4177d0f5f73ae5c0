"""A shard as a Spark task: rows come in through `mapInArrow`, the output goes back the same way.

What a shard does is in `millrace.epoch.shard`. Here is how a task learns which shard it is and at
which moment, and how its report reaches the driver: by an accumulator. Segments are written while
the output goes back to Spark, and are durable before the report is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from millrace import clock, hooks
from millrace.epoch.arrivals import Arrivals, arrivals
from millrace.epoch.commit import Times, Watermark
from millrace.epoch.report import ShardReport
from millrace.epoch.rows import decode
from millrace.epoch.shard import ShardTask, has_work, idle_report, open_shard
from millrace.errors import EpochFailedError
from millrace.ids import OperatorName, Shard
from millrace.spark.outputs import outgoing
from millrace.state.cache import process_cache

MOMENT_PROPERTY = "millrace.moment"
"""The local property that says, for each attempt of a task, which shard it is, on which executor it
runs, and what differs between epochs: version, time and watermark."""

Batches = Iterator[pa.RecordBatch]


class ReportParam(AccumulatorParam[list[ShardReport]]):
    """Reports add up to a list."""

    def zero(self, value: list[ShardReport]) -> list[ShardReport]:
        return []

    def addInPlace(self, value1: list[ShardReport], value2: list[ShardReport]) -> list[ShardReport]:
        value1.extend(value2)
        return value1


def encode_times(times: Times) -> str:
    """An epoch's times, as its tasks find them in their local property."""
    return json.dumps(dataclasses.astuple(times))


def decode_times(moment: list[Any]) -> Times:
    """What `encode_times` wrote, after JSON."""
    *times, watermarks = moment
    by_operator = {OperatorName(name): Watermark(*both) for name, both in watermarks.items()}
    return dataclasses.replace(Times(*times), watermarks=by_operator)


@dataclass(frozen=True)
class TaskIdentity:
    """Who a task is."""

    shard: Shard
    executor: str
    """Where it really runs, which need not be where it was preferred to run."""
    moment: Any


def task_identity() -> TaskIdentity:
    """The identity of the task that is running."""
    context = TaskContext.get()
    assert context is not None
    for line in (context.getLocalProperty(MOMENT_PROPERTY) or "").splitlines():
        attempt, shard, executor, moment = line.split(" ", 3)
        if int(attempt) == context.taskAttemptId():
            return TaskIdentity(Shard(int(shard)), f"executor-{executor}", json.loads(moment))
    raise EpochFailedError(
        "a shard was run without its epoch. This is a bug in Millrace; nothing was committed."
    )


def shard_function(
    task: ShardTask, outputs: tuple[str, ...], reports: Accumulator[list[ShardReport]]
) -> Callable[[Batches], Batches]:
    """The function that Spark ships to its workers; `outputs` are those that are read."""
    return functools.partial(_run, task, outputs, reports)


def _run(
    task: ShardTask,
    outputs: tuple[str, ...],
    reports: Accumulator[list[ShardReport]],
    batches: Batches,
) -> Batches:
    me = task_identity()
    times = decode_times(me.moment)
    watch = _Stopwatch()
    processor = clock.processor_seconds()
    rows = [batch for batch in batches if batch.num_rows]
    watch.lap("input")
    hooks.reach(hooks.AFTER_INPUT, times.epoch)
    operator = task.load()
    if not has_work(operator, len(rows)):
        heap = process_cache.heap_bytes
        reports.add([idle_report(task, me.shard, times.epoch, me.executor, heap, watch.laps)])
        return
    shard = open_shard(task, operator, me.shard, times.moment(task.assignment, task.operator))
    watch.lap("follow")
    given = decode(pa.Table.from_batches(rows)) if rows else None
    change = shard.apply(given)
    watch.lap("apply")
    hooks.reach(hooks.BEFORE_SEGMENT, times.epoch)
    with ThreadPoolExecutor(1, thread_name_prefix="millrace-segment") as writer:
        sealing = writer.submit(shard.seal, me.executor, watch.laps)
        yield from outgoing(operator, change, outputs)
        watch.lap("output")
        report = sealing.result()
    watch.lap("segment")
    came = Arrivals({}) if given is None else arrivals(given, shard.groups, task.key_groups)
    used = clock.processor_seconds() - processor
    reports.add(
        [
            dataclasses.replace(
                report,
                arrived_rows=came.rows,
                hot_key=came.hot_key,
                processor_seconds=used,
            )
        ]
    )
    hooks.reach(hooks.AFTER_SEGMENT, times.epoch)


class _Stopwatch:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = clock.stopwatch()

    def lap(self, name: str) -> None:
        now = clock.stopwatch()
        self.laps[name] = now - self._last
        self._last = now
