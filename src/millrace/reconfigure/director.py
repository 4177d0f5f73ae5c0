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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace import clock
from millrace.errors import MillraceError, UsageError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import check_parallelism
from millrace.reconfigure.followers import Allowance, Followed, Followers, Wanted
from millrace.reconfigure.moves import Latency, Move, MoveReport
from millrace.reconfigure.planner import Plan, Slot, plan, relocate
from millrace.reconfigure.requests import Answer, Request, Requests
from millrace.reconfigure.slots import Executor, choose_slots, standbys, surviving_slots
from millrace.reconfigure.strategies import View, check_strategy, next_step

_log = logging.getLogger("millrace")

BUSY_SECONDS = 0.05
"""How long a follow may hold an executor that also runs shards."""
IDLE_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
"""How long a rescale waits for executors that were asked for."""
ATTEMPTS = 3
SAMPLE = 20
"""Epochs before and after a move that its report speaks of."""
FADING = 0.2
"""The weight of the newest epoch in the load of a key group."""


class Cluster(Protocol):
    """The executors there are, and how they are told to follow."""

    @property
    def is_local(self) -> bool:
        """Whether there is one executor and there can be no other."""

    def alive(self) -> tuple[Executor, ...]: ...

    def request(self, total: int) -> bool:
        """Ask for so many executors in all."""

    def release(self, names: Sequence[str]) -> bool:
        """Give executors back."""

    def follow(
        self, version: Epoch, wanted: Wanted, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        """One round on all executors in `wanted` at once."""

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make whatever an epoch with these assignments needs, ahead of it."""


@dataclass(frozen=True)
class DirectorOptions:
    """What `start` was told about places."""

    standby: int = 0
    """How many executors follow every key group besides its owner."""
    elastic: bool = False
    """Whether to ask Spark for executors and give idle ones back."""
    spare_executors: int = 0
    """With `elastic`: executors kept warm beyond those in use."""
    follow_bytes_per_second: float = 256e6


@dataclass
class _Progress:
    """What is kept of the move that is under way, or was last."""

    move: Move
    started: float
    seconds_before: list[float]
    plans: dict[OperatorName, Plan] = field(default_factory=dict)
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    moved: set[tuple[OperatorName, int]] = field(default_factory=set)
    bytes: int = 0
    first_epoch: int | None = None
    last_epoch: int | None = None
    seconds: float = 0.0
    during: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    failures: int = 0
    flipped: bool = False


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
        self._requests = requests
        self._run = run
        self._options = options
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._alive: tuple[Executor, ...] = cluster.alive()
        self._drained: set[str] = set()
        self._parallelism = {name: a.shards for name, a in assignments.items()}
        self._assignments = {name: self._settled(a) for name, a in assignments.items()}
        self._load = {name: np.zeros(a.key_groups) for name, a in assignments.items()}
        self._version = Epoch(0)
        self._followers = Followers()
        self._standing: dict[OperatorName, dict[str, tuple[int, ...]]] = {}
        self._behind: dict[OperatorName, tuple[int, ...]] = {}
        self._prepared: set[tuple[OperatorName, Assignment]] = set()
        self._current: _Progress | None = None
        self._past: dict[str, _Progress] = {}
        self._queue: list[Request] = []
        self._moves: dict[str, Move] = {}
        self._seconds: list[float] = []
        self._closed = False
        self.restart: Callable[[], None] | None = None
        """Stops the query and starts it again; set by whoever can."""
        self.restarting = threading.Event()

    def close(self) -> None:
        """Stop; what is unanswered stays for the next driver."""
        with self._changed:
            self._closed = True
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
            self._forget_dead()
            self._recover()
            self._next_request()
            if self._current is None:
                self._heal()
            waiting = self._advance(version)
        if waiting:
            self._follow_now(version, waiting)
        with self._changed:
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
            if progress is not None:
                for name, planned in progress.plans.items():
                    self._flip(progress, name, planned.target)
                progress.flipped = True
            self.restarting.clear()

    # What the user calls.

    def submit(self, kind: str, strategy: str, **details: object) -> Move:
        """Check a request, write it down, and take it up at the next epoch."""
        body = {**details, "strategy": strategy}
        with self._lock:
            self._check(kind, body)
        request = self._requests.submit(kind, **body)
        with self._changed:
            self._accept(request)
            return self._moves[request.id]

    def assignments(self) -> dict[OperatorName, Assignment]:
        with self._lock:
            return dict(self._assignments)

    def executors(self) -> tuple[Executor, ...]:
        return self._cluster.alive()

    # Requests.

    def poll(self) -> None:
        """Look for requests that somebody wrote into the location."""
        for request in self._requests.pending():
            with self._lock:
                self._accept(request)

    def _accept(self, request: Request) -> None:
        """Queue a request, or refuse it with a reason."""
        if request.id in self._moves:
            return
        self._requests.take(request, self._run)
        strategy = str(request.details.get("strategy", "live"))
        move = Move(request.id, request.kind, strategy, request.details, self._report, self._cancel)
        self._moves[request.id] = move
        try:
            self._check(request.kind, request.details)
        except MillraceError as error:
            self._close_request(move, "refused", str(error))
            return
        if request.kind == "cancel":
            found = self._moves.get(str(request.details["request"]))
            if found is not None:
                self._cancel(found)
            self._close_request(move, "done")
            return
        self._queue.append(request)

    def _check(self, kind: str, details: Mapping[str, object]) -> None:
        operators = self._operators_of(details)
        key_groups = self._assignments[operators[0]].key_groups
        if kind == "rescale":
            check_parallelism(details.get("parallelism"), key_groups)
            check_strategy(details.get("strategy"))
        elif kind == "move":
            check_strategy(details.get("strategy"))
            self._check_executor(details.get("to"))
            groups = details.get("key_groups")
            if not isinstance(groups, list) or not groups:
                raise UsageError("key_groups= names no key group. Give a list of their numbers.")
            wrong = [g for g in groups if type(g) is not int or not 0 <= g < key_groups]
            if wrong:
                raise UsageError(
                    f"key_groups= names {wrong[:5]}: key groups have the numbers 0 to "
                    f"{key_groups - 1}."
                )
        elif kind in ("drain", "undrain"):
            self._check_executor(details.get("executor"))
            left = {e.name for e in self._cluster.alive()} - self._drained
            if kind == "drain" and left <= {details.get("executor")}:
                raise UsageError(
                    f"{details.get('executor')} is the only executor that is left; there is "
                    "nowhere to move its key groups to. Add an executor first."
                )
        elif kind != "cancel":
            raise UsageError(f"there is no request of kind {kind!r}.")

    def _check_executor(self, name: object) -> None:
        known = [e.name for e in self._cluster.alive()]
        if name not in known:
            raise UsageError(
                f"there is no executor {name!r}. Those alive are {', '.join(known) or 'none'}."
            )

    def _operators_of(self, details: Mapping[str, object]) -> list[OperatorName]:
        name = details.get("operator")
        if name is None:
            return list(self._assignments)
        if name not in self._assignments:
            raise UsageError(
                f"there is no operator {name!r}. The query has "
                f"{', '.join(map(repr, self._assignments))}."
            )
        return [OperatorName(str(name))]

    def _next_request(self) -> None:
        """The newest request wins; those before it are superseded."""
        if not self._queue:
            return
        *older, newest = self._queue
        self._queue = []
        for request in older:
            self._supersede(self._moves[request.id], newest.id)
        if self._current is not None:
            self._supersede(self._current.move, newest.id)
            self._drop()
        self._begin(self._moves[newest.id])

    def _supersede(self, move: Move, by: str) -> None:
        self._close_request(move, "superseded", f"by request {by}")

    def _cancel(self, move: Move) -> None:
        with self._lock:
            self._queue = [r for r in self._queue if r.id != move.id]
            if self._current is not None and self._current.move is move:
                self._drop()
            self._close_request(move, "cancelled", "as asked")

    def _close_request(self, move: Move, state: str, reason: str = "") -> None:
        if not move.is_open:
            return
        move.end(state, reason)
        if move.id in self._moves:
            report = self._report(move).to_json() if state == "done" else {}
            self._requests.answer(move.id, Answer(state, reason, report))

    # A move under way.

    def _begin(self, move: Move) -> None:
        details = move.details
        if move.kind == "rescale":
            for name in self._operators_of(details):
                self._parallelism[name] = int(details["parallelism"])
            self._staff()
        elif move.kind == "drain":
            self._drained.add(str(details["executor"]))
        elif move.kind == "undrain":
            self._drained.discard(str(details["executor"]))
        move.state = "moving"
        progress = _Progress(move, clock.stopwatch(), self._seconds[-SAMPLE:])
        self._current = progress
        self._past[move.id] = progress

    def _drop(self) -> None:
        self._current = None
        self._behind = {}

    def _finish(self, progress: _Progress, state: str, reason: str = "") -> None:
        progress.seconds = clock.stopwatch() - progress.started
        self._drop()
        self._close_request(progress.move, state, reason)
        if state == "done":
            self._dismiss()

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

    def _flip(self, progress: _Progress, name: OperatorName, assignment: Assignment) -> None:
        planned = progress.plans[name]
        if assignment == planned.target:
            changed = frozenset(planned.moved)
        else:
            changed = frozenset(
                g
                for g in planned.moved
                if planned.after(frozenset([g])).current.owners[g] == assignment.owners[g]
            )
        progress.moved |= {(name, group) for group in changed}
        progress.plans[name] = planned.after(changed)
        self._assignments[name] = assignment

    def _plan(self, progress: _Progress) -> bool:
        """Make plans, or make them anew if they no longer fit; False if it is too early."""
        alive = {e.name for e in self._alive}
        fits = progress.plans and all(
            planned.current == self._assignments[name]
            and {e for e in planned.target.executors if e} <= alive
            for name, planned in progress.plans.items()
        )
        if fits:
            return True
        move = progress.move
        if move.kind == "rescale" and not self._staffed(progress):
            return False
        try:
            progress.plans = {
                name: self._plan_operator(move, name) for name in self._operators_of(move.details)
            }
        except UsageError as error:
            self._finish(progress, "refused", str(error))
            return False
        for name, planned in progress.plans.items():
            old = progress.shards.get(name, (planned.current.shards, 0))[0]
            progress.shards[name] = (old, planned.target.shards)
        return True

    def _plan_operator(self, move: Move, name: OperatorName) -> Plan:
        current = self._assignments[name]
        if move.kind == "move":
            to = str(move.details["to"])
            self._check_executor(to)
            counts = np.bincount(current.owners, minlength=current.shards)
            there = [s for s in range(current.shards) if current.executor_of(s) == to]
            keeps = min(there, key=lambda s: counts[s]) if there else None
            return relocate(current, move.details["key_groups"], Slot(to, keeps=keeps))
        slots = choose_slots(current, self._parallelism[name], self._alive, self._drained)
        return plan(current, slots, self._load[name], self._standing.get(name))

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

    def _forget_dead(self) -> None:
        alive = {e.name for e in self._alive}
        self._followers.keep(alive)
        self._drained &= alive

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
            planned = plan(current, slots, self._load[name], self._standing.get(name))
            _log.warning(
                "%s: executors %s are gone; their %d key groups of %r go to %d others",
                self._requests.url,
                ", ".join(sorted(set(current.executors) - alive)),
                len(planned.moved),
                name,
                len(slots),
            )
            self._assignments[name] = planned.target
            if self._current is not None:
                self._current.plans = {}

    def _heal(self) -> None:
        """Go back to the wanted parallelism once there are executors for it."""
        cores = sum(e.cores for e in self._alive if e.name not in self._drained)
        short = [
            name
            for name, wanted in self._parallelism.items()
            if self._assignments[name].shards < wanted and cores > self._assignments[name].shards
        ]
        if short:
            move = Move(clock.fresh_id()[:8], "recovery", "live", {}, self._report, self._cancel)
            self._begin(move)

    def _staff(self) -> None:
        """Ask Spark for the executors that the parallelism needs."""
        if self._local or not self._options.elastic:
            return
        wanted = self._wanted_executors()
        if wanted > len(self._alive):
            self._cluster.request(wanted)

    def _wanted_executors(self) -> int:
        cores = max((e.cores for e in self._alive), default=1)
        return -(-max(self._parallelism.values()) // cores) + self._options.spare_executors

    def _staffed(self, progress: _Progress) -> bool:
        if self._local or not self._options.elastic:
            return True
        cores = sum(e.cores for e in self._alive)
        waited = clock.stopwatch() - progress.started
        return cores >= max(self._parallelism.values()) or waited > PATIENCE_SECONDS

    def _dismiss(self) -> None:
        """Give idle executors back, except those kept warm."""
        if self._local or not self._options.elastic:
            return
        used = {e for a in self._assignments.values() for e in a.executors}
        idle = [e.name for e in self._alive if e.name not in used]
        surplus = len(self._alive) - self._wanted_executors()
        if surplus > 0 and idle:
            self._cluster.release(idle[-surplus:])

    # Following.

    def _refresh_standbys(self) -> None:
        if not self._options.standby or len(self._alive) < 2:
            self._standing = {}
            return
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
        return self._followers.stale(asked, self._version)

    def has_work(self) -> bool:
        """Whether `follow_once` would do something."""
        with self._lock:
            return bool(self._wanted())

    def follow_once(self) -> float:
        """One round of following in the background; for how long to let others go first."""
        with self._lock:
            wanted, version = self._wanted(), self._version
            targets = {name: planned.target for name, planned in self._targets().items()}
        if not wanted or self._closed:
            return 0.0
        started = clock.stopwatch()
        self._prepare_once(targets)
        found = self._round(wanted, version, behind=True)
        with self._lock:
            self._note(found)
        read = sum(part.bytes for part in found)
        pace = read / self._options.follow_bytes_per_second
        return max(0.0, pace - (clock.stopwatch() - started))

    def _targets(self) -> dict[OperatorName, Plan]:
        progress = self._current
        return progress.plans if progress is not None and not progress.flipped else {}

    def _prepare_once(self, targets: Mapping[OperatorName, Assignment]) -> None:
        fresh = {n: a for n, a in targets.items() if (n, a) not in self._prepared}
        if fresh:
            self._cluster.prepare(fresh)
            self._prepared = set(fresh.items())

    def _follow_now(self, version: Epoch, waiting: dict[OperatorName, tuple[int, ...]]) -> None:
        """Follow while the epoch waits."""
        wanted: dict[str, dict[OperatorName, list[int]]] = {}
        for name, groups in waiting.items():
            for group in groups:
                wanted.setdefault(self._owner(name, group), {}).setdefault(name, []).append(group)
        while wanted:
            found = self._round(wanted, version, behind=False)
            with self._lock:
                self._note(found)
            done = {(f.operator, f.executor, group) for f in found for group in f.groups}
            wanted = {
                executor: {
                    name: left
                    for name, groups in operators.items()
                    if (left := [g for g in groups if (name, executor, g) not in done])
                }
                for executor, operators in wanted.items()
            }
            wanted = {executor: operators for executor, operators in wanted.items() if operators}
            if not found:
                # The executor is gone: the epoch's own shards follow, wherever they run.
                return

    def _round(self, wanted: Wanted, version: Epoch, *, behind: bool) -> list[Followed]:
        busy = {e for a in self._assignments.values() for e in a.executors}
        rate = self._options.follow_bytes_per_second
        allowances = {
            name: Allowance(BUSY_SECONDS, rate * BUSY_SECONDS, polite=True)
            if behind and name in busy
            else Allowance(
                IDLE_SECONDS, rate * IDLE_SECONDS if behind else float("inf"), polite=behind
            )
            for name in wanted
        }
        return self._cluster.follow(version, wanted, allowances)

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
                    self._finish(
                        progress, "refused", f"following failed {ATTEMPTS} times: {reason}"
                    )

    def _report(self, move: Move) -> MoveReport:
        progress = self._past.get(move.id)
        if progress is None:
            return MoveReport(
                move.kind, move.strategy, move.state, move.reason, 0, 0, 0.0, 0, None, None
            )
        return MoveReport(
            kind=move.kind,
            strategy=move.strategy,
            state=move.state,
            reason=move.reason,
            key_groups=len(progress.moved),
            bytes=progress.bytes,
            seconds=progress.seconds,
            epochs=len(progress.during),
            first_epoch=progress.first_epoch,
            last_epoch=progress.last_epoch,
            shards=progress.shards,
            before=Latency.of(progress.seconds_before),
            during=Latency.of(progress.during),
            after=Latency.of(progress.after),
        )
