"""The planner: from an assignment and the load of its key groups to one that is balanced.

Pure. It moves as few key groups as balance allows: shards that stay keep what they have, give away
only what they have too much of, and what is given away goes where too little is. Key groups of
about the same load are taken from the ends of ranges, so ranges stay contiguous where it costs
nothing; a key group that alone is more than a shard's share stays where it is and the others leave
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.keygroups import Assignment

FloatArray = npt.NDArray[np.float64]

TOLERANCE = 0.05
"""A shard within this share of its target is balanced."""
ALIKE = 1.5
"""Key groups whose loads differ by less than this factor are taken by position, not by load."""


@dataclass(frozen=True)
class Slot:
    """Room for one shard."""

    executor: str
    speed: float = 1.0
    keeps: int | None = None
    """The shard of the current assignment that stays here; None for a new one."""


@dataclass(frozen=True)
class Plan:
    """A target, and how its shards relate to those of the current assignment."""

    current: Assignment
    target: Assignment
    keeps: tuple[int | None, ...]
    """For each shard of the target, the shard of the current assignment that it goes on as."""

    @property
    def moved(self) -> tuple[int, ...]:
        """The key groups that change hands, ascending."""
        return tuple(
            group
            for group, (old, new) in enumerate(
                zip(self.current.owners, self.target.owners, strict=True)
            )
            if self.keeps[new] != old
        )

    def after(self, moved: frozenset[int]) -> Plan:
        """The rest of the plan when some key groups have changed hands."""
        if moved >= set(self.moved):
            return Plan(self.target, self.target, tuple(range(self.target.shards)))
        number: list[int] = []
        executors = [self.current.executor_of(s) for s in range(self.current.shards)]
        for shard, kept in enumerate(self.keeps):
            if kept is not None:
                number.append(kept)
            else:
                number.append(len(executors))
                executors.append(self.target.executor_of(shard))
        owners = tuple(
            number[self.target.owners[g]] if g in moved else old
            for g, old in enumerate(self.current.owners)
        )
        between = Assignment(len(executors), owners).placed(tuple(executors))
        return Plan(between, self.target, tuple(number))

    def destination(self, group: int) -> str:
        """The executor that is to own a key group."""
        return self.target.executor_of(self.target.owners[group])


def plan(
    current: Assignment,
    slots: Sequence[Slot],
    load: FloatArray | None = None,
    standbys: Mapping[str, Collection[int]] | None = None,
    *,
    only_homeless: bool = False,
) -> Plan:
    """The balanced assignment over these slots that moves the fewest key groups.

    Of those that move, as many as possible go to an executor that follows them already. With
    `only_homeless`, just those move whose shard has no slot any more.
    """
    weights = _weights(current.key_groups, load)
    keeps = tuple(slot.keeps for slot in slots)
    number = {kept: shard for shard, kept in enumerate(keeps) if kept is not None}
    owners = np.asarray([number.get(old, -1) for old in current.owners], np.int64)
    speeds = np.asarray([slot.speed for slot in slots], np.float64)
    quotas, hot = _quotas(weights, owners, speeds, stay=only_homeless)
    welcome = _welcome(current.key_groups, slots, standbys or {})
    if not only_homeless:
        _give_up_surplus(owners, weights, quotas, welcome, hot)
    _hand_out(owners, weights, quotas, welcome)
    target = Assignment(len(slots), tuple(owners.tolist()))
    return Plan(current, target.placed(tuple(slot.executor for slot in slots)), keeps)


def relocate(current: Assignment, groups: Sequence[int], slot: Slot) -> Plan:
    """Move just these key groups to a slot; everything else stays."""
    executors = [current.executor_of(s) for s in range(current.shards)]
    keeps: list[int | None] = list(range(current.shards))
    if slot.keeps is not None:
        shard = slot.keeps
    else:
        shard = len(executors)
        executors.append(slot.executor)
        keeps.append(None)
    owners = list(current.owners)
    for group in groups:
        owners[group] = shard
    used = sorted(set(owners))
    number = {old: new for new, old in enumerate(used)}
    target = Assignment(len(used), tuple(number[o] for o in owners))
    placed = target.placed(tuple(executors[s] for s in used))
    return Plan(current, placed, tuple(keeps[s] for s in used))


def _weights(key_groups: int, load: FloatArray | None) -> FloatArray:
    """Loads that sum to one. Every key group counts a little, also one that is idle now."""
    if load is None or not load.sum():
        return np.full(key_groups, 1.0 / key_groups)
    mixed = 0.9 * load / load.sum() + 0.1 / key_groups
    low, high = np.percentile(mixed, (2, 98))
    if high <= ALIKE * low and mixed.max() <= 2 * ALIKE * low:
        # Differences of this size are noise; even counts move the fewest key groups.
        return np.full(key_groups, 1.0 / key_groups)
    result: FloatArray = mixed
    return result


def _quotas(
    weights: FloatArray, owners: npt.NDArray[np.int64], speeds: FloatArray, *, stay: bool
) -> tuple[FloatArray, list[int]]:
    """The load each shard should have, in whole key groups if they are all alike; and the key
    groups that are more than a shard's share."""
    quotas: FloatArray = speeds / speeds.sum()
    one = weights[0]
    if not _alike(weights):
        return _around_hot(weights, owners, speeds, stay=stay)
    counts = np.floor(quotas / one + 1e-9)
    held = np.asarray([(owners == s).sum() for s in range(len(speeds))])
    # What the rounding leaves over goes to those that have it already, so that it need not move.
    left = int(len(weights) - counts.sum())
    wanting = np.lexsort((np.arange(len(speeds)), -(held - counts)))
    counts[wanting[:left]] += 1
    rounded: FloatArray = counts * one
    return rounded, []


