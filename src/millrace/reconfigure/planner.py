"""The planner: from an assignment and the load of its key groups to one that is balanced.

Pure. First slots are chosen, room for one shard each on a live executor; then key groups are dealt
out over them. As few change owner as balance allows: shards that stay keep what they have, give
away only what they have too much of, and what is given away goes where too little is. Key groups of
about the same load are taken from the ends of ranges, so ranges stay contiguous where it costs
nothing; a key group that alone is more than a shard's share stays where it is and the others leave
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.arrays import BoolArray, Float64Array, Int64Array
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import ANYWHERE
from millrace.reconfigure.cluster import Executor

TOLERANCE = 0.05
"""A shard within this share of its target is balanced."""
ALIKE = 1.5
"""Key groups whose loads differ by less than this factor are taken by position, not by load."""


@dataclass(frozen=True)
class Slot:
    """Room for one shard."""

    executor: str
    keeps: int | None = None
    """The shard of the current assignment that stays here; None for a new one."""


@dataclass(frozen=True)
class Plan:
    """A target, and how its shards relate to those of the current assignment."""

    current: Assignment
    target: Assignment
    keeps: tuple[int | None, ...]
    """For each shard of the target, the shard of the current assignment that it continues."""

    @property
    def moved(self) -> tuple[int, ...]:
        """The key groups that change owner, ascending."""
        owners = zip(self.current.owners, self.target.owners, strict=True)
        return tuple(g for g, (old, new) in enumerate(owners) if self.keeps[new] != old)

    def after(self, moved: frozenset[int]) -> Plan:
        """The rest of the plan when some key groups have changed owner."""
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


def choose_slots(
    current: Assignment, shards: int, executors: Sequence[Executor], avoid: Collection[str] = ()
) -> list[Slot]:
    """Slots for a number of shards: those in use first, then where most cores are free.

    An executor keeps no more of them than its cores, or its share if there are not enough cores.
    """
    usable = [e for e in executors if e.name not in avoid] or list(executors)
    if not usable:
        return [Slot(ANYWHERE, keeps=s if s < current.shards else None) for s in range(shards)]
    cores = {e.name: e.cores for e in usable}
    used = dict.fromkeys(cores, 0)
    total = sum(cores.values())
    room = {name: max(n, -(-shards * n // total)) for name, n in cores.items()}
    slots: list[Slot] = []
    for shard in _largest_first(current):
        name = current.executor_of(shard)
        if len(slots) < shards and name in cores and used[name] < room[name]:
            slots.append(Slot(name, keeps=shard))
            used[name] += 1
    slots.sort(key=lambda slot: slot.keeps or 0)
    unplaced: list[int | None] = []
    if not current.executors:
        # Shards that were anywhere keep their numbers, wherever there is room.
        unplaced += range(min(current.shards, shards))
    unplaced += [None] * (shards - len(slots) - len(unplaced))
    for keeps in unplaced:
        name = min(used, key=lambda n: (used[n] / cores[n], -cores[n]))
        slots.append(Slot(name, keeps=keeps))
        used[name] += 1
    return slots


def _largest_first(current: Assignment) -> list[int]:
    """Shards, those with most key groups first: they are kept when there are too many."""
    counts = np.bincount(current.owners, minlength=current.shards)
    return [int(shard) for shard in np.argsort(-counts, kind="stable")]


def surviving_slots(current: Assignment, executors: Sequence[Executor]) -> list[Slot]:
    """The slots of shards whose executor is alive."""
    alive = {e.name for e in executors}
    return [
        Slot(name, keeps=shard)
        for shard in range(current.shards)
        if (name := current.executor_of(shard)) in alive
    ]


def choose_standbys(
    current: Assignment, executors: Sequence[Executor], replicas: int
) -> dict[str, tuple[int, ...]]:
    """Who follows which key groups besides their owners: executor -> key groups.

    Executors without shards come first. An owner's key groups are dealt out in ranges over all the
    others, so that each takes a part after its death; each owner begins with another one, so that
    the ends of all ranges do not meet on one executor.
    """
    owners = {current.executor_of(s) for s in range(current.shards)}
    found: dict[str, list[int]] = {}
    for turn, owner in enumerate(sorted(owners)):
        mine = [g for g, shard in enumerate(current.owners) if current.executor_of(shard) == owner]
        others = [e.name for e in executors if e.name != owner]
        idle = [name for name in others if name not in owners]
        pool = idle if len(idle) >= replicas else others
        for replica in range(min(replicas, len(pool))):
            for i, group in enumerate(mine):
                name = pool[(i * len(pool) // len(mine) + replica + turn) % len(pool)]
                found.setdefault(name, []).append(group)
    return {name: tuple(sorted(groups)) for name, groups in found.items()}


def plan(
    current: Assignment,
    slots: Sequence[Slot],
    load: Float64Array | None = None,
    standbys: Mapping[str, Collection[int]] | None = None,
    *,
    only_lost: bool = False,
) -> Plan:
    """The balanced assignment over these slots that moves the fewest key groups.

    Of those that move, as many as possible go to an executor that follows them already. With
    `only_lost`, only those move whose shard has no slot any more.
    """
    weights = _weights(current.key_groups, load)
    keeps = tuple(slot.keeps for slot in slots)
    number = {kept: shard for shard, kept in enumerate(keeps) if kept is not None}
    owners = np.asarray([number.get(old, -1) for old in current.owners], np.int64)
    quotas, hot = _quotas(weights, owners, len(slots), stay=only_lost)
    warm = _warm(current.key_groups, slots, standbys or {})
    if not only_lost:
        _give_up_surplus(owners, weights, quotas, warm, hot)
    _hand_out(owners, weights, quotas, warm)
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


def _weights(key_groups: int, load: Float64Array | None) -> Float64Array:
    """Loads that sum to one. Every key group counts a little, also one that is idle now."""
    if load is None or not load.sum():
        return np.full(key_groups, 1.0 / key_groups)
    mixed = 0.9 * load / load.sum() + 0.1 / key_groups
    low, high = np.percentile(mixed, (2, 98))
    if high <= ALIKE * low and mixed.max() <= 2 * ALIKE * low:
        # Differences of this size are noise; even counts move the fewest key groups.
        return np.full(key_groups, 1.0 / key_groups)
    return np.asarray(mixed)


def _quotas(
    weights: Float64Array, owners: Int64Array, shards: int, *, stay: bool
) -> tuple[Float64Array, list[int]]:
    """The load each shard should have, in whole key groups if they are all alike; and the key
    groups that are more than a shard's share."""
    if not _alike(weights):
        return _around_hot(weights, owners, shards, stay=stay)
    low, left = divmod(len(weights), shards)
    counts = np.full(shards, float(low))
    held = np.bincount(owners[owners >= 0], minlength=shards)
    # What the division leaves over goes to those that have it already, so that it need not move.
    counts[np.argsort(-held, kind="stable")[:left]] += 1
    quotas: Float64Array = counts * weights[0]
    return quotas, []


