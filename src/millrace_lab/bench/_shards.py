"""The shards of an operator without Spark: epochs of a location, all in this process.

Opening, applying, writing and committing are those of `millrace.epoch`. A benchmark only brings the
rows, as the exchange would deliver them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.epoch.commit import Commit, Times, collect_reports, commit_epoch
from millrace.epoch.report import ShardReport
from millrace.epoch.shard import OpenShard, ShardTask, group_ranges, open_shard
from millrace.ids import Shard
from millrace.keygroups import Assignment
from millrace.log import Journal
from millrace.operators import Operator
from millrace.state.cache import ReplicaCache

INDEX_BUDGET = 2 * 2**30
"""What a query's `memory` is by default."""


class LocalShards:
    """All shards of an operator, open at the last version."""

    def __init__(self, journal: Journal, operator: Operator, shards: int) -> None:
        self.journal = journal
        self.operator = operator
        self.trail = journal.newest()
        self.assignment = Assignment.even(journal.identity.key_groups, shards)
        # One for each shard, as if it were a process of its own: a replica that follows the key
        # groups of one shard leaves those of another behind.
        self._caches = [ReplicaCache(lambda _: journal.store) for _ in range(shards)]
        self._task = ShardTask(
            location=journal.store.url,
            query=journal.identity.query,
            operator=operator.name,
            spec="",
            code=None,
            key_groups=journal.identity.key_groups,
            groups=group_ranges(self.assignment),
            index_budget=INDEX_BUDGET,
            ansi=True,
            scheme=journal.identity.scheme,
        )
        self.opened: list[OpenShard] = []
        self.follow()

    def follow(self) -> None:
        """Open all shards at the last version."""
        self._times = Times.after(self.trail, 0, None)
        moment = self._times.moment(self.assignment)
        self.opened = [
            open_shard(self._task, self.operator, Shard(shard), moment, cache)
            for shard, cache in enumerate(self._caches)
        ]

    def commit(self, reports: Sequence[ShardReport], run: str, batch_id: int | None) -> None:
        """Commit what all shards have written. They stay at their version until `follow`."""
        assignments = {self.operator.name: self.assignment}
        commit_epoch(
            self.journal,
            self.trail,
            self._times,
            [self.operator],
            assignments,
            collect_reports(self._times.epoch, assignments, reports),
            Commit(run, batch_id, full=False),
        )