def _around_hot(
    weights: FloatArray, owners: npt.NDArray[np.int64], speeds: FloatArray, *, stay: bool
) -> tuple[FloatArray, list[int]]:
    """Quotas when some key groups may be more than a shard's share: theirs is what they need.

    A hot key group keeps its shard, unless a hotter one has it; then, if it need not stay, it gets
    another.
    """
    fixed = np.zeros(len(speeds))
    hot: list[int] = []
    for group in np.argsort(-weights, kind="stable").tolist():
        free = fixed == 0
        if free.sum() < 2:
            break
        share = (1 - fixed.sum()) * speeds / speeds[free].sum()
        shard = int(owners[group])
        if shard < 0 or not (free[shard] or stay):
            shard = int(np.argmax(np.where(free, share, -1.0)))
        if weights[group] <= share[shard] or not free[shard]:
            break
        fixed[shard] = weights[group]
        owners[group] = shard
        hot.append(group)
    free = fixed == 0
    quotas: FloatArray = np.where(
        free, (1 - fixed.sum()) * speeds / max(speeds[free].sum(), 1e-9), fixed
    )
    return quotas, hot


def _welcome(
    key_groups: int, slots: Sequence[Slot], standbys: Mapping[str, Collection[int]]
) -> npt.NDArray[np.bool_]:
    """[shard, key group]: whether the shard's executor follows the key group."""
    found = np.zeros((len(slots), key_groups), np.bool_)
    for shard, slot in enumerate(slots):
        found[shard, sorted(standbys.get(slot.executor, ()))] = True
    return found


def _lacking(owners: npt.NDArray[np.int64], weights: FloatArray, quotas: FloatArray) -> FloatArray:
    held = owners >= 0
    lacking: FloatArray = quotas - np.bincount(owners[held], weights[held], minlength=len(quotas))
    return lacking


def _give_up_surplus(
    owners: npt.NDArray[np.int64],
    weights: FloatArray,
    quotas: FloatArray,
    welcome: npt.NDArray[np.bool_],
    hot: list[int],
) -> None:
    """Shards with more than their quota let go of key groups."""
    open_to = np.asarray(welcome[_lacking(owners, weights, quotas) > 0].any(axis=0))
    # Of the smallest quota: beside a hot key group's, a share of the mean would be a lot to them.
    slack = TOLERANCE * float(quotas.min()) if not _alike(weights) else 1e-9
    for shard, quota in enumerate(quotas):
        mine = np.flatnonzero(owners == shard)
        surplus = float(weights[mine].sum()) - float(quota)
        if surplus > slack:
            mine = mine[~np.isin(mine, hot)]
            # Last, and so given up first: what another executor is waiting for.
            mine = mine[np.argsort(open_to[mine], kind="stable")]
            owners[_chosen(mine, weights, surplus)] = -1


def _hand_out(
    owners: npt.NDArray[np.int64],
    weights: FloatArray,
    quotas: FloatArray,
    welcome: npt.NDArray[np.bool_],
) -> None:
    """Key groups without an owner go where they are followed, else to shards that lack most."""
    lacking = _lacking(owners, weights, quotas)
    for group in np.flatnonzero((owners < 0) & welcome.any(axis=0)).tolist():
        shard = int(np.argmax(np.where(welcome[:, group], lacking, -np.inf)))
        if lacking[shard] >= weights[group] * (1 - TOLERANCE):
            owners[group] = shard
            lacking[shard] -= weights[group]
    homeless = np.flatnonzero(owners < 0)
    if _alike(weights):
        # In ranges: the shards one after the other, each what it lacks.
        numbers = np.maximum(0, np.rint(lacking / weights[0])).astype(np.int64)
        while numbers.sum() > len(homeless):
            # Others have more than their quota and keep it.
            numbers[int(np.argmax(numbers))] -= 1
        at = 0
        for shard, number in enumerate(numbers.tolist()):
            owners[homeless[at : at + number]] = shard
            at += number
        owners[homeless[at:]] = int(np.argmax(quotas))
        return
    for group in homeless[np.argsort(-weights[homeless], kind="stable")].tolist():
        shard = int(np.argmax(lacking))
        owners[group] = shard
        lacking[shard] -= weights[group]


def _alike(weights: FloatArray) -> bool:
    return bool(np.allclose(weights, weights[0]))


def _chosen(mine: npt.NDArray[np.int64], weights: FloatArray, surplus: float) -> list[int]:
    """The key groups that a shard gives up: few, and together about its surplus."""
    if _alike(weights):
        number = round(surplus / float(weights[0]))
        return [int(group) for group in mine[len(mine) - number :]]
    chosen: list[int] = []
    for group in mine[np.argsort(-weights[mine], kind="stable")].tolist():
        # Heavy ones first, so that few move; one heavier than what is left would overshoot.
        if weights[group] <= surplus * (1 + TOLERANCE):
            chosen.append(group)
            surplus -= weights[group]
    return chosen
