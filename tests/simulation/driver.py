"""A driver without Spark: runs epochs as the epoch runner does, up to where it is killed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.simulation.executors import Process, SimulatedCluster
from tests.simulation.operators import Rows, Tally
from tests.unit.driving import words

from millrace import clock
from millrace.errors import MillraceError, StoreError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, format_ranges, groups_of, parse_ranges
from millrace.log import Journal, OperatorCommit
from millrace.log.retention import collect
from millrace.log.store import Store
from millrace.operators.operator import MAIN, Moment, table_name
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests
from millrace.reconfigure.starting import starting_assignments
from millrace.spark import shard as shards
from millrace.spark.report import TableReport
from millrace.spark.shard import ShardTask, task_operator
from millrace.state import cache

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
    written: dict[OperatorName, OperatorCommit] = field(default_factory=dict)
    """What the epoch is going to commit."""

    def __post_init__(self) -> None:
        self.run = clock.fresh_id()
        self.journal = Journal.open(self.store)
        self.trail = self.journal.trail(self.journal.head())
        names = [operator.name for operator in self.operators]
        self.layout = starting_assignments(self.store.url, self.trail, names, self.parallelism, 2)
        self.requests = Requests(self.store)
        self.cluster.tasks = self._tasks
        self.director = Director(self.cluster, self.requests, self.run, self.layout, self.options)

    def choose(self) -> None:
        """What comes first in an epoch: where everything runs."""
        self.layout, _ = self.director.before_epoch(self.trail.epoch)

    def epoch(self) -> None:
        """The rest of it."""
        started = clock.stopwatch()
        batch = self.trail.epoch
        rows = self.rows_of(batch)
        tasks = self._tasks()
        self.hooks.reach("before the shards")
        written: dict[OperatorName, list[dict[str, TableReport]]] = {}
        loads = {}
        for operator in self.operators:
            reports, loads[operator.name] = self._run(tasks[operator.name], rows[operator.name])
            written[operator.name] = reports
        self.written = self._commits(written)
        self.hooks.reach("before the manifest")
        self.commit()
        self.hooks.reach("after the manifest")
        if self.trail.epoch % COLLECT_EVERY == 0:
            collect(self.journal, RETAIN_EPOCHS)
        clock.sleep(5.0)
        self.director.after_epoch(self.trail.epoch, clock.stopwatch() - started, loads)
        self.hooks.reach("after the epoch")

    def commit(self) -> None:
        self.journal.commit(
            self.trail,
            run=self.run,
            batch_id=self.trail.epoch,
            watermark_ms=None,
            operators=self.written,
            specs={operator.name: operator.spec() for operator in self.operators},
            full=self.full,
            wanted=self.director.wanted(),
        )
        self.full = False

    def _tasks(self) -> dict[OperatorName, ShardTask]:
        return {operator.name: self._task(operator) for operator in self.operators}

    def _task(self, operator: Tally) -> ShardTask:
        assignment = self.layout[operator.name]
        return ShardTask(
            location=self.store.url,
            query=self.journal.identity.query,
            operator=operator.name,
            spec="",
            code=pickle.dumps((Tally, (operator.name, tuple(operator.tables)))),
            key_groups=assignment.key_groups,
            groups=tuple(
                format_ranges(assignment.groups_of(Shard(s)).tolist())
                for s in range(assignment.shards)
            ),
            index_budget=1 << 30,
            ansi=True,
        )

    def _run(
        self, task: ShardTask, rows: Rows
    ) -> tuple[list[dict[str, TableReport]], npt.NDArray[np.float64]]:
        """All shards of one operator; what they wrote, and the rows of each key group."""
        assignment = self.layout[task.operator]
        parts: list[dict[Any, int]] = [{} for _ in range(assignment.shards)]
        for key, count in rows.items():
            group = int(groups_of(words([key[0]]), task.key_groups)[0])
            parts[assignment.owners[group]][key] = count
        load = np.zeros(task.key_groups)
        reports = []
        for number, part in enumerate(parts):
            if part:
                self.hooks.reach("before a shard")
                tables, counts = self._attempt(task, Shard(number), part)
                reports.append(tables)
                for group, count in counts.items():
                    load[group] += count
        return reports, load

    def _attempt(
        self, task: ShardTask, shard: Shard, rows: Rows
    ) -> tuple[dict[str, TableReport], dict[int, int]]:
        version = self.trail.epoch
        place = self.layout[task.operator].executor_of(shard)
        for left in reversed(range(ATTEMPTS)):
            process = self.cluster.pick(place)
            try:
                with process.inside():
                    result = run_shard(task, shard, version, rows)
            except StoreError:
                if not left:
                    raise
                continue
            self.hooks.lingers(lambda p=process: _once_more(p, task, shard, version, rows))
            if left and self.hooks.loses(process):
                continue
            return result
        raise AssertionError("the last attempt returns or raises")

    def _commits(
        self, written: dict[OperatorName, list[dict[str, TableReport]]]
    ) -> dict[OperatorName, OperatorCommit]:
        commits = {}
        for operator in self.operators:
            for table in operator.tables:
                mine = [r[table] for r in written[operator.name] if table in r]
                if mine or table == MAIN:
                    name = table_name(operator.name, table)
                    commits[name] = OperatorCommit(
                        self.layout[operator.name],
                        tuple(w.segment for w in mine),
                        self.trail.operator(name).rows
                        + sum(w.added_rows - w.removed_rows for w in mine),
                    )
        return commits


def run_shard(
    task: ShardTask, shard: Shard, version: Epoch, rows: Rows
) -> tuple[dict[str, TableReport], dict[int, int]]:
    """What a shard does between getting its rows and reporting."""
    operator: Any = task_operator(task)
    groups = parse_ranges(task.groups[shard])
    held = cache.Cache(task.location, task.query, task.key_groups, version)
    replicas = {
        table: held.replica(table_name(task.operator, table), layout.schema, layout.owned, groups)
        for table, layout in operator.tables.items()
    }
    moment = Moment(version + 1, 0, None)
    change = operator.apply(replicas, rows, groups, moment)
    changed = shards._changed_rows(task, change)
    shards._check_routing(task, shard, groups, changed)
    tables = shards._write_segments(task, operator, shard, groups, replicas, change, moment)
    return tables, {int(group): int(changed[group]) for group in np.flatnonzero(changed)}


def _once_more(process: Process, task: ShardTask, shard: Shard, version: Epoch, rows: Rows) -> None:
    """A twin or zombie of an attempt. Nobody waits for it, so it may fail, but not do harm."""
    if not process.alive:
        return
    try:
        with process.inside():
            run_shard(task, shard, version, rows)
    except MillraceError:
        return
