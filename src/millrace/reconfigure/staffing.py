"""Executors for a parallelism: asking for those that lack, giving back those that idle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millrace import clock
from millrace.reconfigure.cluster import Cluster, DirectorOptions
from millrace.reconfigure.slots import Executor

PATIENCE_SECONDS = 60.0
"""How long a rescale waits for executors that were asked for."""


class Staff:
    """The executors of an elastic query; of one that is not, whatever there is."""

    def __init__(self, cluster: Cluster, options: DirectorOptions) -> None:
        self._cluster = cluster
        self._elastic = options.elastic and not cluster.is_local
        self._spare = options.spare_executors

    def ask(self, alive: Sequence[Executor], shards: int) -> None:
        """Ask for the executors that so many shards need."""
        wanted = self._wanted(alive, shards)
        if self._elastic and wanted > len(alive):
            self._cluster.request(wanted)

    def suffices(self, alive: Sequence[Executor], shards: int, asked: float) -> bool:
        """Whether there are enough of them, or it was waited long enough."""
        if not self._elastic or sum(e.cores for e in alive) >= shards:
            return True
        return clock.stopwatch() - asked > PATIENCE_SECONDS

    def dismiss(self, alive: Sequence[Executor], used: Collection[str], shards: int) -> None:
        """Give idle executors back, except those kept warm."""
        idle = [e.name for e in alive if e.name not in used]
        surplus = len(alive) - self._wanted(alive, shards)
        if self._elastic and surplus > 0 and idle:
            self._cluster.release(idle[-surplus:])

    def _wanted(self, alive: Sequence[Executor], shards: int) -> int:
        cores = max((e.cores for e in alive), default=1)
        return -(-shards // cores) + self._spare
