"""Epochs of one operator without Spark: the shards of `millrace.epoch`, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.epoch.commit import Commit, Times, collect_reports, commit_epoch
from millrace.epoch.report import ShardReport
from millrace.epoch.rows import decode, encode
from millrace.epoch.shard import ShardTask, group_ranges, has_work, idle_report, open_shard
from millrace.ids import Epoch, Shard, table_name
from millrace.keygroups import Assignment, groups_of
from millrace.log import Journal, open_store
from millrace.log.segment import HI
from millrace.operators import Operator
from millrace.state.cache import ReplicaCache

UNLIMITED = 1 << 60


class Epochs:
    """A location that is driven through its epochs by hand.

    `encode` makes a table with fingerprints of what a test gives, as rows travel; `decode` makes
    of a shard's part what the operator gets.
    """

    def __init__(
        self,
        url: str,
        operator: Operator,
        key_groups: int,
        *,
        shards: int = 1,
        index_budget: int = UNLIMITED,
        encode: Callable[[Any], pa.Table] = encode,
        decode: Callable[[pa.Table], Any] = decode,
    ) -> None:
        self.operator = operator
        self.journal = Journal.create(open_store(url), key_groups)
        self.key_groups = key_groups
        self.shards = shards
        self.index_budget = index_budget
        self._encode, self._decode = encode, decode
        self.restart()

    def restart(self) -> None:
        """As after a crash: what was held is gone, and what was not committed never was."""
        self.trail = self.journal.trail(self.journal.head())
        self.cache = ReplicaCache()

    @property
    def assignment(self) -> Assignment:
        return Assignment.even(self.key_groups, self.shards)

    @property
    def task(self) -> ShardTask:
        return ShardTask(
            location=self.journal.store.url,
            query=self.journal.identity.query,
            operator=self.operator.name,
            spec="",
            code=None,
            key_groups=self.key_groups,
            groups=group_ranges(self.assignment),
            index_budget=self.index_budget,
            ansi=True,
            scheme=self.journal.identity.scheme,
        )

    def times(self) -> Times:
        return Times.after(self.trail, 0, None)

    def part(self, given: Any, shard: Shard) -> pa.Table:
        """The rows of a shard."""
        rows = self._encode(given)
        groups = groups_of(rows.column(HI).to_numpy().view("uint64"), self.key_groups)
        return rows.filter(pa.array(np.asarray(self.assignment.owners)[groups] == shard))

    def run(self, *steps: Any, operator: Operator | None = None) -> list[ShardReport]:
        """The shards of an epoch, each applied to the rows of every step; not committed."""
        operator = operator or self.operator
        times = self.times()
        moment = times.moment(self.assignment)
        reports = []
        for shard in map(Shard, range(self.shards)):
            parts = [self.part(step, shard) for step in steps]
            if not has_work(operator, sum(part.num_rows for part in parts)):
                reports.append(idle_report(self.task, shard, times.epoch))
                continue
            opened = open_shard(self.task, operator, shard, moment, self.cache)
            for part in parts:
                opened.apply(self._decode(part))
            reports.append(opened.seal(f"executor-{shard}"))
        return reports

    def commit(
        self,
        reports: Iterable[ShardReport],
        times: Times | None = None,
        *,
        time_ms: int | None = None,
    ) -> Epoch:
        times = times or self.times()
        assignments = {self.operator.name: self.assignment}
        commit_epoch(
            self.journal,
            self.trail,
            times,
            [self.operator],
            assignments,
            collect_reports(times.epoch, assignments, reports),
            Commit("run", self.trail.epoch, full=False, time_ms=time_ms),
        )
        return self.trail.epoch

    def epoch(self, *steps: Any) -> Epoch:
        return self.commit(self.run(*steps))


class TimedEpochs(Epochs):
    """Epochs of an operator of event time: its watermark and the clock are the test's."""

    def __init__(self, url: str, operator: Operator, key_groups: int, *, shards: int = 1) -> None:
        super().__init__(url, operator, key_groups, shards=shards, encode=lambda table: table)
        self.processing_us = 0
        self.watermark_us: int | None = None
        self.counters: dict[str, int] = {}

    def times(self) -> Times:
        watermarks = {self.operator.name: self.watermark_us}
        return Times.after(self.trail, self.processing_us, self.watermark_us, watermarks)

    def send(self, *steps: pa.Table) -> list[dict[str, Any]]:
        """An epoch with rows that come in some steps; what it emits, in order."""
        times = self.times()
        moment = times.moment(self.assignment, self.operator.name)
        emitted: list[dict[str, Any]] = []
        self.counters = {}
        reports = []
        for shard in map(Shard, range(self.shards)):
            parts = [self.part(step, shard) for step in steps]
            if not has_work(self.operator, sum(part.num_rows for part in parts)):
                reports.append(idle_report(self.task, shard, times.epoch))
                continue
            opened = open_shard(self.task, self.operator, shard, moment, self.cache)
            for number, part in enumerate(parts or [None]):
                rows = decode(part) if part is not None and part.num_rows else None
                change = opened.apply(rows, more=number < len(parts) - 1)
                emitted += change.output.to_pylist()
            report = opened.seal()
            for name, count in report.counters.items():
                self.counters[name] = self.counters.get(name, 0) + count
            reports.append(report)
        self.commit(reports, times, time_ms=times.processing_us // 1000)
        return emitted

    def rows_of(self, table: str = "") -> int:
        """How many rows a table has, as the manifests say."""
        return self.trail.operator(table_name(self.operator.name, table)).rows
