"""Where shards may run: slots on live executors, and standbys. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from millrace.keygroups import Assignment
from millrace.keygroups.assignment import ANYWHERE
from millrace.reconfigure.planner import Slot


@dataclass(frozen=True)
class Executor:
    """A live executor of Spark's."""

    name: str
    host: str
    cores: int
    speed: float = 1.0


def choose_slots(
    current: Assignment, shards: int, executors: Sequence[Executor], avoid: Collection[str] = ()
) -> list[Slot]:
    """Slots for so many shards: those in use first, then where most cores are free.

    An executor keeps no more of them than its cores, or its share if there are not enough cores.
    """
    usable = [e for e in executors if e.name not in avoid] or list(executors)
    if not usable:
        return [Slot(ANYWHERE, keeps=s if s < current.shards else None) for s in range(shards)]
    known = {e.name: e for e in usable}
    used = dict.fromkeys(known, 0)
    cores = sum(e.cores for e in usable)
    room = {e.name: max(e.cores, -(-shards * e.cores // cores)) for e in usable}
    slots: list[Slot] = []
    for shard in _by_state(current):
        name = current.executor_of(shard)
        if len(slots) < shards and name in known and used[name] < room[name]:
            slots.append(Slot(name, known[name].speed, keeps=shard))
            used[name] += 1
    slots.sort(key=lambda slot: slot.keeps or 0)
    if not current.executors:
        # Shards that were anywhere go on as what they are, wherever there is room.
        homeless: list[int | None] = list(range(min(current.shards, shards)))
    else:
        homeless = []
    homeless += [None] * (shards - len(slots) - len(homeless))
    for keeps in homeless:
        name = min(used, key=lambda n: (used[n] / known[n].cores, -known[n].cores))
        slots.append(Slot(name, known[name].speed, keeps=keeps))
        used[name] += 1
    return slots


def _by_state(current: Assignment) -> list[int]:
    """Shards, those with most key groups first: they are kept when there are too many."""
    counts = [0] * current.shards
    for owner in current.owners:
        counts[owner] += 1
    return sorted(range(current.shards), key=lambda s: (-counts[s], s))


def surviving_slots(current: Assignment, executors: Sequence[Executor]) -> list[Slot]:
    """The slots of shards whose executor is alive."""
    known = {e.name: e for e in executors}
    return [
        Slot(name, known[name].speed, keeps=shard)
        for shard in range(current.shards)
        if (name := current.executor_of(shard)) in known
    ]


def standbys(
    current: Assignment, executors: Sequence[Executor], replicas: int
) -> dict[str, tuple[int, ...]]:
    """Who follows which key groups besides their owners: executor -> key groups.

    Executors without shards come first. An owner's key groups are dealt out in ranges over
    all the others, so that after its death every one of them takes a part; each owner begins with
    another one, so that the ends of all ranges are not at the same place.
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
