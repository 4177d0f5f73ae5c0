"""All shards of one operator in this process: whole epochs without Spark.

    shards = LocalShards(journal, operator, assignment)
    times = shards.times(processing_us, watermark_us)
    ran = shards.run(times, [[decode(part)] for part in split(rows, assignment)])
    shards.commit(times, [shard.report for shard in ran], Commit(run, batch_id, full=False))

This is what a driver and its tasks do in a query, without what is Spark's: exchange, `mapInArrow`
and accumulators. The harness, the rehearsal, the simulator, tests and benchmarks run their epochs
here, so they cannot differ from each other in what an operator is given.

Rough edge: it runs one operator, so the sources' watermark is the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.epoch.commit import Commit, Times, collect_reports, commit_epoch
from millrace.epoch.report import Reports, ShardReport
from millrace.epoch.shard import OpenShard, ShardTask, has_work, idle_report, open_shard
from millrace.ids import Epoch, Shard
from millrace.keygroups import Assignment, groups_of
from millrace.log import Journal
from millrace.log.segment import HI
from millrace.operators import Change, Moment, Operator
from millrace.operators.input import Input
from millrace.state.cache import ReplicaCache

INDEX_BUDGET = 1 << 30


def split(rows: pa.Table, assignment: Assignment) -> list[pa.Table]:
    """The rows of each shard, as an exchange would deliver them."""
    hi = np.asarray(rows.column(HI).to_numpy()).view(np.uint64)
    owner = np.asarray(assignment.owners)[groups_of(hi, assignment.key_groups)]
    return [rows.filter(pa.array(owner == shard)) for shard in range(assignment.shards)]


@dataclass(frozen=True)
class ShardRun:
    """What a shard did in an epoch."""

    changes: list[Change]
    """Of each step; empty if the shard had nothing to do."""
    report: ShardReport


def run_shard(
    task: ShardTask,
    operator: Operator,
    shard: Shard,
    moment: Moment,
    steps: Sequence[Input],
    cache: ReplicaCache,
    executor: str = "",
) -> ShardRun:
    """Open a shard, apply rows step by step and seal it, unless it has nothing to do."""
    if not has_work(operator, sum(rows.num_rows for rows in steps)):
        return ShardRun([], idle_report(task, shard, Epoch(moment.epoch), executor))
    opened = open_shard(task, operator, shard, moment, cache)
    given = [rows if rows.num_rows else None for rows in steps] or [None]
    last = len(given) - 1
    changes = [opened.apply(rows, more=number < last) for number, rows in enumerate(given)]
    return ShardRun(changes, opened.seal(executor))


class LocalShards:
    """The shards of an operator over a location. Operator and assignment may change between epochs.

    Each shard is a process of its own, unless `processes` says that shards share some.
    """

    def __init__(
        self,
        journal: Journal,
        operator: Operator,
        assignment: Assignment,
        *,
        index_budget: int = INDEX_BUDGET,
        processes: int | None = None,
    ) -> None:
        self.journal = journal
        self.operator = operator
        self.assignment = assignment
        self.index_budget = index_budget
        self._processes = processes
        self.restart()

    def restart(self) -> None:
        """Start over from what was committed: what was held is gone."""
        self.trail = self.journal.newest()
        self._caches: dict[int, ReplicaCache] = {}

    @property
    def task(self) -> ShardTask:
        return ShardTask.of(self.journal, self.operator, self.assignment, self.index_budget)

    def cache(self, shard: Shard) -> ReplicaCache:
        """What the process of a shard holds."""
        process = shard if self._processes is None else shard % self._processes
        return self._caches.setdefault(process, ReplicaCache())

    def times(self, processing_us: int = 0, watermark_us: int | None = None) -> Times:
        """The times of the next epoch."""
        watermarks = {self.operator.name: watermark_us}
        return Times.after(self.trail, processing_us, watermark_us, watermarks)

    def moment(self, times: Times) -> Moment:
        """What the shards are given of an epoch's times."""
        return times.moment(self.assignment, self.operator.name)

    def open(self, times: Times) -> list[OpenShard]:
        """All shards, for a caller that applies and seals by itself."""
        task, moment = self.task, self.moment(times)
        return [
            open_shard(task, self.operator, shard, moment, self.cache(shard))
            for shard in map(Shard, range(self.assignment.shards))
        ]

    def run(self, times: Times, steps: Sequence[Sequence[Input]]) -> list[ShardRun]:
        """Run every shard, with the rows of its steps. Nothing is committed."""
        task, moment = self.task, self.moment(times)
        return [
            run_shard(task, self.operator, shard, moment, given, self.cache(shard))
            for shard, given in zip(map(Shard, range(self.assignment.shards)), steps, strict=True)
        ]

    def commit(self, times: Times, reports: Iterable[ShardReport], commit: Commit) -> Reports:
        """Commit what all shards have written, and advance `trail` to it."""
        assignments = {self.operator.name: self.assignment}
        found = collect_reports(times.epoch, assignments, reports)
        commit_epoch(self.journal, self.trail, times, [self.operator], assignments, found, commit)
        return found
