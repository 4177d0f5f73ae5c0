"""The shards of an operator without Spark, held open so that each part of an epoch can be timed.

Opening, applying, writing and committing are those of `millrace.epoch`. A benchmark only brings the
rows, as the exchange would deliver them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.epoch.commit import Commit, Times
from millrace.epoch.local import LocalShards
from millrace.epoch.report import ShardReport
from millrace.epoch.shard import OpenShard
from millrace.keygroups import Assignment
from millrace.log import Journal
from millrace.operators import Operator

INDEX_BUDGET = 2 * 2**30
"""What a query's `memory` is by default."""


class HeldShards:
    """All shards of an operator, open at the last version."""

    def __init__(self, journal: Journal, operator: Operator, shards: int) -> None:
        self.assignment = Assignment.even(journal.identity.key_groups, shards)
        self.journal = journal
        self._local = LocalShards(journal, operator, self.assignment, index_budget=INDEX_BUDGET)
        self.trail = self._local.trail
        self.follow()

    def follow(self) -> None:
        """Open all shards at the last version."""
        self._times: Times = self._local.times()
        self.opened: list[OpenShard] = self._local.open(self._times)

    def commit(self, reports: Sequence[ShardReport], run: str, batch_id: int | None) -> None:
        """Commit what all shards have written. They stay at their version until `follow`."""
        self._local.commit(self._times, reports, Commit(run, batch_id, full=False))