def _around_hot(
    weights: Float64Array, owners: Int64Array, shards: int, *, stay: bool
) -> tuple[Float64Array, list[int]]:
    """Quotas when some key groups may be more than a shard's share: theirs is what they need.

    A hot key group keeps its shard, unless a hotter one has it; then, if it need not stay, it gets
    another.
    """
    fixed = np.zeros(shards)
    hot: list[int] = []
    for group in np.argsort(-weights, kind="stable").tolist():
        free = fixed == 0
        if free.sum() < 2:
            break
        shard = int(owners[group])
        if shard < 0 or not (free[shard] or stay):
            shard = int(np.argmax(free))
        if weights[group] <= (1 - fixed.sum()) / free.sum() or not free[shard]:
            break
        fixed[shard] = weights[group]
        owners[group] = shard
        hot.append(group)
    free = fixed == 0
    quotas: Float64Array = np.where(free, (1 - fixed.sum()) / free.sum(), fixed)
    return quotas, hot


def _warm(
    key_groups: int, slots: Sequence[Slot], standbys: Mapping[str, Collection[int]]
) -> BoolArray:
    """[shard, key group]: whether the shard's executor follows the key group."""
    found = np.zeros((len(slots), key_groups), np.bool_)
    for shard, slot in enumerate(slots):
        found[shard, sorted(standbys.get(slot.executor, ()))] = True
    return found


def _lacking(owners: Int64Array, weights: Float64Array, quotas: Float64Array) -> Float64Array:
    held = owners >= 0
    lacking: Float64Array = quotas - np.bincount(owners[held], weights[held], minlength=len(quotas))
    return lacking


def _give_up_surplus(
    owners: Int64Array, weights: Float64Array, quotas: Float64Array, warm: BoolArray, hot: list[int]
) -> None:
    """Shards with more than their quota give up key groups."""
    warm_elsewhere = np.asarray(warm[_lacking(owners, weights, quotas) > 0].any(axis=0))
    # Of the smallest quota: beside a hot key group's, a share of the mean would be a lot to them.
    slack = TOLERANCE * float(quotas.min()) if not _alike(weights) else 1e-9
    for shard, quota in enumerate(quotas):
        mine = np.flatnonzero(owners == shard)
        surplus = float(weights[mine].sum()) - float(quota)
        if surplus > slack:
            mine = mine[~np.isin(mine, hot)]
            # Last, and so given up first: what an executor with too little follows already.
            mine = mine[np.argsort(warm_elsewhere[mine], kind="stable")]
            owners[_worth(mine, weights, surplus)] = -1


def _worth(mine: Int64Array, weights: Float64Array, surplus: float) -> list[int]:
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


def _hand_out(
    owners: Int64Array, weights: Float64Array, quotas: Float64Array, warm: BoolArray
) -> None:
    """Key groups without an owner go where they are followed, else to shards that lack most."""
    lacking = _lacking(owners, weights, quotas)
    for group in np.flatnonzero((owners < 0) & warm.any(axis=0)).tolist():
        shard = int(np.argmax(np.where(warm[:, group], lacking, -np.inf)))
        if lacking[shard] >= weights[group] * (1 - TOLERANCE):
            owners[group] = shard
            lacking[shard] -= weights[group]
    free = np.flatnonzero(owners < 0)
    if _alike(weights):
        # In ranges: the shards one after the other, each what it lacks.
        numbers = np.maximum(0, np.rint(lacking / weights[0])).astype(np.int64)
        while numbers.sum() > len(free):
            # Others have more than their quota and keep it.
            numbers[int(np.argmax(numbers))] -= 1
        at = 0
        for shard, number in enumerate(numbers.tolist()):
            owners[free[at : at + number]] = shard
            at += number
        owners[free[at:]] = int(np.argmax(quotas))
        return
    for group in free[np.argsort(-weights[free], kind="stable")].tolist():
        shard = int(np.argmax(lacking))
        owners[group] = shard
        lacking[shard] -= weights[group]


def _alike(weights: Float64Array) -> bool:
    return bool(np.allclose(weights, weights[0]))
