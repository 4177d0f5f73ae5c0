"""Following in the background: a Spark job that brings key groups up to date on some executors.

A round is one task per executor. A task follows as many key groups as its time and bytes allow and
reports how far it came, so an executor that also runs shards is never held for long. While epochs
run, it also gives way to them: what it computes runs at a low priority, for a machine may have
more executors than cores. It leaves a worker whose replicas are warm, and pages that are on the
executor's machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from millrace import clock
from millrace.epoch.shard import ShardTask
from millrace.ids import Epoch, OperatorName, table_name
from millrace.keygroups import format_ranges, parse_ranges
from millrace.reconfigure.cluster import Allowance, Followed, ToFollow
from millrace.spark.shard import task_identity
from millrace.spark.template import at_moment
from millrace.state.cache import ReplicaCache, process_cache

SCHEMA = "executor string, operator string, groups string, version long, bytes long"
NICENESS = 10
CHUNK = 8
"""Key groups that are followed before the clock is read again."""


_Result = TypeVar("_Result")


def follow(
    spark: SparkSession,
    preferred_locations: str,
    names: Sequence[str],
    tasks: Mapping[OperatorName, ShardTask],
    version: Epoch,
    to_follow: ToFollow,
    allowances: Mapping[str, Allowance],
) -> list[Followed]:
    """One round on the executors of these names at once."""
    parts = tuple(
        _Part(
            tuple(
                (tasks[op], format_ranges(sorted(groups))) for op, groups in to_follow[name].items()
            ),
            version,
            allowances[name],
        )
        for name in names
    )
    function: Any = functools.partial(_follow_parts, parts)
    frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(function, SCHEMA)
    rows = at_moment(frame, "null", preferred_locations).collect()
    return [
        Followed(
            OperatorName(row["operator"]),
            row["executor"],
            tuple(parse_ranges(row["groups"]).tolist()),
            Epoch(row["version"]),
            row["bytes"],
        )
        for row in rows
    ]


@dataclass(frozen=True)
class _Part:
    tasks: tuple[tuple[ShardTask, str], ...]
    version: Epoch
    allowance: Allowance


def _follow_parts(
    parts: tuple[_Part, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    # Where it really runs: a preferred location is only a wish.
    me = task_identity()
    executor, part = me.executor, parts[me.shard]
    started = clock.stopwatch()
    read = 0
    found = []

    def exhausted(more: int) -> bool:
        spent = clock.stopwatch() - started
        return spent >= part.allowance.seconds or read + more >= part.allowance.bytes

    for task, ranges in part.tasks:
        groups = parse_ranges(ranges)
        following = functools.partial(follow_here, task, part.version, groups, exhausted)
        done, version, bytes_ = (
            at_low_priority(following) if part.allowance.low_priority else following()
        )
        read += bytes_
        found.append((executor, task.operator, format_ranges(sorted(done)), version, bytes_))
    if not found:
        # It was only to be warmed up: the worker is there now, with its kernels.
        return
    columns = [pa.array(column) for column in zip(*found, strict=True)]
    names = ["executor", "operator", "groups", "version", "bytes"]
    yield pa.RecordBatch.from_arrays(columns, names)


def at_low_priority(function: Callable[[], _Result]) -> _Result:
    """Call a function in a thread of low priority.

    Linux has a priority per thread, and does not let a process raise it again: a thread of its own
    takes its low priority with it when it ends, and the worker stays what it was.
    """

    def lowered() -> _Result:
        with contextlib.suppress(OSError, AttributeError):
            thread = threading.get_native_id()
            # A worker of a lower priority still must not be raised, as root could.
            lower = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, lower)
        return function()

    with ThreadPoolExecutor(1, thread_name_prefix="millrace-follow") as thread:
        return thread.submit(lowered).result()


def follow_here(
    task: ShardTask,
    version: Epoch,
    groups: Any,
    exhausted: Callable[[int], bool],
    cache: ReplicaCache = process_cache,
) -> tuple[list[int], Epoch, int]:
    """Follow key groups here until exhausted; returns which, up to which version, and their bytes.

    What was followed before is brought up to date in one go, which is cheap; what is new comes in
    chunks, and at least one of them, so that a round always comes further.
    """
    held = cache.at_least(task.location, task.identity, version)
    names = {
        table_name(task.operator, table): layout for table, layout in task.load().tables.items()
    }
    known = set.intersection(*(held.holds(name) for name in names))
    old = np.asarray([g for g in groups if g in known], np.int64)
    new = np.asarray([g for g in groups if g not in known], np.int64)
    read = 0
    done: list[int] = []
    every = np.arange(task.key_groups)
    chunks = [new[start : start + CHUNK] for start in range(0, len(new), CHUNK)]
    for chunk in (old, *chunks):
        if not len(chunk):
            continue
        for name, layout in names.items():
            groups_here = every if layout.everywhere else chunk
            replica = held.replica(name, layout.schema, layout.owned, groups_here)
            replica.touch(groups_here)
            if chunk is not old:
                read += replica.bytes_of(chunk)
        done += chunk.tolist()
        if chunk is not old and exhausted(read):
            break
    return done, held.version, read
