"""A shard: some key groups of an operator, from version v to the segments of version v + 1.

    opened = open_shard(task, operator, shard, moment)   replicas at v
    change = opened.apply(rows)                          what the operator did with them
    report = opened.seal()                               segments, durable, and what is in them

A shard changes nothing that exists. Running it twice, on two executors, or half-way, harms nothing:
only the manifest makes its segments real.

Rows may come in several calls of `apply`. Each sees what the ones before it changed: the changes go
to an overlay of the replicas, and the segments have the last value of each row. An overlay that was
not committed is dropped when the shard is opened again.
"""

from __future__ import annotations

import functools
import json
import pickle
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from millrace import clock
from millrace.arrays import Int64Array
from millrace.epoch.report import ShardReport, TableReport
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, OperatorName, Shard, table_name
from millrace.keygroups import Assignment, format_ranges, group_shift, parse_ranges
from millrace.keygroups.scheme import Scheme
from millrace.log.copies import keep
from millrace.log.journal import Identity, Journal
from millrace.log.segment import segment_path
from millrace.operators import Change, Moment, Operator, TableChange
from millrace.operators.input import Input
from millrace.operators.operator import runs_every_epoch
from millrace.operators.registry import from_spec
from millrace.state.cache import ReplicaCache, process_cache
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups
from millrace.state.writing import compose_segment

ATTEMPT_DIGITS = 12
"""Length of the random part of a segment's name, which distinguishes attempts of a shard."""


@dataclass(frozen=True)
class ShardTask:
    """What the shards of an operator need to know. It is the same in all epochs, so that Spark can
    run one plan for all of them."""

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
    scheme: Scheme
    """How the location's fingerprints are computed."""

    @classmethod
    def of(
        cls,
        journal: Journal,
        operator: Operator,
        assignment: Assignment | None,
        index_budget: int,
        *,
        spec: str = "",
        code: bytes | None = None,
        ansi: bool = True,
    ) -> Self:
        """The task of an operator at a location; without an assignment, of no shard yet.

        A caller that has the operator at hand needs neither `spec` nor `code`: they are for `load`.
        """
        identity = journal.identity
        return cls(
            location=journal.store.url,
            query=identity.query,
            operator=operator.name,
            spec=spec,
            code=code,
            key_groups=identity.key_groups,
            groups=() if assignment is None else _group_ranges(assignment),
            index_budget=index_budget,
            ansi=ansi,
            scheme=identity.scheme,
        )

    def load(self) -> Operator:
        """The operator that the task is for."""
        return _load(self.operator, self.spec, self.code, self.ansi)

    @property
    def identity(self) -> Identity:
        """The location's, as far as a shard needs to know it."""
        return Identity(self.query, self.key_groups, 0, self.scheme)

    @property
    def assignment(self) -> Assignment:
        return _assignment(self.groups, self.key_groups)


def _group_ranges(assignment: Assignment) -> tuple[str, ...]:
    """The key groups of each shard, as a task has them."""
    return tuple(
        format_ranges(assignment.groups_of(Shard(shard)).tolist())
        for shard in range(assignment.shards)
    )


@functools.lru_cache(maxsize=64)
def _load(name: OperatorName, spec: str, code: bytes | None, ansi: bool) -> Operator:
    if code is not None:
        # The query's own program, shipped by its driver with the task; never read from a location.
        cls, arguments = pickle.loads(code)
        operator: Operator = cls(*arguments)
        return operator
    return from_spec(name, json.loads(spec), ansi=ansi)


@functools.lru_cache(maxsize=64)
def _assignment(groups: tuple[str, ...], key_groups: int) -> Assignment:
    return Assignment.from_json({"shards": len(groups), "groups": list(groups)}, key_groups)


def open_shard(
    task: ShardTask,
    operator: Operator,
    shard: Shard,
    moment: Moment,
    cache: ReplicaCache = process_cache,
) -> OpenShard:
    """A shard with its replicas at the version before the moment's epoch."""
    return OpenShard(task, operator, shard, moment, cache)


