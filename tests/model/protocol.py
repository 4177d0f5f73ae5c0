"""The epoch, flip and recovery protocol, action by action.

Each action is atomic in the code as well, or its parts touch nothing that others can see. The table
in docs/decisions/0014 says which function of Millrace or Spark each one stands for. A process that
is stopped and wakes up later needs no action of its own: any driver may do its next step at any
time, however far the others are by then.

`Deviation` names ways to do it wrong. The checker has to find each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import Any, TypeVar

from tests.model.bounds import Bounds, Deviation
from tests.model.checker import Broken
from tests.model.invariants import (
    KEPT,
    LOST,
    MONOTONE,
    NO_FALSE_ALARM,
    ONE_WINNER,
    OWNER,
    READY,
    check_output,
    check_state,
)
from tests.model.state import (
    ASKED,
    COMMITTED,
    CREATED,
    DOWN,
    GONE,
    LOGGED,
    NEVER,
    OVERTAKEN,
    RUNNING,
    STARTED,
    Driver,
    Held,
    Manifest,
    Replica,
    Rows,
    Segment,
    State,
)

Step = tuple[str, State]
T = TypeVar("T")


@dataclass(frozen=True)
class Protocol:
    """The successors of a state."""

    bounds: Bounds
    wrong: Deviation | None = None
    _seen: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Parts of states that are the same are one object, to save memory."""

    def initial(self) -> State:
        return State((), 0, (), 0, (self._down(None),) * self.bounds.drivers)

    def successors(self, state: State) -> Iterator[Step]:
        for d, driver in enumerate(state.drivers):
            if driver in state.drivers[:d]:
                # What one can do, its twin can.
                continue
            for action, after in self._moves(state, d, driver):
                if after.head < state.head:
                    raise Broken(MONOTONE, action, f"from {state.head} to {after.head}")
                yield action, after
        yield from self._collect(state)

    def canonical(self, state: State) -> State:
        """Drivers are alike, and the next epoch's layout is made of the last one's only."""
        head = state.head
        manifests = tuple(
            manifest._replace(layout=()) if manifest is not None and epoch != head else manifest
            for epoch, manifest in enumerate(state.manifests, 1)
        )
        drivers = (self._seen.setdefault(driver, driver) for driver in state.drivers)
        return state._replace(
            drivers=tuple(sorted(drivers, key=hash)),
            manifests=self._seen.setdefault(manifests, manifests),
        )

    def is_end(self, state: State) -> bool:
        """Everything is committed."""
        return state.commits == self.bounds.batches == state.head

    def _moves(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        phase = driver.phase
        if phase == DOWN:
            yield self._start(state, d, driver)
            return
        yield f"crash({d})", _with(state, d, self._down(None))
        if phase == STARTED:
            yield self._launch(state, d, driver)
        elif phase == ASKED:
            yield from self._log_offsets(state, d, driver)
        elif phase == LOGGED:
            yield from self._begin_epoch(state, d, driver)
        elif phase == RUNNING:
            yield from self._run_shards(state, d, driver)
            yield from self._create_manifest(state, d, driver)
            if self.wrong is Deviation.FLIP_MID_EPOCH and driver.layout != self.bounds.target:
                yield f"flip({d})", _with(state, d, driver._replace(layout=self.bounds.target))
        elif phase == CREATED:
            yield self._look_for_head(state, d, driver)
        elif phase == OVERTAKEN:
            yield self._look_for_child(state, d, driver)
        elif phase == COMMITTED:
            yield self._spark_commit(state, d, driver)
        if phase in (RUNNING, COMMITTED) and driver.layout:
            # In the other phases nobody could tell the difference.
            yield from self._lose_executors(state, d, driver)
            yield from self._follow_behind(state, d, driver)

    # Starting.

    def _down(self, driver: Driver | None) -> Driver:
        """A driver that does not run: dead with its executors, or only the query has ended."""
        empty: Replica = (None,) * len(self.bounds.start)
        replicas = (empty,) * self.bounds.executors
        return Driver(replicas=driver.replicas if driver is not None else replicas)

    def _start(self, state: State, d: int, driver: Driver) -> Step:
        if self.wrong is not Deviation.HEAD_READ_EARLY:
            # What is read at the start is read again: only what Spark reads counts.
            return self._launch(state, d, driver)
        return f"start({d})", _with(state, d, driver._replace(phase=STARTED, trail=state.head))

    def _launch(self, state: State, d: int, driver: Driver) -> Step:
        batch = state.commits
        logged = len(state.offsets) > batch
        asked = driver._replace(phase=ASKED, batch=batch, logged=logged)
        return f"launch({d})", _with(state, d, asked)

    def _log_offsets(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        batch, bounds = driver.batch, self.bounds
        ready = driver._replace(phase=LOGGED, logged=True)
        if driver.logged:
            yield f"replay({d}, batch {batch})", _with(state, d, ready)
            return
        if batch == bounds.batches:
            return
        exists = len(state.offsets) > batch
        if exists and self.wrong is not Deviation.OFFSETS_OVERWRITTEN:
            yield f"offsets_taken({d}, batch {batch})", _with(state, d, self._down(driver))
            return
        start = state.offsets[batch - 1] if batch else 0
        # Every batch has a row at least, those to come included.
        most = len(bounds.rows) - start - (bounds.batches - batch - 1)
        for size in range(1, min(bounds.batch_rows, most) + 1):
            offsets = (*state.offsets[:batch], start + size, *state.offsets[batch + 1 :])
            after = _with(state, d, ready)._replace(offsets=offsets)
            yield f"log_offsets({d}, batch {batch}, {size} rows)", after

    # An epoch.

    def _begin_epoch(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        action = f"begin_epoch({d})"
        before = driver
        if driver.first:
            head = driver.trail if self.wrong is Deviation.HEAD_READ_EARLY else state.head
            if head and state.manifests[head - 1] is None:
                # Collected since the head was read.
                yield action, _with(state, d, self._down(driver))
                return
            last = state.manifests[head - 1] if head else None
            layout = last.layout if last is not None else self.bounds.start
            driver = driver._replace(trail=head, layout=layout, followed=(NEVER,) * len(layout))
        # Batch n makes epoch n + 1.
        if driver.batch > driver.trail:
            raise Broken(NO_FALSE_ALARM, action, f"batch {driver.batch}, epoch {driver.trail}")
        if driver.batch < driver.trail and self.wrong is not Deviation.REPLAY_APPLIED:
            yield f"skip_batch({d})", _with(state, d, before._replace(phase=COMMITTED))
            return
        if self.wrong is Deviation.SPARK_COMMITS_FIRST and state.commits == driver.batch:
            state = state._replace(commits=driver.batch + 1)
        for layout, replicas in self._recovered(driver):
            chosen = driver._replace(phase=RUNNING, layout=layout, replicas=replicas, reports=())
            yield f"begin_epoch({d}, on {layout})", _with(state, d, chosen)
            if self._flips(action, driver, chosen):
                flipped = chosen._replace(layout=self.bounds.target)
                yield f"begin_epoch({d}, flipped to {flipped.layout})", _with(state, d, flipped)

    def _recovered(self, driver: Driver) -> Iterator[tuple[tuple[int, ...], tuple[Replica, ...]]]:
        """Key groups of lost executors go to others, any of them; the lost are replaced."""
        lost = {e for e, replica in enumerate(driver.replicas) if replica is None}
        empty: Replica = (None,) * len(driver.layout)
        replicas = tuple(empty if replica is None else replica for replica in driver.replicas)
        left = [e for e in range(self.bounds.executors) if e not in lost]
        choices = [left or [e] if e in lost else [e] for e in driver.layout]
        for layout in product(*choices):
            yield layout, replicas

    def _flips(self, action: str, before: Driver, driver: Driver) -> bool:
        """Whether a live move, if one was asked for by now, flips: its new owners are ready."""
        target, version = self.bounds.target, driver.trail
        moved = [g for g, e in enumerate(driver.layout) if e != target[g]]
        ready = all(driver.followed[g] >= version - 1 for g in moved)
        if not moved or not (ready or self.wrong is Deviation.FLIP_UNREADY):
            return False
        for g in moved:
            replica = driver.replicas[target[g]]
            held = replica[g] if replica is not None else None
            behind = version - (held.at if held is not None else 0)
            if behind > 1 and before.replicas[before.layout[g]] is not None:
                raise Broken(READY, action, f"key group {g} is at {held}, the log at {version}")
        return True

    def _run_shards(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        """The next shard runs, or one that has reported runs once more.

        Shards of one epoch touch nothing of each other, so one order stands for all.
        """
        reported = {executor for executor, _ in driver.reports}
        owners = sorted(set(driver.layout))
        waiting = [executor for executor in owners if executor not in reported]
        for executor in [*(e for e in owners if e in reported), *waiting[:1]]:
            action = f"run_shard({d}, executor {executor})"
            if driver.replicas[executor] is None:
                # Spark runs it on some other executor; nothing there to start from.
                replica: Replica = (None,) * len(driver.layout)
            else:
                replica = driver.replicas[executor]
            groups = tuple(g for g, e in enumerate(driver.layout) if e == executor)
            replica = self._follow(state, replica, driver.trail, groups)
            if replica is None:
                yield action, _with(state, d, self._down(driver))
                continue
            segment, replica = self._apply(state, driver, replica, groups)
            reports = (*(r for r in driver.reports if r[0] != executor), (executor, segment))
            if driver.replicas[executor] is not None:
                driver_after = driver._replace(replicas=_put(driver.replicas, executor, replica))
            else:
                driver_after = driver
            driver_after = driver_after._replace(reports=tuple(sorted(reports, key=itemgetter(0))))
            after = _with(state, d, driver_after)
            if self.wrong is Deviation.SHARED_SEGMENT_NAMES:
                after = self._overwritten(action, after, driver, executor, segment)
            yield action, after

    def _apply(
        self,
        state: State,
        driver: Driver,
        replica: tuple[Held | None, ...],
        groups: tuple[int, ...],
    ) -> tuple[Segment, Replica]:
        """The segment that a shard writes, and its replica afterwards."""
        changed = []
        for group in groups:
            held = replica[group]
            assert held is not None
            new = tuple(r for r in self._batch(state, driver.batch) if self.bounds.rows[r] == group)
            if new:
                changed.append((group, held.rows + new))
                if self.wrong is Deviation.REPLICA_IN_PLACE:
                    replica = _put(replica, group, Held(held.at, held.rows + new))
        return Segment(tuple(changed), groups), replica

    def _batch(self, state: State, batch: int) -> range:
        """The rows of a batch, as Spark's offset log has them."""
        return range(state.offsets[batch - 1] if batch else 0, state.offsets[batch])

    def _create_manifest(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        reported = {executor for executor, _ in driver.reports}
        if not reported >= set(driver.layout) and (
            self.wrong is not Deviation.MISSING_REPORT or not reported
        ):
            return
        epoch = driver.trail + 1
        action = f"create_manifest({d}, epoch {epoch})"
        is_late = len(state.manifests) >= epoch
        yield f"sink_fails({d})", _with(state, d, self._down(driver))
        if is_late:
            # The output was written before: by now a second time.
            check_output(self.bounds, action, state, driver)
        exists = is_late and state.manifests[epoch - 1] is not None
        if exists and self.wrong is not Deviation.CREATE_OVERWRITES:
            yield f"fenced({d}, epoch {epoch})", _with(state, d, self._down(driver))
            return
        manifest = self._manifest(action, state, driver, is_late=is_late)
        manifests = state.manifests if is_late else (*state.manifests, None)
        created = driver._replace(phase=CREATED, is_late=is_late, reports=())
        yield (
            action,
            _with(state, d, created)._replace(manifests=_put(manifests, epoch - 1, manifest)),
        )

    def _manifest(self, action: str, state: State, driver: Driver, *, is_late: bool) -> Manifest:
        parent = state.manifests[driver.trail - 1] if driver.trail else None
        groups = len(driver.layout)
        rows: list[Rows] = list(parent.state) if parent is not None else [()] * groups
        changed: list[Rows | None] = [None] * groups
        owners = [0] * groups
        for executor, segment in driver.reports:
            if segment is None:
                if not is_late:
                    raise Broken(LOST, action, "the file of a segment is gone")
                for group in (g for g, e in enumerate(driver.layout) if e == executor):
                    changed[group] = rows[group] = GONE
                continue
            for group in segment.groups:
                owners[group] += 1
            for group, value in segment.changed:
                changed[group] = rows[group] = value
        manifest = Manifest(driver.layout, tuple(changed), tuple(rows), is_late)
        if not is_late:
            check_state(self.bounds, action, state, manifest, driver.trail + 1)
            if owners != [1] * groups:
                raise Broken(OWNER, action, f"key groups have {owners} owners")
        return manifest

    def _look_for_head(self, state: State, d: int, driver: Driver) -> Step:
        """What was never collected has no mark, and was not there before. The head is never
        collected: if nothing is later than this epoch, it is the head."""
        parent = state.manifests[driver.trail - 1] if driver.trail else None
        is_marked = driver.trail + 1 in state.marked
        if self.wrong is Deviation.NO_LATENESS_CHECK or not is_marked:
            return self._committed(state, d, driver)
        if state.head == driver.trail + 1:
            return self._committed(state, d, driver)
        if self.wrong is Deviation.PARENT_IS_PROOF and parent is not None:
            return self._committed(state, d, driver)
        if self.wrong is Deviation.LATE_WITHOUT_PARENT and parent is None:
            return self._late(state, d, driver)
        return f"not_head({d})", _with(state, d, driver._replace(phase=OVERTAKEN))

    def _look_for_child(self, state: State, d: int, driver: Driver) -> Step:
        """Somebody is ahead: on top of this manifest, or of one that was collected?"""
        if self._has_child(state, driver):
            return self._committed(state, d, driver)
        epoch = driver.trail + 1
        if state.manifests[epoch] is None and self.wrong is not Deviation.LATE_WITHOUT_CHILD:
            # The child was collected: a reader may hold this one, so it stays.
            return f"lost({d}, epoch {epoch})", _with(state, d, self._down(driver))
        return self._late(state, d, driver)

    def _has_child(self, state: State, driver: Driver) -> bool:
        """Whether the next manifest is there and names this one's checksum as its parent."""
        epoch = driver.trail + 1
        child = state.manifests[epoch] if len(state.manifests) > epoch else None
        # Nobody builds on a late manifest, or an invariant is broken elsewhere.
        return child is not None and not driver.is_late

    def _committed(self, state: State, d: int, driver: Driver) -> Step:
        epoch = driver.trail + 1
        action = f"committed({d}, epoch {epoch})"
        if driver.is_late:
            raise Broken(ONE_WINNER, action, f"epoch {epoch} was committed by another driver")
        after = driver._replace(phase=COMMITTED, trail=epoch, first=False)
        return action, _with(state, d, after)

    def _late(self, state: State, d: int, driver: Driver) -> Step:
        """The name was free because the epoch had been collected: take the manifest away."""
        epoch = driver.trail + 1
        action = f"late({d}, epoch {epoch})"
        mine = state.manifests[epoch - 1]
        if mine is not None and not mine.is_late:
            raise Broken(KEPT, action, f"epoch {epoch} is deleted, and others build on it")
        gone = _put(state.manifests, epoch - 1, None)
        return action, _with(state, d, self._down(driver))._replace(manifests=gone)

    def _spark_commit(self, state: State, d: int, driver: Driver) -> Step:
        action = f"spark_commit({d}, batch {driver.batch})"
        if state.commits > driver.batch and self.wrong is not Deviation.SPARK_COMMITS_FIRST:
            return f"commit_taken({d})", _with(state, d, self._down(driver))
        after = driver._replace(phase=ASKED, batch=driver.batch + 1, logged=False)
        return action, _with(state, d, after)._replace(commits=driver.batch + 1)

    # Old files.

    def _collect(self, state: State) -> Iterator[Step]:
        """A driver, or anybody at a terminal, deletes an old manifest or segments without one.

        Manifests go in any order, because leases of readers keep any of them for a while.
        """
        for epoch in range(1, state.head - self.bounds.retain + 1):
            is_there, is_marked = state.manifests[epoch - 1] is not None, epoch in state.marked
            is_wrong = self.wrong is Deviation.MARK_AFTERWARDS
            if is_there and (is_marked or is_wrong):
                gone = _put(state.manifests, epoch - 1, None)
                yield f"collect(manifest {epoch})", state._replace(manifests=gone)
            if not is_marked and is_there is not is_wrong:
                yield f"mark({epoch})", state._replace(marked=state.marked | {epoch})
        unfinished = self.wrong is Deviation.COLLECT_UNFINISHED
        drivers = tuple(
            driver._replace(reports=tuple((executor, None) for executor, _ in driver.reports))
            if driver.reports and (unfinished or driver.trail < state.head)
            else driver
            for driver in state.drivers
        )
        if drivers != state.drivers:
            yield "collect(segments)", state._replace(drivers=drivers)

    # Executors.

    def _lose_executors(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        if state.losses == self.bounds.losses:
            return
        for executor, replica in enumerate(driver.replicas):
            if replica is None or (not any(replica) and executor not in driver.layout):
                continue
            followed = tuple(
                NEVER if self.bounds.target[g] == executor else at
                for g, at in enumerate(driver.followed)
            )
            lost = driver._replace(
                replicas=_put(driver.replicas, executor, None), followed=followed
            )
            after = _with(state, d, lost)._replace(losses=state.losses + 1)
            yield f"lose_executor({d}, {executor})", after

    def _follow_behind(self, state: State, d: int, driver: Driver) -> Iterator[Step]:
        """The destination of a move follows a key group up to the last committed epoch."""
        for group, executor in enumerate(self.bounds.target):
            replica = driver.replicas[executor]
            if driver.layout[group] == executor or replica is None:
                continue
            replica = self._follow(state, replica, state.head, (group,))
            if replica is None or replica == driver.replicas[executor]:
                continue
            follower = driver._replace(
                replicas=_put(driver.replicas, executor, replica),
                followed=_put(driver.followed, group, state.head),
            )
            yield f"follow({d}, executor {executor}, key group {group})", _with(state, d, follower)

    def _follow(
        self, state: State, replica: tuple[Held | None, ...], version: int, groups: tuple[int, ...]
    ) -> tuple[Held | None, ...] | None:
        """Bring key groups to a version; None if some of what it needs is not retained any more."""
        if version and state.manifests[version - 1] is None:
            return None
        if any(held is not None and held.at > version for held in replica):
            # A task older than what the process has seen: it starts over.
            replica = (None,) * len(replica)
        for group in groups:
            brought = self._brought(state, replica[group], version, group)
            if brought.rows == GONE:
                return None
            replica = _put(replica, group, brought)
        return replica

    def _brought(self, state: State, held: Held | None, version: int, group: int) -> Held:
        if version == 0:
            return Held(0, ())
        newest = state.manifests[version - 1]
        assert newest is not None
        if held is None:
            return Held(version, newest.state[group])
        rows = held.rows
        skips = self.wrong is Deviation.FOLLOWER_SKIPS
        for epoch in range(version if skips else held.at + 1, version + 1):
            manifest = state.manifests[epoch - 1]
            if manifest is None:
                # Away for longer than manifests are kept: go on with what is live now.
                return Held(version, newest.state[group])
            if manifest.changed[group] == GONE:
                return Held(version, GONE)
            rows = rows if manifest.changed[group] is None else manifest.changed[group] or ()
        return Held(version, rows)

    def _overwritten(
        self, action: str, state: State, driver: Driver, executor: int, segment: Segment
    ) -> State:
        """What becomes of a manifest if a shard's file replaces one that it names."""
        epoch = driver.trail + 1
        manifest = state.manifests[epoch - 1] if len(state.manifests) >= epoch else None
        if manifest is None:
            return state
        shard = sorted(set(driver.layout)).index(executor)
        shards = sorted(set(manifest.layout))
        changed, rows = list(manifest.changed), list(manifest.state)
        for group, owner in enumerate(manifest.layout):
            if shards.index(owner) == shard and changed[group] is not None:
                changed[group] = rows[group] = dict(segment.changed).get(group, ())
        after = manifest._replace(changed=tuple(changed), state=tuple(rows))
        check_state(self.bounds, action, state, after, epoch)
        return state._replace(manifests=_put(state.manifests, epoch - 1, after))


def _put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _with(state: State, d: int, driver: Driver) -> State:
    return state._replace(drivers=_put(state.drivers, d, driver))
