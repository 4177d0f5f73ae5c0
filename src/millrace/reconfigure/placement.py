"""Where the shards of a query's operators are, which executors there are, and how many shards each
operator should have.

An operator starts with the shards that its program says, else with those it had. If `parallelism=`
is left out, that is the number last set by the program or by a rescale: the manifests know. If it
is given, it wins over a rescale, with a warning.

`Placement` belongs to the director and has no lock of its own: use it under the director's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from millrace.arrays import Float64Array
from millrace.errors import UsageError
from millrace.ids import OperatorName, table_name
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import check_parallelism
from millrace.log import Trail
from millrace.reconfigure import planner
from millrace.reconfigure.cluster import Executor
from millrace.reconfigure.moves import Move
from millrace.reconfigure.requests import (
    check_executor,
    nowhere_else,
    operators_of,
    shards_of,
)

LOAD_WEIGHT = 0.2
"""The weight of the newest epoch in the load of a key group."""

_log = logging.getLogger("millrace")


def starting_assignments(
    location: str,
    trail: Trail,
    names: Sequence[OperatorName],
    parallelism: int | Mapping[str, int] | None,
    default: int,
) -> dict[OperatorName, Assignment]:
    """The assignment of each operator's next epoch; `default` shards where nothing says more."""
    if isinstance(parallelism, Mapping):
        unknown = sorted(set(parallelism) - set(names))
        if unknown:
            raise UsageError(
                f"parallelism= names {', '.join(map(repr, unknown))}; the query's operators are "
                f"{', '.join(map(repr, names))}."
            )
    key_groups = trail.key_groups
    found = {}
    for name in names:
        log = trail.operators.get(table_name(name))
        last = log.assignment if log is not None else None
        before = trail.unmet_parallelism.get(name, last.shards) if last is not None else None
        given = parallelism.get(name) if isinstance(parallelism, Mapping) else parallelism
        if given is None:
            given = before if before is not None else min(default, key_groups)
        shards = check_parallelism(given, key_groups)
        if before is not None and shards != before:
            _log.warning(
                "%s: operator %r should have had %d shards up to epoch %d; it continues with %d, "
                "because the program sets parallelism=. Leave it out to keep the number that was "
                "last requested.",
                location,
                name,
                before,
                trail.epoch,
                shards,
            )
        if last is None or last.shards != shards:
            last = Assignment.even(key_groups, shards)
        found[name] = last
    return found


