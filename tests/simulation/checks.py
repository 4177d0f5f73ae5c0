"""What must hold in every schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tests.simulation.driver import Driver
from tests.simulation.operators import next_state
from tests.unit.driving import State, to_state

from millrace.errors import FencedError
from millrace.ids import Epoch, OperatorName, Shard, table_name
from millrace.keygroups import Assignment, parse_ranges
from millrace.log import Journal
from millrace.log.manifest import manifest_path
from millrace.reconfigure.moves import FINAL
from millrace.reconfigure.requests import Requests
from millrace.state.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.world import World

FOLLOW_FIRST = {"live": 1, "standby": 1, "pause": 0, "fluid": 0}
"""Strategy -> how many epochs a new owner may be behind when it gets key groups."""


class Checks:
    """Looks over a world's shoulder."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: list[dict[OperatorName, State]] = [{}]
        self._checked = Epoch(0)
        self._last_death = -1
        self._answered: set[str] = set()
        self._assignments: dict[int, dict[OperatorName, Assignment | None]] = {}
        """Those of every epoch."""
        self._before: dict[OperatorName, Assignment] = {}
        self._faults = 0
        self._quiet: dict[OperatorName, Assignment] | None = None

    def oracle(self, batches: int) -> dict[OperatorName, State]:
        """All tables after a number of batches. There may be more epochs: some have no batch."""
        while len(self._states) <= batches:
            rows = self._world.rows_of(len(self._states) - 1)
            before = self._states[-1]
            self._states.append(
                {
                    (name := table_name(op.name, table)): next_state(
                        table, before.get(name, {}), rows[op.name]
                    )
                    for op in self._world.operators
                    for table in op.tables
                }
            )
        return self._states[batches]

    def died(self, epoch: int) -> None:
        self._last_death = epoch

    # Assignments.

    def choosing(self, driver: Driver) -> None:
        self._before = driver.director.assignments()
        self._faults = self._world.cluster.faults + self._world.store.faults

    def chosen(self, driver: Driver) -> None:
        """Who gets key groups of a living owner has followed them, as the strategy promises."""
        cluster = self._world.cluster
        alive = {e.name for e in cluster.alive()}
        living = {p.name for p in cluster.living()}
        move = driver.director.under_way
        faultless = self._faults == cluster.faults + self._world.store.faults
        for name, after in driver.layout.items():
            before = self._before[name]
            assert set(after.executors) <= alive or not faultless, f"{name}: {after} on the dead"
            for group in range(after.key_groups):
                old = before.executor_of(before.owners[group])
                new = after.executor_of(after.owners[group])
                if old == new or old not in alive or new not in living:
                    continue
                assert move is not None, f"{name}: key group {group} moves {old} -> {new} unasked"
                lag = FOLLOW_FIRST.get(move.strategy)
                if lag is None or (not lag and not faultless):
                    continue
                reached = cluster.followed.get((name, new, group), -1)
                assert reached >= driver.trail.epoch - lag, (
                    f"{move}: key group {group} of {name} goes to {new}, which is at {reached}, "
                    f"before epoch {driver.trail.epoch + 1}"
                )

    # Epochs.

    def committed(self, epoch: Epoch) -> None:
        """Who wrote what owned it; and after every change the log says what the oracle says."""
        journal = Journal.open(self._world.memory)
        manifests = [self._check_manifest(journal, Epoch(e)) for e in self._new_epochs(epoch)]
        self._checked = epoch
        if any(manifests):
            self.state(epoch)

    def _new_epochs(self, epoch: Epoch) -> range:
        return range(self._checked + 1, epoch + 1)

    def state(self, epoch: Epoch) -> None:
        """All tables, read by new replicas that follow a new trail."""
        world = self._world
        trail = Journal.open(world.memory).trail(epoch)
        every = np.arange(world.key_groups)
        oracle = self.oracle(0 if trail.batch_id is None else trail.batch_id + 1)
        for operator in world.operators:
            for table, layout in operator.tables.items():
                name = table_name(operator.name, table)
                log = trail.operator(name)
                replica = Replica(world.memory, layout.schema, world.key_groups)
                replica.follow(log, epoch, every)
                state = to_state(replica.read(every))
                expected = oracle.get(name, {})
                assert state == expected, f"epoch {epoch}, {name}: {state} is not {expected}"
                assert log.rows == len(expected)

    def _check_manifest(self, journal: Journal, epoch: Epoch) -> bool:
        """Whether the epoch changed something, and everything has one owner."""
        if self._world.memory.size(manifest_path(epoch)) is None:
            # Collected before anybody looked; what came of it is looked at.
            return True
        manifest, _ = journal.read(epoch)
        for name, commit in manifest.operators.items():
            assignment = commit.assignment
            assert len(assignment.owners) == self._world.key_groups
            assert set(assignment.owners) <= set(range(assignment.shards))
            writers = [int(s.path.rsplit("/", 1)[-1].split("-")[1]) for s in commit.segments]
            assert len(writers) == len(set(writers)), f"{name}: two segments of one shard"
            for segment, shard in zip(commit.segments, writers, strict=True):
                owned = set(assignment.groups_of(Shard(shard)).tolist())
                for section in segment.sections:
                    assert set(parse_ranges(section.covers).tolist()) <= owned
        return any(commit.segments for commit in manifest.operators.values())

    # Requests.

    def answers(self, driver: Driver) -> None:
        """A request that is done has had its effect, unless an executor died meanwhile.

        In the epoch that its answer names: the answer itself may come later, when the store works
        again, and after the next request has had its effect.
        """
        requests = Requests(self._world.memory)
        self._assignments[driver.trail.epoch] = {
            operator.name: driver.trail.operator(table_name(operator.name)).assignment
            for operator in self._world.operators
        }
        for id_ in self._asked() - self._answered:
            answer = requests.answered(id_)
            if answer is None:
                continue
            self._answered.add(id_)
            request = requests.read(id_)
            self._world.say(f"  {request.kind} {id_}: {answer.state} {answer.reason}")
            assert answer.state in FINAL
            self._world.tally[f"{request.kind} {answer.state}"] += 1
            if request.kind != "cancel":
                self._world.tally[f"{request.details['strategy']} {answer.state}"] += 1
            first = answer.report.get("first_epoch")
            if answer.state != "done" or first is None or self._last_death >= first - 2:
                continue
            details = request.details
            for operator in self._world.operators:
                if details.get("operator") not in (None, operator.name):
                    continue
                now = self._assignments[answer.report["last_epoch"]][operator.name]
                assert now is not None
                if request.kind == "rescale":
                    assert now.shards == details["parallelism"], f"{request}: {now}"
                elif request.kind == "move":
                    places = {now.executor_of(now.owners[g]) for g in details["key_groups"]}
                    assert places == {details["to"]}, f"{request}: {now}"
                elif request.kind == "drain":
                    assert details["executor"] not in now.executors, f"{request}: {now}"

    def _asked(self) -> set[str]:
        return {
            path.removeprefix("requests/").removesuffix(".json")
            for path in self._world.memory.list("requests")
            if path.endswith(".json") and ".answer" not in path
        }

    # The end.

    def is_settled(self) -> bool:
        """Whether nothing is open and nothing changed in this epoch."""
        director = self._world.driver.director
        now = director.assignments()
        same, self._quiet = now == self._quiet, now
        return same and director.under_way is None and not Requests(self._world.memory).pending()

    def answered(self) -> None:
        """Nothing is open."""
        world = self._world
        open_ = Requests(world.memory).pending()
        assert not open_, f"still open without rows: {open_}, {world.driver.director.under_way}"

    def settled(self, quiet: bool) -> None:
        world = self._world
        director = world.driver.director
        pending = Requests(world.memory).pending()
        assert quiet, f"still open: {pending}, {director.under_way}, {director.assignments()}"
        alive = {p.name for p in world.cluster.living()}
        for name, assignment in director.assignments().items():
            assert set(assignment.executors) <= alive, f"{name}: {assignment} on the dead"
        for move in world.moves:
            answer = Requests(world.memory).answered(move.id)
            assert answer is not None
            assert (answer.state, answer.reason) == (move.state, move.reason)

    def fenced(self, late: Driver) -> None:
        """A driver that was thought dead cannot commit an epoch that is committed."""
        try:
            late.commit()
        except FencedError:
            return
        raise AssertionError("a second driver committed an epoch that was committed")
