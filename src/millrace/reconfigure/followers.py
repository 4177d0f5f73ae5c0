"""Who has followed which key groups how far. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.ids import Epoch, OperatorName

NEVER = Epoch(-1)

Wanted = Mapping[str, Mapping[OperatorName, Sequence[int]]]
"""Executor -> operator -> key groups, those that are furthest behind first."""


@dataclass(frozen=True)
class Allowance:
    """What one executor may take in one round."""

    seconds: float
    bytes: float
    polite: bool = False
    """Whether to let everything else on its machine go first."""


@dataclass(frozen=True)
class Followed:
    """How far one executor came with some key groups of one operator."""

    operator: OperatorName
    executor: str
    groups: tuple[int, ...]
    version: Epoch
    bytes: int


class Followers:
    """The versions up to which executors have followed, as far as is known."""

    def __init__(self) -> None:
        self._at: dict[tuple[OperatorName, str, int], Epoch] = {}

    def at(self, operator: OperatorName, executor: str, group: int) -> Epoch:
        return self._at.get((operator, executor, group), NEVER)

    def note(self, part: Followed) -> None:
        for group in part.groups:
            self._at[part.operator, part.executor, group] = part.version

    def keep(self, executors: Collection[str]) -> None:
        """Forget executors that are gone."""
        self._at = {key: at for key, at in self._at.items() if key[1] in executors}

    def stale(
        self, asked: Iterable[tuple[OperatorName, str, int]], version: Epoch
    ) -> dict[str, dict[OperatorName, list[int]]]:
        """Of (operator, executor, key group), those that are behind a version."""
        found: dict[str, dict[OperatorName, list[int]]] = {}
        for name, executor, group in dict.fromkeys(asked):
            if self.at(name, executor, group) < version:
                found.setdefault(executor, {}).setdefault(name, []).append(group)
        for executor, operators in found.items():
            for name, groups in operators.items():
                groups.sort(key=lambda g: (self.at(name, executor, g), g))
        return found
