"""A driver without Spark: runs epochs as the epoch runner does, up to where it is killed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from tests.simulation.executors import Process, SimulatedCluster
from tests.simulation.operators import Rows, Tally, encode_rows

from millrace import clock
from millrace.epoch.commit import (
    Commit,
    Times,
    collect_reports,
    commit_epoch,
    commit_without_rows,
    group_loads,
)
from millrace.epoch.local import INDEX_BUDGET, run_shard, split
from millrace.epoch.report import Reports, ShardReport
from millrace.epoch.shard import ShardTask, has_work, idle_report
from millrace.errors import MillraceError, StoreError
from millrace.ids import OperatorName, Shard
from millrace.keygroups import Assignment
from millrace.log import Journal
from millrace.log.retention import collect
from millrace.log.store import Store
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.director import Director
from millrace.reconfigure.placement import starting_assignments
from millrace.reconfigure.requests import Requests

ATTEMPTS = 4
"""A task that fails so often fails the epoch, as in Spark."""
COLLECT_EVERY = 3
RETAIN_EPOCHS = 2


POINTS = (
    "before the shards",
    "before a shard",
    "before the manifest",
    "after the manifest",
    "after the epoch",
)
"""Where anything can happen inside an epoch."""


class DriverKilled(Exception):
    """The driver's process ended here."""


@dataclass(eq=False)
class Hooks:
    """What may happen inside an epoch."""

    reach: Callable[[str], None]
    """At one of `POINTS`: executors die, requests come, the driver is killed."""
    loses: Callable[[Process], bool]
    """Whether a process is lost after it has written, and before it has reported."""
    lingers: Callable[[Callable[[], None]], None]
    """Takes note of an attempt that may run once more, at any later time."""


@dataclass(eq=False)
class Driver:
    """One life of a query's driver."""

    store: Store
    cluster: SimulatedCluster
    operators: list[Tally]
    parallelism: dict[str, int] | None
    options: DirectorOptions
    hooks: Hooks
    rows_of: Callable[[int], Mapping[OperatorName, Rows]]
    full: bool = True
    layout: dict[OperatorName, Assignment] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)
    """What the epoch is going to commit; nothing in one without rows."""

    def __post_init__(self) -> None:
        self.run = clock.fresh_id()
        self.journal = Journal.open(self.store)
        self.trail = self.journal.trail(self.journal.head())
        names = [operator.name for operator in self.operators]
        self.layout = starting_assignments(self.store.url, self.trail, names, self.parallelism, 2)
        self.requests = Requests(self.store)
        self.cluster.tasks = self._tasks
        self.times = Times.after(self.trail, 0, None)
        self.director = Director(self.cluster, self.requests, self.run, self.layout, self.options)

    def choose(self) -> None:
        """What comes first in an epoch: where everything runs."""
        self.layout, _ = self.director.before_epoch(self.trail.epoch)

    @property
    def batch(self) -> int:
        """The batch that comes next."""
        return 0 if self.trail.batch_id is None else self.trail.batch_id + 1

    def idle(self) -> None:
        """The rest of an epoch without a batch, if the move under way needs one."""
        clock.sleep(5.0)
        if not self.trail.epoch or not self.director.needs_epoch(self.trail):
            return
        self.reports = {}
        self.hooks.reach("before the manifest")
        self.commit()
        self.hooks.reach("after the manifest")
        self.director.after_epoch(self.trail.epoch, 0.0, {})
        self.hooks.reach("after the epoch")

    def epoch(self) -> None:
        """The rest of it."""
        started = clock.stopwatch()
        rows = self.rows_of(self.batch)
        self.times = Times.after(self.trail, clock.now_ms() * 1000, None)
        self.hooks.reach("before the shards")
        reports = [
            report
            for operator in self.operators
            for report in self._run(operator, encode_rows(rows[operator.name]))
        ]
        self.reports = collect_reports(self.times.epoch, self.layout, reports)
        self.hooks.reach("before the manifest")
        self.commit()
        self.hooks.reach("after the manifest")
        if self.trail.epoch % COLLECT_EVERY == 0:
            collect(self.journal, RETAIN_EPOCHS)
        clock.sleep(5.0)
        loads = group_loads(self.reports, self.journal.identity.key_groups)
        self.director.after_epoch(self.trail.epoch, clock.stopwatch() - started, loads)
        self.hooks.reach("after the epoch")

    def commit(self) -> None:
        commit = self._new_commit()
        if self.reports:
            commit_epoch(
                self.journal,
                self.trail,
                self.times,
                self.operators,
                self.layout,
                self.reports,
                commit,
            )
        else:
            commit_without_rows(self.journal, self.trail, self.operators, self.layout, commit)
        self.full = False

    def _new_commit(self) -> Commit:
        unmet = self.director.unmet_parallelism()
        return Commit(self.run, self.batch, full=self.full, unmet_parallelism=unmet)

    def _tasks(self) -> dict[OperatorName, ShardTask]:
        return {operator.name: self._task(operator) for operator in self.operators}

    def _task(self, operator: Tally) -> ShardTask:
        code = pickle.dumps((Tally, (operator.name, tuple(operator.tables))))
        assignment = self.layout[operator.name]
        return ShardTask.of(self.journal, operator, assignment, INDEX_BUDGET, code=code)

    def _run(self, operator: Tally, rows: pa.Table) -> list[ShardReport]:
        """All shards of one operator."""
        task = self._task(operator)
        reports = []
        for number, part in enumerate(split(rows, task.assignment)):
            shard = Shard(number)
            if has_work(operator, part.num_rows):
                self.hooks.reach("before a shard")
                reports.append(self._attempt(task, shard, part))
            else:
                reports.append(idle_report(task, shard, self.times.epoch))
        return reports

    def _attempt(self, task: ShardTask, shard: Shard, rows: pa.Table) -> ShardReport:
        times = self.times
        place = self.layout[task.operator].executor_of(shard)
        for left in reversed(range(ATTEMPTS)):
            process = self.cluster.pick(place)
            try:
                with process.inside():
                    report = attempt_shard(process, task, shard, times, rows)
            except StoreError:
                if not left:
                    raise
                continue
            self.hooks.lingers(lambda p=process: _once_more(p, task, shard, times, rows))
            if left and self.hooks.loses(process):
                continue
            return report
        raise AssertionError("the last attempt returns or raises")


def attempt_shard(
    process: Process, task: ShardTask, shard: Shard, times: Times, rows: pa.Table
) -> ShardReport:
    """What a shard does between getting its rows and reporting; often in two steps."""
    moment = times.moment(task.assignment, task.operator)
    half = rows.num_rows // 2
    steps = (rows.slice(0, half), rows.slice(half)) if half and times.epoch % 2 else (rows,)
    return run_shard(task, task.load(), shard, moment, steps, process.cache, process.name).report


def _once_more(
    process: Process, task: ShardTask, shard: Shard, times: Times, rows: pa.Table
) -> None:
    """A twin or zombie of an attempt. Nobody waits for it, so it may fail, but not do harm."""
    if not process.alive:
        return
    try:
        with process.inside():
            attempt_shard(process, task, shard, times, rows)
    except MillraceError:
        return
