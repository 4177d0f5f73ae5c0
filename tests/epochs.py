"""Epochs of one operator without Spark, with rows as tests give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from millrace.epoch.commit import Commit, Times
from millrace.epoch.local import LocalShards, ShardRun, split
from millrace.epoch.report import ShardReport
from millrace.epoch.rows import decode, encode
from millrace.epoch.shard import ShardTask
from millrace.ids import Epoch, Shard, table_name
from millrace.keygroups import Assignment
from millrace.log import Journal, Trail, open_store
from millrace.operators import Operator
from millrace.state.cache import ReplicaCache

UNLIMITED = 1 << 60


class Epochs:
    """A location that is driven through its epochs by hand; all shards share one process.

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
        self._local = LocalShards(self.journal, operator, self.assignment, processes=1)

    def restart(self) -> None:
        """As after a crash: what was held is gone, and what was not committed never was."""
        self._local.restart()

    @property
    def local(self) -> LocalShards:
        """The shards as the test has them now."""
        self._local.assignment = self.assignment
        self._local.index_budget = self.index_budget
        return self._local

    @property
    def trail(self) -> Trail:
        return self._local.trail

    @property
    def assignment(self) -> Assignment:
        return Assignment.even(self.key_groups, self.shards)

    @property
    def cache(self) -> ReplicaCache:
        return self._local.cache(Shard(0))

    @property
    def task(self) -> ShardTask:
        return self.local.task

    def times(self) -> Times:
        return self._local.times()

    def part(self, given: Any, shard: Shard) -> pa.Table:
        """The rows of a shard."""
        return split(self._encode(given), self.assignment)[shard]

    def apply(self, times: Times, *steps: Any) -> list[ShardRun]:
        """The shards of an epoch, each with its rows of every step; not committed."""
        parts = [split(self._encode(step), self.assignment) for step in steps]
        shards = range(self.shards)
        given = [[self._decode(part[shard]) for part in parts] for shard in shards]
        return self.local.run(times, given)

    def run(self, *steps: Any, operator: Operator | None = None) -> list[ShardReport]:
        """What the shards of an epoch report; not committed."""
        self._local.operator = operator or self.operator
        try:
            return [ran.report for ran in self.apply(self.times(), *steps)]
        finally:
            self._local.operator = self.operator

    def commit(
        self,
        reports: Iterable[ShardReport],
        times: Times | None = None,
        *,
        time_ms: int | None = None,
    ) -> Epoch:
        commit = Commit("run", self.trail.epoch, full=False, time_ms=time_ms)
        self.local.commit(times or self.times(), reports, commit)
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
        return self._local.times(self.processing_us, self.watermark_us)

    def send(self, *steps: pa.Table) -> list[dict[str, Any]]:
        """An epoch with rows that come in some steps; what it emits, in order."""
        times = self.times()
        ran = self.apply(times, *steps)
        self.counters = {}
        for shard in ran:
            for name, count in shard.report.counters.items():
                self.counters[name] = self.counters.get(name, 0) + count
        reports = [shard.report for shard in ran]
        self.commit(reports, times, time_ms=times.processing_us // 1000)
        changes = [change for shard in ran for change in shard.changes]
        return [row for change in changes for row in change.output.to_pylist()]

    def rows_of(self, table: str = "") -> int:
        """How many rows a table has, as the manifests say."""
        return self.trail.operator(table_name(self.operator.name, table)).rows
