"""Rounds of following: in the background, or before an epoch that waits for them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.cluster import Cluster, DirectorOptions
from millrace.reconfigure.followers import Allowance, Followed, Wanted

_log = logging.getLogger("millrace")

BUSY_SECONDS = 0.05
"""How long a follow may hold an executor that also runs shards."""
IDLE_SECONDS = 2.0


class Rounds:
    """Has executors follow. Keeps no state but which plans were made ahead."""

    def __init__(self, cluster: Cluster, options: DirectorOptions) -> None:
        self._cluster = cluster
        self._rate = options.follow_bytes_per_second
        self._prepared: set[tuple[OperatorName, Assignment]] = set()

    def prepare(self, targets: Mapping[OperatorName, Assignment]) -> None:
        """Have made what epochs with these assignments need; once."""
        fresh = {n: a for n, a in targets.items() if (n, a) not in self._prepared}
        if fresh:
            self._cluster.prepare(fresh)
            self._prepared = set(fresh.items())

    def behind(self, wanted: Wanted, version: Epoch, busy: Collection[str]) -> list[Followed]:
        """One round while epochs go on: short where shards run, at low priority elsewhere."""
        short = Allowance(BUSY_SECONDS, self._rate * BUSY_SECONDS)
        polite = Allowance(IDLE_SECONDS, self._rate * IDLE_SECONDS, polite=True)
        allowances = {name: short if name in busy else polite for name in wanted}
        return self._cluster.follow(version, wanted, allowances)

    def before(self, wanted: Wanted, version: Epoch) -> list[Followed]:
        """All of it, while an epoch waits."""
        found: list[Followed] = []
        allowance = Allowance(IDLE_SECONDS, float("inf"))
        while wanted:
            try:
                part = self._cluster.follow(version, wanted, dict.fromkeys(wanted, allowance))
            except Exception as error:
                # The epoch's own shards follow anyway; if they cannot either, they say so.
                _log.warning("following before epoch %d failed: %s", version + 1, error)
                break
            found += part
            left = _without(wanted, part)
            if _size(left) == _size(wanted):
                # What ran did not run where it should: the executor is gone. The epoch's own
                # shards follow, wherever they run.
                break
            wanted = left
        return found


def _without(wanted: Wanted, found: Collection[Followed]) -> Wanted:
    """What is still to be followed."""
    done = {(f.operator, f.executor, group) for f in found for group in f.groups}
    left = {
        executor: {
            name: rest
            for name, groups in operators.items()
            if (rest := [g for g in groups if (name, executor, g) not in done])
        }
        for executor, operators in wanted.items()
    }
    return {executor: operators for executor, operators in left.items() if operators}


def _size(wanted: Wanted) -> int:
    return sum(len(groups) for operators in wanted.values() for groups in operators.values())
