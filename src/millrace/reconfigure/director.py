"""The director: decides before every epoch where each key group is handled, and sees to it.

It puts the planner and the strategies to work on live executors, requests from anywhere, and the
log. Asked at an epoch's boundary, it answers with an assignment per operator. Following in the
background is somebody else's loop around `follow_once`, so that the answer costs the epoch nothing.
It knows no Spark: executors and following are given to it, and a simulator gives it others.

Invariant: an epoch runs with one assignment, chosen before it starts and recorded in its manifest.
Whatever happens here (a lost executor, a failed follow, a new request) changes later epochs only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from millrace import clock
from millrace.errors import (
    MillraceError,
    UsageError,
)
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.checking import (
    check_executor,
    check_request,
    nowhere_else,
    operators_of,
)
from millrace.reconfigure.cluster import Cluster, DirectorOptions
from millrace.reconfigure.desk import KEPT_MOVES, Desk
from millrace.reconfigure.followers import Followed, Followers, Wanted
from millrace.reconfigure.moves import Move, MoveReport, Progress, report
from millrace.reconfigure.planner import Plan, Slot, plan, relocate
from millrace.reconfigure.requests import Answer, Request, Requests
from millrace.reconfigure.rounds import Rounds
from millrace.reconfigure.slots import Executor, choose_slots, standbys, surviving_slots
from millrace.reconfigure.staffing import Staff
from millrace.reconfigure.strategies import View, next_step

_log = logging.getLogger("millrace")

ATTEMPTS = 3
SAMPLE = 20
"""Epochs before and after a move that its report speaks of."""
FADING = 0.2
"""The weight of the newest epoch in the load of a key group."""


class Director:
    """Chooses the assignments of one query."""

    def __init__(
        self,
        cluster: Cluster,
        requests: Requests,
        run: str,
        assignments: Mapping[OperatorName, Assignment],
        options: DirectorOptions,
    ) -> None:
        self._cluster = cluster
        self._local = cluster.is_local
        self._options = options
        self._desk = Desk(requests, run)
        self._staff = Staff(cluster, options)
        self._rounds = Rounds(cluster, options)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._alive: tuple[Executor, ...] = cluster.alive()
        self._drained: set[str] = set()
        self._parallelism = {name: a.shards for name, a in assignments.items()}
        self._assignments = {name: self._settled(a) for name, a in assignments.items()}
        self._load = {name: np.zeros(a.key_groups) for name, a in assignments.items()}
        self._version = Epoch(0)
        self._followers = Followers()
        self._known: frozenset[str] = frozenset()
        self._cold: set[str] = set()
        """Executors that have not run anything of ours: their first task takes seconds."""
        self._standing: dict[OperatorName, dict[str, tuple[int, ...]]] = {}
        self._behind: dict[OperatorName, tuple[int, ...]] = {}
        self._current: Progress | None = None
        self._past: dict[str, Progress] = {}
        self._queue: list[Request] = []
        self._sound: object = None
        """What was looked at last and needed no healing."""
        self._stood: object = None
        """What the standbys were last chosen for."""
        self._seconds: list[float] = []
        self._closed = False
        self.restart: Callable[[], None] | None = None
        """Stops the query and starts it again; set by whoever can."""
        self.restarting = threading.Event()

    def close(self) -> None:
        """Stop; what is unanswered stays for the next driver."""
        with self._changed:
            self._closed = True
            for move in self._desk.moves.values():
                move.abandon("the query has ended; its next start takes the request up again")
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def await_change(self, timeout: float, *, until: Callable[[], bool] | None = None) -> None:
        """Wait until there may be something to do; at most so many seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (until is not None and until()), timeout=timeout
            )

    # What the epoch runner calls.

    def before_epoch(
        self, version: Epoch
    ) -> tuple[dict[OperatorName, Assignment], tuple[Executor, ...]]:
        """Choose the next epoch's assignments; with the executors they were chosen for."""
        if not self._local:
            self._alive = self._cluster.alive()
        with self._lock:
            self._version = version
            self._notice()
            self._recover()
            self._next_request()
            if self._current is None:
                self._heal()
            waiting = self._by_executor(self._advance(version))
        found = self._rounds.before(waiting, version)
        with self._changed:
            self._note(found)
            self._refresh_standbys()
            self._changed.notify_all()
            return dict(self._assignments), self._alive

    def after_epoch(
        self,
        epoch: Epoch,
        seconds: float,
        rows: Mapping[OperatorName, npt.NDArray[np.float64]],
    ) -> None:
        """Take note of a committed epoch: how long it took, and each key group's rows."""
        with self._changed:
            self._version = epoch
            for name, counts in rows.items():
                self._load[name] += FADING * (counts - self._load[name])
            self._seconds.append(seconds)
            del self._seconds[: -10 * SAMPLE]
            progress = self._current
            if progress is not None:
                progress.during.append(seconds)
                if progress.first_epoch is None:
                    progress.first_epoch = epoch
                progress.last_epoch = epoch
                progress.seconds = clock.stopwatch() - progress.started
                if progress.flipped and not self._left_behind():
                    self._finish(progress, "done")
            for past in self._past.values():
                if past is not progress and len(past.after) < SAMPLE:
                    past.after.append(seconds)
            self._changed.notify_all()

    def adopt(self) -> None:
        """Take the target over at once; for a query that was stopped to be restarted."""
        with self._changed:
            progress = self._current
            # Meanwhile it may have been superseded, or an executor lost: then it is planned anew.
            if (
                progress is not None
                and progress.move.strategy == "restart"
                and self._fits(progress)
            ):
                for name, planned in list(progress.plans.items()):
                    self._flip(progress, name, planned.target)
                progress.flipped = True
            self.restarting.clear()

    # What the user calls.

    def submit(self, kind: str, strategy: str, **details: object) -> Move:
        """Check a request, write it down, and take it up at the next epoch."""
        body = {**details, "strategy": strategy}
        with self._lock:
            self._check(kind, body)
        request = self._desk.submit(kind, body)
        with self._changed:
            self._accept(request)
            return self._desk.moves[request.id]

    @property
    def _busy(self) -> set[str]:
        """Executors that have shards."""
        return {name for a in self._assignments.values() for name in a.executors}

    @property
    def _shards(self) -> int:
        """The most shards that an operator is to have."""
        return max(self._parallelism.values())

    @property
    def under_way(self) -> Move | None:
        """The move that is being carried out."""
        with self._lock:
            return self._current.move if self._current is not None else None

    def assignments(self) -> dict[OperatorName, Assignment]:
        with self._lock:
            return dict(self._assignments)

    def wanted(self) -> dict[OperatorName, int]:
        """Operators that lack executors for the shards they are to have, and how many those are.

        While a rescale is under way, none: what it wants is in its request.
        """
        with self._lock:
            if self._current is not None and self._current.move.kind == "rescale":
                return {}
            return {
                name: shards
                for name, shards in self._parallelism.items()
                if shards != self._assignments[name].shards
            }

    def executors(self) -> tuple[Executor, ...]:
        return self._cluster.alive()

    # Requests.

    def poll(self) -> None:
        """Look for requests that somebody wrote into the location."""
        with self._lock:
            self._desk.write_answers()
        for request in self._desk.taken():
            with self._lock:
                self._accept(request)

    def _accept(self, request: Request) -> None:
        """Queue a request, or refuse it with a reason."""
        if request.id in self._desk.moves:
            return
        strategy = str(request.details.get("strategy", "live"))
        move = Move(request.id, request.kind, strategy, request.details, self._report, self._cancel)
        self._desk.moves[request.id] = move
        try:
            self._check(request.kind, request.details)
        except MillraceError as error:
            self._close_request(move, "refused", str(error))
            return
        if request.kind == "cancel":
            self._cancel(self._desk.moves[str(request.details["request"])])
            self._close_request(move, "done")
            return
        self._queue.append(request)

    def _check(self, kind: str, details: Mapping[str, object]) -> None:
        check_request(kind, details, self._assignments, self._cluster.alive(), self._drained)
        if kind == "cancel":
            found = self._desk.moves.get(str(details.get("request")))
            if found is None or not found.is_open:
                state = "is not known" if found is None else f"is {found.state} already"
                raise UsageError(
                    f"request {details.get('request')!r} {state}; there is nothing to cancel."
                )

    def _next_request(self) -> None:
        """The newest request wins; those before it are superseded."""
        if not self._queue:
            return
        *older, newest = self._queue
        self._queue = []
        for request in older:
            self._supersede(self._desk.moves[request.id], newest.id)
        if self._current is not None:
            self._supersede(self._current.move, newest.id)
            self._abandon(self._current)
        self._begin(self._desk.moves[newest.id])

    def _supersede(self, move: Move, by: str) -> None:
        self._close_request(move, "superseded", f"by request {by}")

    def _cancel(self, move: Move) -> None:
        with self._lock:
            self._queue = [r for r in self._queue if r.id != move.id]
            if self._current is not None and self._current.move is move:
                self._abandon(self._current)
                self._open_again(move)
            self._close_request(move, "cancelled", "as asked")

    def _close_request(self, move: Move, state: str, reason: str = "") -> None:
        if not move.is_open:
            return
        move.end(state, reason)
        told = self._report(move).to_json() if state == "done" else {}
        self._desk.answer(move, Answer(state, reason, told))

    # A move under way.

    def _begin(self, move: Move) -> None:
        details = move.details
        before = dict(self._parallelism)
        if move.kind == "rescale":
            for name in operators_of(details, self._assignments):
                self._parallelism[name] = int(details["parallelism"])
            self._staff.ask(self._alive, self._shards)
        elif move.kind == "drain":
            self._drained.add(str(details["executor"]))
        elif move.kind == "undrain":
            self._drained.discard(str(details["executor"]))
        move.state = "moving"
        progress = Progress(move, clock.stopwatch(), self._seconds[-SAMPLE:], before)
        self._current = progress
        self._past[move.id] = progress
        for old in list(self._past)[:-KEPT_MOVES]:
            del self._past[old]

    def _drop(self) -> None:
        self._current = None
        self._behind = {}

    def _abandon(self, progress: Progress) -> None:
        """What has moved stays; where nothing has, what was wanted before is wanted again."""
        moved = {name for name, _ in progress.moved}
        if progress.move.kind == "rescale":
            for name, before in progress.parallelism.items():
                now = self._assignments[name].shards
                self._parallelism[name] = now if name in moved else before
        self._drop()

    def _open_again(self, move: Move) -> None:
        """A drain that is not going to happen leaves its executor as it was."""
        if move.kind == "drain":
            self._drained.discard(str(move.details["executor"]))

    def _finish(self, progress: Progress, state: str, reason: str = "") -> None:
        progress.seconds = clock.stopwatch() - progress.started
        if state == "done":
            if progress.move.kind == "move":
                # It may have opened or closed a shard, and that is not to be healed.
                for name, (old, new) in progress.shards.items():
                    operator = OperatorName(name)
                    self._parallelism[operator] = max(1, self._parallelism[operator] + new - old)
            self._drop()
        else:
            self._abandon(progress)
            self._open_again(progress.move)
        self._close_request(progress.move, state, reason)
        if state == "done":
            self._staff.dismiss(self._alive, self._busy, self._shards)

    def _advance(self, version: Epoch) -> dict[OperatorName, tuple[int, ...]]:
        """One step of the move under way; key groups that the epoch must wait for."""
        progress = self._current
        if progress is None or progress.flipped or self.restarting.is_set():
            return {}
        if not self._plan(progress):
            return {}
        waiting: dict[OperatorName, tuple[int, ...]] = {}
        behind: dict[OperatorName, tuple[int, ...]] = {}
        done = True
        for name, planned in list(progress.plans.items()):
            followed = {
                group: self._followers.at(name, planned.destination(group), group)
                for group in planned.moved
            }
            view = View(version, planned, followed, self._load[name])
            step = next_step(progress.move.strategy, view)
            if step.restart and planned.moved:
                self.restarting.set()
                if self.restart is not None:
                    threading.Thread(target=self.restart, name="millrace-restart").start()
                return {}
            done &= step.done
            if step.before:
                waiting[name] = step.before
            if step.behind:
                behind[name] = step.behind
            if step.assignment != self._assignments[name]:
                self._flip(progress, name, step.assignment)
        self._behind = behind
        progress.flipped = done
        return waiting

    def _flip(self, progress: Progress, name: OperatorName, assignment: Assignment) -> None:
        planned = progress.plans[name]
        if assignment == planned.target:
            changed = frozenset(planned.moved)
        else:
            # On the way to the target the shards that were there keep their numbers.
            changed = frozenset(
                g for g in planned.moved if planned.current.owners[g] != assignment.owners[g]
            )
        progress.moved |= {(name, group) for group in changed}
        progress.plans[name] = planned.after(changed)
        self._assignments[name] = assignment

    def _plan(self, progress: Progress) -> bool:
        """Make plans, or make them anew if they no longer fit; False if it is too early."""
        if self._fits(progress):
            return True
        move = progress.move
        enough = self._staff.suffices(self._alive, self._shards, progress.started)
        if move.kind == "rescale" and not enough:
            return False
        try:
            progress.plans = {
                name: self._plan_operator(move, name)
                for name in operators_of(move.details, self._assignments)
            }
        except UsageError as error:
            self._finish(progress, "refused", str(error))
            return False
        for name, planned in progress.plans.items():
            old = progress.shards.get(name, (planned.current.shards, 0))[0]
            progress.shards[name] = (old, planned.target.shards)
        return True

    def _fits(self, progress: Progress) -> bool:
        """Whether there are plans, and they are for how things are now."""
        alive = {e.name for e in self._alive}
        return bool(progress.plans) and all(
            planned.current == self._assignments[name]
            and {e for e in planned.target.executors if e} <= alive
            for name, planned in progress.plans.items()
        )

    def _plan_operator(self, move: Move, name: OperatorName) -> Plan:
        current = self._assignments[name]
        if move.kind == "move":
            to = str(move.details["to"])
            check_executor(to, self._alive)
            owners = [current.executor_of(shard) for shard in current.owners]
            groups = [g for g in move.details["key_groups"] if owners[g] != to]
            counts = np.bincount(current.owners, minlength=current.shards)
            there = [s for s in range(current.shards) if current.executor_of(s) == to]
            keeps = min(there, key=lambda s: counts[s]) if there else None
            return relocate(current, groups, Slot(to, keeps=keeps))
        if move.kind == "drain" and self._drained >= {e.name for e in self._alive}:
            raise UsageError(nowhere_else(move.details["executor"]))
        slots = choose_slots(current, self._parallelism[name], self._alive, self._drained)
        return plan(current, slots, self._load[name], self._standing.get(name))

    def _by_executor(self, waiting: Mapping[OperatorName, tuple[int, ...]]) -> Wanted:
        found: dict[str, dict[OperatorName, list[int]]] = {}
        for name, groups in waiting.items():
            for group in groups:
                found.setdefault(self._owner(name, group), {}).setdefault(name, []).append(group)
        return found

    def _left_behind(self) -> bool:
        """Whether `lazy` still has something to fetch."""
        return any(
            self._followers.at(name, self._owner(name, group), group) < 0
            for name, groups in self._behind.items()
            for group in groups
        )

    def _owner(self, name: OperatorName, group: int) -> str:
        assignment = self._assignments[name]
        return assignment.executor_of(assignment.owners[group])

    # Executors that come and go.

    def _settled(self, assignment: Assignment) -> Assignment:
        """An assignment of an earlier run, or a new one, on the executors there are now."""
        bare = assignment.placed(())
        slots = choose_slots(bare, bare.shards, self._alive, self._drained)
        return bare.placed(tuple(slot.executor for slot in slots))

    def _notice(self) -> None:
        """Take note of who has come and gone."""
        alive = {e.name for e in self._alive}
        self._followers.keep(alive)
        self._drained &= alive
        if not self._local:
            self._cold = (self._cold | (alive - self._known - self._busy)) & alive
            self._known = frozenset(alive)

    def _recover(self) -> None:
        """Spread the key groups of lost executors over those that are left, at once."""
        alive = {e.name for e in self._alive}
        for name, current in self._assignments.items():
            if not current.executors:
                if self._alive:
                    self._assignments[name] = self._settled(current)
                continue
            if set(current.executors) <= alive:
                continue
            slots = surviving_slots(current, self._alive)
            if not slots:
                self._assignments[name] = self._settled(current)
                continue
            planned = plan(
                current, slots, self._load[name], self._standing.get(name), only_homeless=True
            )
            _log.warning(
                "%s: executors %s are gone; their %d key groups of %r go to %d others",
                self._desk.url,
                ", ".join(sorted(set(current.executors) - alive)),
                len(planned.moved),
                name,
                len(slots),
            )
            self._assignments[name] = planned.target
            if self._current is not None:
                self._current.plans = {}
                if not self._current.flipped:
                    self._behind = {}

    def _heal(self) -> None:
        """Go back to the wanted parallelism once there are executors for it, and spread shards that
        are crowded on some while others have none."""
        now = (self._alive, set(self._drained), dict(self._parallelism), dict(self._assignments))
        if now == self._sound:
            return
        cores = sum(e.cores for e in self._alive if e.name not in self._drained)
        for name, wanted in self._parallelism.items():
            current = self._assignments[name]
            shards = max(current.shards, min(wanted, cores))
            slots = choose_slots(current, shards, self._alive, self._drained)
            if self._alive and any(slot.keeps is None for slot in slots):
                break
        else:
            self._sound = now
            return
        move = Move(clock.fresh_id()[:8], "recovery", "live", {}, self._report, self._cancel)
        self._begin(move)

    # Following.

    def _refresh_standbys(self) -> None:
        if not self._options.standby or len(self._alive) < 2:
            self._standing = {}
            self._stood = None
            return
        now = (self._alive, set(self._drained), dict(self._assignments))
        if now == self._stood:
            return
        self._stood = now
        usable = [e for e in self._alive if e.name not in self._drained]
        self._standing = {
            name: standbys(a, usable, self._options.standby)
            for name, a in self._assignments.items()
        }

    def _wanted(self) -> Wanted:
        """Who has to follow what to be up to date."""
        asked: list[tuple[OperatorName, str, int]] = []
        progress = self._current
        for name, groups in self._behind.items():
            for group in groups:
                if progress is not None and not progress.flipped:
                    asked.append((name, progress.plans[name].destination(group), group))
                elif self._followers.at(name, self._owner(name, group), group) < 0:
                    # After a lazy flip the owner follows by itself, once it has the pages.
                    asked.append((name, self._owner(name, group), group))
        for name, standing in self._standing.items():
            asked += [(name, executor, g) for executor, mine in standing.items() for g in mine]
        found = self._followers.stale(asked, self._version)
        for executor in self._cold:
            # With nothing to follow: what counts is that it has been asked once.
            found.setdefault(executor, {})
        return found

    def has_work(self) -> bool:
        """Whether `follow_once` would do something."""
        with self._lock:
            return bool(self._wanted())

    def follow_once(self) -> float:
        """One round of following in the background; for how long to let others go first."""
        with self._lock:
            wanted, version = self._wanted(), self._version
            targets = {name: planned.target for name, planned in self._targets().items()}
            busy = self._busy
        if not wanted or self._closed:
            return 0.0
        started = clock.stopwatch()
        self._rounds.prepare(targets)
        found = self._rounds.behind(wanted, version, busy)
        with self._lock:
            self._note(found)
            self._cold -= wanted.keys()
            if self._current is not None:
                self._current.failures = 0
        read = sum(part.bytes for part in found)
        pace = read / self._options.follow_bytes_per_second
        return max(0.0, pace - (clock.stopwatch() - started))

    def _targets(self) -> dict[OperatorName, Plan]:
        progress = self._current
        return progress.plans if progress is not None and not progress.flipped else {}

    def _note(self, found: Iterable[Followed]) -> None:
        for part in found:
            self._followers.note(part)
            if self._current is not None:
                self._current.bytes += part.bytes

    def follow_failed(self, error: Exception) -> None:
        """Take note that a round failed; a move whose rounds keep failing is refused."""
        reason = str(error).split("\n", 1)[0]
        _log.warning("following in the background failed: %s", reason)
        with self._lock:
            progress = self._current
            if progress is not None and not self._closed:
                progress.failures += 1
                if progress.failures >= ATTEMPTS:
                    # After a lazy flip it is carried out: the owners fetch what they touch.
                    state = "done" if progress.flipped else "refused"
                    self._finish(progress, state, f"following failed {ATTEMPTS} times: {reason}")

    def _report(self, move: Move) -> MoveReport:
        return report(move, self._past.get(move.id))
