"""Following: which executors have to follow which key groups, how far they are, and rounds of it.

An executor follows key groups of a move under way, those it stands by for, and none at all when it
only has to get warm. `Following` belongs to the director and is used under its lock; `Rounds` takes
as long as the cluster does and is used without it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.cluster import Allowance, Cluster, DirectorOptions, Followed, ToFollow
from millrace.reconfigure.moves import Progress
from millrace.reconfigure.placement import Placement

_log = logging.getLogger("millrace")

Follower = tuple[OperatorName, str, int]
"""An operator, an executor that follows it, and a key group."""
NEVER = Epoch(-1)
BUSY_SECONDS = 0.05
"""How long a round may hold an executor that also runs shards."""
IDLE_SECONDS = 2.0


class FollowedVersions:
    """The versions up to which executors have followed key groups, as far as is known."""

    def __init__(self) -> None:
        self._at: dict[Follower, Epoch] = {}

    def at(self, operator: OperatorName, executor: str, group: int) -> Epoch:
        return self._at.get((operator, executor, group), NEVER)

    def add(self, part: Followed) -> None:
        for group in part.groups:
            self._at[part.operator, part.executor, group] = part.version

    def keep(self, executors: Collection[str]) -> None:
        """Forget all other executors."""
        self._at = {key: at for key, at in self._at.items() if key[1] in executors}

    def behind(
        self, asked: Iterable[Follower], version: Epoch
    ) -> dict[str, dict[OperatorName, list[int]]]:
        """What is left to follow up to a version."""
        found = _by_executor(key for key in dict.fromkeys(asked) if self.at(*key) < version)
        for executor, operators in found.items():
            for name, groups in operators.items():
                groups.sort(key=lambda g: (self.at(name, executor, g), g))
        return found


class Following:
    """What executors have to follow, and how far they have."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.versions = FollowedVersions()
        self.background: dict[OperatorName, tuple[int, ...]] = {}
        """Key groups of the current move that are followed while epochs run."""
        self._known: frozenset[str] = frozenset()
        self._cold: set[str] = set()
        """Executors that have not run anything of ours: their first task takes seconds."""

    def update_executors(self, *, warm_up: bool) -> None:
        """Forget lost executors; with `warm_up`, new ones without shards have to get warm."""
        alive = self._placement.names
        self.versions.keep(alive)
        if warm_up:
            self._cold = (self._cold | (alive - self._known - self._placement.busy)) & alive
            self._known = frozenset(alive)

    def warmed(self, executors: Collection[str]) -> None:
        self._cold.difference_update(executors)

    def add(self, found: Iterable[Followed], progress: Progress | None) -> None:
        """Record a round."""
        for part in found:
            self.versions.add(part)
            if progress is not None:
                progress.bytes += part.bytes

    def by_owners(self, waiting: Mapping[OperatorName, tuple[int, ...]]) -> list[Follower]:
        """Key groups that an epoch waits for, to be followed by the executors that own them."""
        owner = self._placement.owner
        return [(name, owner(name, g), g) for name, groups in waiting.items() for g in groups]

    @property
    def is_fetching(self) -> bool:
        """Whether `lazy` still has something to fetch in the background."""
        return any(
            self._owner_lacks(name, group)
            for name, groups in self.background.items()
            for group in groups
        )

    def _owner_lacks(self, name: OperatorName, group: int) -> bool:
        return self.versions.at(name, self._placement.owner(name, group), group) == NEVER

    def to_follow(self, progress: Progress | None, version: Epoch) -> ToFollow:
        """Who has to follow what to be up to date."""
        asked: list[Follower] = []
        for name, groups in self.background.items():
            for group in groups:
                if progress is not None and not progress.flipped:
                    asked.append((name, progress.plans[name].destination(group), group))
                elif self._owner_lacks(name, group):
                    # After a lazy flip the owner follows by itself, once it has the pages.
                    asked.append((name, self._placement.owner(name, group), group))
        for name, standbys in self._placement.standbys.items():
            asked += [(name, executor, g) for executor, mine in standbys.items() for g in mine]
        found = self.versions.behind(asked, version)
        for executor in self._cold:
            # With nothing to follow: what counts is that it has run something once.
            found.setdefault(executor, {})
        return found


class Rounds:
    """Rounds of following on a cluster. Keeps no state but which assignments were prepared."""

    def __init__(self, cluster: Cluster, options: DirectorOptions) -> None:
        self._cluster = cluster
        self._rate = options.follow_bytes_per_second
        self._prepared: set[tuple[OperatorName, Assignment]] = set()

    def prepare(self, targets: Mapping[OperatorName, Assignment]) -> None:
        """Prepare epochs with these assignments, once."""
        fresh = {n: a for n, a in targets.items() if (n, a) not in self._prepared}
        if fresh:
            self._cluster.prepare(fresh)
            self._prepared = set(fresh.items())

    def beside_epochs(
        self, to_follow: ToFollow, version: Epoch, busy: Collection[str]
    ) -> list[Followed]:
        """One round while epochs run: short where shards run, at low priority elsewhere."""
        short = Allowance(BUSY_SECONDS, self._rate * BUSY_SECONDS)
        long = Allowance(IDLE_SECONDS, self._rate * IDLE_SECONDS, low_priority=True)
        allowances = {name: short if name in busy else long for name in to_follow}
        return self._cluster.follow(version, to_follow, allowances)

    def before_epoch(self, asked: list[Follower], version: Epoch) -> list[Followed]:
        """All of it, while an epoch waits."""
        found: list[Followed] = []
        allowance = Allowance(IDLE_SECONDS, float("inf"))
        while asked:
            to_follow = _by_executor(asked)
            try:
                part = self._cluster.follow(version, to_follow, dict.fromkeys(to_follow, allowance))
            except Exception as error:
                # The epoch's own shards follow anyway; if they cannot either, they say so.
                _log.warning("following before epoch %d failed: %s", version + 1, error)
                break
            found += part
            done = {(f.operator, f.executor, group) for f in part for group in f.groups}
            left = [follower for follower in asked if follower not in done]
            if len(left) == len(asked):
                # It ran elsewhere: the executor is gone. The epoch's own shards follow instead.
                break
            asked = left
        return found


def _by_executor(asked: Iterable[Follower]) -> dict[str, dict[OperatorName, list[int]]]:
    found: dict[str, dict[OperatorName, list[int]]] = {}
    for name, executor, group in asked:
        found.setdefault(executor, {}).setdefault(name, []).append(group)
    return found
