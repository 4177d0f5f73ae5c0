"""Who owns what and where, who is there, and what is wanted.

The director's picture of the world, and the plans that follow from it. It has no lock of its own:
whoever holds the director's may look and change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.checking import check_executor, nowhere_else, operators_of
from millrace.reconfigure.moves import Move
from millrace.reconfigure.planner import Plan, Slot, plan, relocate
from millrace.reconfigure.slots import Executor, choose_slots, standbys, surviving_slots

FADING = 0.2
"""The weight of the newest epoch in the load of a key group."""

_log = logging.getLogger("millrace")


class Places:
    """The assignments of one query's operators, and the executors they are on."""

    def __init__(
        self, alive: tuple[Executor, ...], assignments: Mapping[OperatorName, Assignment]
    ) -> None:
        self.alive = alive
        self.drained: set[str] = set()
        self.parallelism = {name: a.shards for name, a in assignments.items()}
        """The shards that operators are to have."""
        self.assignments = {name: self._settled(a) for name, a in assignments.items()}
        self.load = {name: np.zeros(a.key_groups) for name, a in assignments.items()}
        self.standing: dict[OperatorName, dict[str, tuple[int, ...]]] = {}
        """Who follows which key groups besides their owners."""
        self._sound: object = None
        """What was looked at last and lacked nothing."""
        self._stood: object = None
        """What the standbys were last chosen for."""

    @property
    def names(self) -> set[str]:
        """The executors that are there."""
        return {e.name for e in self.alive}

    @property
    def busy(self) -> set[str]:
        """Executors that have shards."""
        return {name for a in self.assignments.values() for name in a.executors}

    @property
    def shards(self) -> int:
        """The most shards that an operator is to have."""
        return max(self.parallelism.values())

    def owner(self, name: OperatorName, group: int) -> str:
        assignment = self.assignments[name]
        return assignment.executor_of(assignment.owners[group])

    def add_load(self, rows: Mapping[OperatorName, npt.NDArray[np.float64]]) -> None:
        """Take an epoch's rows per key group into account."""
        for name, counts in rows.items():
            self.load[name] += FADING * (counts - self.load[name])

    def short(self) -> dict[OperatorName, int]:
        """Operators that have not the shards they are to have, and how many those are."""
        return {
            name: wanted
            for name, wanted in self.parallelism.items()
            if wanted != self.assignments[name].shards
        }

    def want(self, move: Move) -> None:
        """From now on, what a move asks for is wanted."""
        details = move.details
        if move.kind == "rescale":
            for name in operators_of(details, self.assignments):
                self.parallelism[name] = int(details["parallelism"])
        elif move.kind == "drain":
            self.drained.add(str(details["executor"]))
        elif move.kind == "undrain":
            self.drained.discard(str(details["executor"]))

    def open_again(self, move: Move) -> None:
        """A drain that is not going to happen leaves its executor as it was."""
        if move.kind == "drain":
            self.drained.discard(str(move.details["executor"]))

    def _settled(self, assignment: Assignment) -> Assignment:
        """An assignment of an earlier run, or a new one, on the executors there are now."""
        bare = assignment.placed(())
        slots = choose_slots(bare, bare.shards, self.alive, self.drained)
        return bare.placed(tuple(slot.executor for slot in slots))

    def recover(self, location: str) -> bool:
        """Spread the key groups of lost executors over those that are left; whether any were."""
        alive = self.names
        spread = False
        for name, current in self.assignments.items():
            if not current.executors:
                if self.alive:
                    self.assignments[name] = self._settled(current)
                continue
            if set(current.executors) <= alive:
                continue
            slots = surviving_slots(current, self.alive)
            if not slots:
                self.assignments[name] = self._settled(current)
                continue
            planned = plan(
                current, slots, self.load[name], self.standing.get(name), only_homeless=True
            )
            _log.warning(
                "%s: executors %s are gone; their %d key groups of %r go to %d others",
                location,
                ", ".join(sorted(set(current.executors) - alive)),
                len(planned.moved),
                name,
                len(slots),
            )
            self.assignments[name] = planned.target
            spread = True
        return spread

    def is_sound(self) -> bool:
        """Whether no operator lacks shards that there are executors for, and none are crowded on
        some executors while others have none."""
        now = (self.alive, set(self.drained), dict(self.parallelism), dict(self.assignments))
        if now == self._sound or not self.alive:
            return True
        cores = sum(e.cores for e in self.alive if e.name not in self.drained)
        for name, wanted in self.parallelism.items():
            current = self.assignments[name]
            shards = max(current.shards, min(wanted, cores))
            slots = choose_slots(current, shards, self.alive, self.drained)
            if any(slot.keeps is None for slot in slots):
                return False
        self._sound = now
        return True

    def plan(self, move: Move, name: OperatorName) -> Plan:
        """How a move gets an operator to where it is to be; raises if that cannot be any more."""
        current = self.assignments[name]
        if move.kind == "move":
            to = str(move.details["to"])
            check_executor(to, self.alive)
            owners = [current.executor_of(shard) for shard in current.owners]
            groups = [g for g in move.details["key_groups"] if owners[g] != to]
            counts = np.bincount(current.owners, minlength=current.shards)
            there = [s for s in range(current.shards) if current.executor_of(s) == to]
            keeps = min(there, key=lambda s: counts[s]) if there else None
            return relocate(current, groups, Slot(to, keeps=keeps))
        if move.kind == "drain" and self.drained >= self.names:
            raise UsageError(nowhere_else(move.details["executor"]))
        slots = choose_slots(current, self.parallelism[name], self.alive, self.drained)
        return plan(current, slots, self.load[name], self.standing.get(name))

    def fits(self, plans: Mapping[OperatorName, Plan]) -> bool:
        """Whether there are plans, and they are for how things are now."""
        alive = self.names
        return bool(plans) and all(
            planned.current == self.assignments[name]
            and {e for e in planned.target.executors if e} <= alive
            for name, planned in plans.items()
        )

    def choose_standbys(self, replicas: int) -> None:
        """Choose who follows which key groups all the time, so many for each."""
        if not replicas or len(self.alive) < 2:
            self.standing = {}
            self._stood = None
            return
        now = (self.alive, set(self.drained), dict(self.assignments))
        if now == self._stood:
            return
        self._stood = now
        usable = [e for e in self.alive if e.name not in self.drained]
        self.standing = {
            name: standbys(a, usable, replicas) for name, a in self.assignments.items()
        }