class Placement:
    """The assignments of one query's operators, and the executors they are on."""

    def __init__(
        self, alive: tuple[Executor, ...], assignments: Mapping[OperatorName, Assignment]
    ) -> None:
        self.alive = alive
        self.drained: set[str] = set()
        self.target_parallelism = {name: a.shards for name, a in assignments.items()}
        """How many shards each operator should have."""
        self.assignments = {name: self._on_live_executors(a) for name, a in assignments.items()}
        self.load = {name: np.zeros(a.key_groups) for name, a in assignments.items()}
        self.standbys: dict[OperatorName, dict[str, tuple[int, ...]]] = {}
        """Who follows which key groups besides their owners."""
        self._needs_nothing: object = None
        """The last state that was found to need no recovery."""
        self._standbys_for: object = None
        """The state for which the standbys were chosen."""

    @property
    def names(self) -> set[str]:
        """The executors that are alive."""
        return {e.name for e in self.alive}

    @property
    def busy(self) -> set[str]:
        """Executors that have shards."""
        return {name for a in self.assignments.values() for name in a.executors}

    @property
    def cores(self) -> int:
        """The cores of executors that may have shards."""
        return sum(e.cores for e in self.alive if e.name not in self.drained)

    @property
    def most_shards(self) -> int:
        """The most shards that an operator should have."""
        return max(self.target_parallelism.values())

    def owner(self, name: OperatorName, group: int) -> str:
        assignment = self.assignments[name]
        return assignment.executor_of(assignment.owners[group])

    def add_load(self, rows: Mapping[OperatorName, Float64Array]) -> None:
        """Take an epoch's rows per key group into account."""
        for name, counts in rows.items():
            self.load[name] += LOAD_WEIGHT * (counts - self.load[name])

    def unmet_parallelism(self) -> dict[OperatorName, int]:
        """The target of each operator that has another number of shards now."""
        return {
            name: target
            for name, target in self.target_parallelism.items()
            if target != self.assignments[name].shards
        }

    def set_target(self, move: Move) -> None:
        """From now on, aim for what a move asks for."""
        details = move.details
        if move.kind == "rescale":
            for name in operators_of(details, self.assignments):
                self.target_parallelism[name] = int(shards_of(details, name))
        elif move.kind == "drain":
            self.drained.add(str(details["executor"]))
        elif move.kind == "undrain":
            self.drained.discard(str(details["executor"]))

    def undo_drain(self, move: Move) -> None:
        """A drain that does not happen leaves its executor unchanged."""
        if move.kind == "drain":
            self.drained.discard(str(move.details["executor"]))

    def _slots(self, current: Assignment, shards: int) -> list[planner.Slot]:
        return planner.choose_slots(current, shards, self.alive, self.drained)

    def _on_live_executors(self, assignment: Assignment) -> Assignment:
        """An assignment of an earlier driver, or a new one, on the executors there are now."""
        bare = assignment.placed(())
        slots = self._slots(bare, bare.shards)
        return bare.placed(tuple(slot.executor for slot in slots))

    def recover(self, location: str) -> bool:
        """Spread the key groups of lost executors over the others; whether there were any."""
        alive = self.names
        spread = False
        for name, current in self.assignments.items():
            if current.executors and set(current.executors) <= alive:
                continue
            slots = planner.surviving_slots(current, self.alive)
            slots += self._standby_slots(name, slots)
            if not slots:
                self.assignments[name] = self._on_live_executors(current)
                continue
            recovery = planner.plan(
                current, slots, self.load[name], self.standbys.get(name), only_lost=True
            )
            _log.warning(
                "%s: executors %s are gone; their %d key groups of %r go to %d others",
                location,
                ", ".join(sorted(set(current.executors) - alive)),
                len(recovery.moved),
                name,
                len(slots),
            )
            self.assignments[name] = recovery.target
            spread = True
        return spread

    def _standby_slots(
        self, name: OperatorName, surviving: list[planner.Slot]
    ) -> list[planner.Slot]:
        """Slots on executors without a shard that follow what is lost, as many as shards are lost.

        They have the key groups at hand. Survivors would open them from the log first.
        """
        current, standbys = self.assignments[name], self.standbys.get(name, {})
        kept = {slot.keeps for slot in surviving}
        lost = {group for group, shard in enumerate(current.owners) if shard not in kept}
        taken = {slot.executor for slot in surviving}
        free = [
            executor.name
            for executor in self.alive
            if executor.name not in taken | self.drained
            and not lost.isdisjoint(standbys.get(executor.name, ()))
        ]
        most_first = sorted(free, key=lambda executor: -len(lost & set(standbys[executor])))
        return [planner.Slot(executor) for executor in most_first[: current.shards - len(kept)]]

    def needs_recovery(self) -> bool:
        """Whether an operator lacks shards that there are executors for, or has them crowded on
        some executors while others have none."""
        now = (self.alive, set(self.drained), dict(self.target_parallelism), dict(self.assignments))
        if now == self._needs_nothing or not self.alive:
            return False
        cores = self.cores
        for name, target in self.target_parallelism.items():
            current = self.assignments[name]
            shards = max(current.shards, min(target, cores))
            if any(slot.keeps is None for slot in self._slots(current, shards)):
                return True
        self._needs_nothing = now
        return False

    def plan(self, move: Move, name: OperatorName) -> planner.Plan:
        """How a move gets an operator to its target; raises if that is no longer possible."""
        current = self.assignments[name]
        if move.kind == "move":
            to = str(move.details["to"])
            check_executor(to, self.alive)
            owners = [current.executor_of(shard) for shard in current.owners]
            groups = [g for g in move.details["key_groups"] if owners[g] != to]
            counts = np.bincount(current.owners, minlength=current.shards)
            there = [s for s in range(current.shards) if current.executor_of(s) == to]
            keeps = min(there, key=lambda s: counts[s]) if there else None
            return planner.relocate(current, groups, planner.Slot(to, keeps=keeps))
        if move.kind == "drain" and self.drained >= self.names:
            raise UsageError(nowhere_else(move.details["executor"]))
        shards = self.target_parallelism[name]
        if move.details.get("fit"):
            # Shards that have no core of their own would only slow the others down.
            shards = min(shards, max(1, self.cores))
        slots = self._slots(current, shards)
        return planner.plan(current, slots, self.load[name], self.standbys.get(name))

    def fits(self, plans: Mapping[OperatorName, planner.Plan]) -> bool:
        """Whether there are plans, from the assignments of now to executors that are alive."""
        alive = self.names
        return bool(plans) and all(
            plan.current == self.assignments[name]
            and {e for e in plan.target.executors if e} <= alive
            for name, plan in plans.items()
        )

    def update_standbys(self, replicas: int) -> None:
        """Choose who follows which key groups all the time, `replicas` executors for each."""
        if not replicas or len(self.alive) < 2:
            self.standbys = {}
            self._standbys_for = None
            return
        now = (self.alive, set(self.drained), dict(self.assignments))
        if now == self._standbys_for:
            return
        self._standbys_for = now
        usable = [e for e in self.alive if e.name not in self.drained]
        self.standbys = {
            name: planner.choose_standbys(a, usable, replicas)
            for name, a in self.assignments.items()
        }
