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
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace import clock
from millrace.errors import MillraceError, UsageError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.checking import check_request, operators_of
from millrace.reconfigure.cluster import Cluster, DirectorOptions
from millrace.reconfigure.desk import Desk
from millrace.reconfigure.errands import Errands
from millrace.reconfigure.followers import Followed
from millrace.reconfigure.moves import Move, Progress
from millrace.reconfigure.places import Places
from millrace.reconfigure.records import Records
from millrace.reconfigure.requests import Request, Requests
from millrace.reconfigure.rounds import Rounds
from millrace.reconfigure.slots import Executor
from millrace.reconfigure.staffing import Staff
from millrace.reconfigure.strategies import View, next_step

_log = logging.getLogger("millrace")

ATTEMPTS = 3


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
        self._places = Places(cluster.alive(), assignments)
        self._errands = Errands(self._places)
        self._desk = Desk(requests, run)
        self._staff = Staff(cluster, options)
        self._rounds = Rounds(cluster, options)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._version = Epoch(0)
        self._current: Progress | None = None
        self._records = Records()
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
        places = self._places
        alive = places.alive if self._local else self._cluster.alive()
        with self._lock:
            self._version = version
            self._notice(alive)
            self._next_request()
            if self._current is None and not places.is_sound():
                self._begin(self._move(clock.fresh_id()[:8], "recovery", "live", {}))
            waiting = self._errands.of_owners(self._advance(version))
        found = self._rounds.before(waiting, version)
        with self._changed:
            self._note(found)
            places.choose_standbys(self._options.standby)
            self._changed.notify_all()
            return dict(places.assignments), places.alive

    def after_epoch(
        self,
        epoch: Epoch,
        seconds: float,
        rows: Mapping[OperatorName, npt.NDArray[np.float64]],
    ) -> None:
        """Take note of a committed epoch: how long it took, and each key group's rows."""
        with self._changed:
            self._version = epoch
            self._places.add_load(rows)
            progress = self._current
            self._records.add(epoch, seconds, progress)
            if progress is not None and progress.flipped and not self._errands.are_left:
                self._finish(progress, "done")
            self._changed.notify_all()

    def adopt(self) -> None:
        """Take the target over at once; for a query that was stopped to be restarted."""
        with self._changed:
            progress = self._current
            # Meanwhile it may have been superseded, or an executor lost: then it is planned anew.
            if (
                progress is not None
                and progress.move.strategy == "restart"
                and self._places.fits(progress.plans)
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
    def under_way(self) -> Move | None:
        """The move that is being carried out."""
        with self._lock:
            return self._current.move if self._current is not None else None

    def assignments(self) -> dict[OperatorName, Assignment]:
        with self._lock:
            return dict(self._places.assignments)

    def wanted(self) -> dict[OperatorName, int]:
        """Operators that lack executors for the shards they are to have, and how many those are.

        While a rescale is under way, none: what it wants is in its request.
        """
        with self._lock:
            if self._current is not None and self._current.move.kind == "rescale":
                return {}
            return self._places.short()

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
        move = self._move(request.id, request.kind, strategy, request.details)
        self._desk.moves[request.id] = move
        try:
            self._check(request.kind, request.details)
        except MillraceError as error:
            self._desk.close(move, "refused", str(error))
            return
        if request.kind == "cancel":
            self._cancel(self._desk.moves[str(request.details["request"])])
            self._desk.close(move, "done")
            return
        self._desk.queue.append(move)

    def _move(self, id_: str, kind: str, strategy: str, details: dict[str, Any]) -> Move:
        return Move(id_, kind, strategy, details, self._records.report, self._cancel)

    def _check(self, kind: str, details: Mapping[str, object]) -> None:
        places = self._places
        check_request(kind, details, places.assignments, self._cluster.alive(), places.drained)
        if kind == "cancel":
            found = self._desk.moves.get(str(details.get("request")))
            if found is None or not found.is_open:
                state = "is not known" if found is None else f"is {found.state} already"
                raise UsageError(
                    f"request {details.get('request')!r} {state}; there is nothing to cancel."
                )

    def _next_request(self) -> None:
        """The newest request wins; those before it are superseded."""
        newest = self._desk.newest()
        if newest is None:
            return
        if self._current is not None:
            self._desk.supersede(self._current.move, newest)
            self._abandon(self._current)
        self._begin(newest)

    def _cancel(self, move: Move) -> None:
        with self._lock:
            if move in self._desk.queue:
                self._desk.queue.remove(move)
            if self._current is not None and self._current.move is move:
                self._abandon(self._current)
                self._places.open_again(move)
            self._desk.close(move, "cancelled", "as asked")

    # A move under way.

    def _begin(self, move: Move) -> None:
        places = self._places
        before = dict(places.parallelism)
        places.want(move)
        if move.kind == "rescale":
            self._staff.ask(places.alive, places.shards)
        move.state = "moving"
        self._current = self._records.begin(move, before)

    def _drop(self) -> None:
        self._current = None
        self._errands.behind = {}

    def _abandon(self, progress: Progress) -> None:
        """What has moved stays; where nothing has, what was wanted before is wanted again."""
        moved = {name for name, _ in progress.moved}
        if progress.move.kind == "rescale":
            for name, before in progress.parallelism.items():
                now = self._places.assignments[name].shards
                self._places.parallelism[name] = now if name in moved else before
        self._drop()

    def _finish(self, progress: Progress, state: str, reason: str = "") -> None:
        progress.seconds = clock.stopwatch() - progress.started
        if state == "done":
            if progress.move.kind == "move":
                # It may have opened or closed a shard, and that is not to be healed.
                wanted = self._places.parallelism
                for name, (old, new) in progress.shards.items():
                    operator = OperatorName(name)
                    wanted[operator] = max(1, wanted[operator] + new - old)
            self._drop()
        else:
            self._abandon(progress)
            self._places.open_again(progress.move)
        self._desk.close(progress.move, state, reason)
        if state == "done":
            places = self._places
            self._staff.dismiss(places.alive, places.busy, places.shards)

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
                group: self._errands.followers.at(name, planned.destination(group), group)
                for group in planned.moved
            }
            view = View(version, planned, followed, self._places.load[name])
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
            if step.assignment != self._places.assignments[name]:
                self._flip(progress, name, step.assignment)
        self._errands.behind = behind
        progress.flipped = done
        return waiting

    def _flip(self, progress: Progress, name: OperatorName, assignment: Assignment) -> None:
        progress.flip(name, assignment)
        self._places.assignments[name] = assignment

    def _plan(self, progress: Progress) -> bool:
        """Make plans, or make them anew if they no longer fit; False if it is too early."""
        places, move = self._places, progress.move
        if places.fits(progress.plans):
            return True
        enough = self._staff.suffices(places.alive, places.shards, progress.started)
        if move.kind == "rescale" and not enough:
            return False
        try:
            names = operators_of(move.details, places.assignments)
            progress.take({name: places.plan(move, name) for name in names})
        except UsageError as error:
            self._finish(progress, "refused", str(error))
            return False
        return True

    # Executors that come and go.

    def _notice(self, alive: tuple[Executor, ...]) -> None:
        """Take note of who has come and gone; what the lost had goes to the others at once."""
        places, progress = self._places, self._current
        places.alive = alive
        places.drained &= places.names
        self._errands.notice(warm_up=not self._local)
        if places.recover(self._desk.url) and progress is not None:
            progress.plans = {}
            if not progress.flipped:
                self._errands.behind = {}

    # Following.

    def has_work(self) -> bool:
        """Whether `follow_once` would do something."""
        with self._lock:
            return bool(self._errands.wanted(self._current, self._version))

    def follow_once(self) -> float:
        """One round of following in the background; for how long to let others go first."""
        with self._lock:
            progress, version = self._current, self._version
            wanted = self._errands.wanted(progress, version)
            plans = progress.plans if progress is not None and not progress.flipped else {}
            targets = {name: planned.target for name, planned in plans.items()}
            busy = self._places.busy
        if not wanted or self._closed:
            return 0.0
        started = clock.stopwatch()
        self._rounds.prepare(targets)
        found = self._rounds.behind(wanted, version, busy)
        with self._lock:
            self._note(found)
            self._errands.warmed(wanted)
            if self._current is not None:
                self._current.failures = 0
        read = sum(part.bytes for part in found)
        pace = read / self._options.follow_bytes_per_second
        return max(0.0, pace - (clock.stopwatch() - started))

    def _note(self, found: Iterable[Followed]) -> None:
        for part in found:
            self._errands.followers.note(part)
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