class OpenShard:
    """A shard in one epoch. Not thread-safe, but `seal` may run in another thread than `apply`."""

    def __init__(
        self,
        task: ShardTask,
        operator: Operator,
        shard: Shard,
        moment: Moment,
        cache: ReplicaCache,
    ) -> None:
        self.task = task
        self.operator = operator
        self.shard = shard
        self.moment = moment
        self._before_the_end = replace(moment, more=True)
        self.groups = parse_ranges(task.groups[shard])
        self.input_rows = 0
        self._cache = cache
        version = Epoch(moment.epoch - 1)
        held = cache.at(task.location, task.identity, version, moment.parent)
        self._store = held.store
        self._last: dict[str, TableChange] = {}
        """What the last step changed. What those before it did is in the replicas' overlays."""
        self._steps = 0
        self._added: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._counters: dict[str, int] = {}
        self._evicted: dict[str, int] = {}
        self._changed = np.zeros(task.key_groups, np.int64)
        every = np.arange(task.key_groups)
        self.replicas = {
            table: held.replica(
                table_name(task.operator, table),
                layout.schema,
                layout.owned,
                every if layout.everywhere else self.groups,
            )
            for table, layout in self.operator.tables.items()
        }

    def apply(self, rows: Input | None, *, more: bool = False) -> Change:
        """Hand rows to the operator; None stands for no rows.

        With `more`, other rows of the epoch follow, so that nothing is final yet.
        """
        if rows is None:
            rows = self.operator.no_rows()
        self._lay_over()
        moment = self._before_the_end if more else self.moment
        change = self.operator.apply(self.replicas, rows, self.groups, moment)
        self._check_routing(change)
        self.input_rows += rows.num_rows
        for counter, count in change.counters.items():
            _add(self._counters, counter, count)
        for table, changed in change.tables.items():
            _add(self._added, table, changed.added)
            _add(self._removed, table, changed.removed)
            if changed.evicted:
                _add(self._evicted, table, changed.evicted)
        self._last = change.tables
        self._steps += 1
        return change

    def _lay_over(self) -> None:
        """Let the next step see what the last one changed."""
        for table, changed in self._last.items():
            if changed.rows.num_rows:
                self.replicas[table].overlay(changed.rows)
        self._last = {}

    def _check_routing(self, change: Change) -> None:
        """Count the changed rows of each key group; all must be the shard's own."""
        changed = changed_rows(change, self.task.key_groups)
        foreign = changed.copy()
        foreign[self.groups] = 0
        if foreign.any():
            raise EpochFailedError(
                f"shard {self.shard} of operator {self.task.operator!r} got rows of key group "
                f"{int(foreign.argmax())}, which it does not own. This is a bug in Millrace; "
                "nothing was committed."
            )
        self._changed += changed

    def seal(self, executor: str = "", seconds: dict[str, float] | None = None) -> ShardReport:
        """Write a segment for each table that changed; what was written, for the driver."""
        tables = self._write()
        swept = sum(report.expired_rows for report in tables.values())
        if swept:
            self._counters["expired"] = self._counters.get("expired", 0) + swept
        changed = self._changed
        return ShardReport(
            operator=self.task.operator,
            epoch=Epoch(self.moment.epoch),
            shard=self.shard,
            tables=tables,
            input_rows=self.input_rows,
            heap_bytes=self._cache.heap_bytes,
            executor=executor,
            group_rows={int(group): int(changed[group]) for group in np.flatnonzero(changed)},
            counters=dict(self._counters),
            seconds={} if seconds is None else seconds,
            evicted_rows=dict(self._evicted),
        )

    def _write(self) -> dict[str, TableReport]:
        # One budget for all tables of an operator.
        budget = self.task.index_budget // len(self.replicas)
        return {
            table: self._write_table(table, self.replicas[table], changed, budget)
            for table, changed in self._changes().items()
            if changed.rows.num_rows
        }

    def _changes(self) -> dict[str, TableChange]:
        """What the epoch changed: the last value of each row."""
        if self._steps == 1:
            return self._last
        self._lay_over()
        # What a segment merges is the version, without the epoch's own changes.
        laid_over = {table: replica.drop_overlay() for table, replica in self.replicas.items()}
        return {
            table: TableChange(rows, self._added[table], self._removed[table])
            for table, rows in laid_over.items()
            if rows is not None
        }

    def _write_table(
        self, table: str, replica: Replica, changed: TableChange, budget: int
    ) -> TableReport:
        name = table_name(self.task.operator, table)
        attempt = clock.fresh_id()[:ATTEMPT_DIGITS]
        path = segment_path(name, Epoch(self.moment.epoch), self.shard, attempt)
        sweep = self.operator.sweep(table, self.moment)
        written = compose_segment(replica, path, changed.rows, self.groups, budget, sweep)
        content = memoryview(written.buffer)
        self._store.put(path, content)
        if self._store.local_path(path) is None:
            keep(self._store, path, content)
        # Evicted rows were counted when their time came.
        expired = 0 if self.operator.tables[table].evicts else written.swept_rows
        return TableReport(
            segment=written.entry,
            changed_rows=changed.rows.num_rows,
            added_rows=changed.added,
            removed_rows=changed.removed + expired,
            merged_rows=written.merged_rows,
            expired_rows=expired,
        )


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def idle_report(
    task: ShardTask,
    shard: Shard,
    epoch: Epoch,
    executor: str = "",
    heap_bytes: int = 0,
    seconds: dict[str, float] | None = None,
) -> ShardReport:
    """The report of a shard that had nothing to do, and was not opened."""
    return ShardReport(
        operator=task.operator,
        epoch=epoch,
        shard=shard,
        tables={},
        input_rows=0,
        heap_bytes=heap_bytes,
        executor=executor,
        seconds={} if seconds is None else seconds,
    )


def has_work(operator: Operator, rows: int) -> bool:
    """Whether a shard that got this many rows must be opened."""
    return rows > 0 or runs_every_epoch(operator)


def changed_rows(change: Change, key_groups: int) -> Int64Array:
    """How many rows of state each key group changed."""
    total = np.zeros(key_groups, np.int64)
    for changed in change.tables.values():
        hi = changed.rows.column(0).to_numpy()
        total += count_groups(hi, np.uint64(group_shift(key_groups)), key_groups)
    return total
