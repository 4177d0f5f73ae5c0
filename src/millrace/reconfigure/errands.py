"""Who has to follow what: for a move under way, as a standby, or to get warm.

Like the places it looks at, it belongs to the director and is used under its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.ids import Epoch, OperatorName
from millrace.reconfigure.followers import Followers, Wanted
from millrace.reconfigure.moves import Progress
from millrace.reconfigure.places import Places


class Errands:
    """What executors are to follow, and how far they have come."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.followers = Followers()
        self.behind: dict[OperatorName, tuple[int, ...]] = {}
        """Key groups of the move under way that are followed while epochs go on."""
        self._known: frozenset[str] = frozenset()
        self._cold: set[str] = set()
        """Executors that have not run anything of ours: their first task takes seconds."""

    def notice(self, *, warm_up: bool) -> None:
        """Forget executors that are gone; with `warm_up`, those that are new are to get warm."""
        alive = self._places.names
        self.followers.keep(alive)
        if warm_up:
            self._cold = (self._cold | (alive - self._known - self._places.busy)) & alive
            self._known = frozenset(alive)

    def warmed(self, executors: Collection[str]) -> None:
        self._cold.difference_update(executors)

    def of_owners(self, waiting: Mapping[OperatorName, tuple[int, ...]]) -> Wanted:
        """Key groups that an epoch waits for, by the executors that own them."""
        found: dict[str, dict[OperatorName, list[int]]] = {}
        for name, groups in waiting.items():
            for group in groups:
                owner = self._places.owner(name, group)
                found.setdefault(owner, {}).setdefault(name, []).append(group)
        return found

    @property
    def are_left(self) -> bool:
        """Whether `lazy` still has something to fetch."""
        return any(
            self._lacks(name, group) for name, groups in self.behind.items() for group in groups
        )

    def _lacks(self, name: OperatorName, group: int) -> bool:
        """Whether a key group's owner has never followed it."""
        return self.followers.at(name, self._places.owner(name, group), group) < 0

    def wanted(self, progress: Progress | None, version: Epoch) -> Wanted:
        """Who has to follow what to be up to date."""
        asked: list[tuple[OperatorName, str, int]] = []
        for name, groups in self.behind.items():
            for group in groups:
                if progress is not None and not progress.flipped:
                    asked.append((name, progress.plans[name].destination(group), group))
                elif self._lacks(name, group):
                    # After a lazy flip the owner follows by itself, once it has the pages.
                    asked.append((name, self._places.owner(name, group), group))
        for name, standing in self._places.standing.items():
            asked += [(name, executor, g) for executor, mine in standing.items() for g in mine]
        found = self.followers.stale(asked, version)
        for executor in self._cold:
            # With nothing to follow: what counts is that it has been asked once.
            found.setdefault(executor, {})
        return found
