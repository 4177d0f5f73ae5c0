"""The director: decides before every epoch where each key group is handled, and makes it happen.

It puts the planner and the strategies to work on live executors, requests from anywhere, and the
log. Asked at an epoch's boundary, it answers with an assignment per operator. Following in the
background is a loop around `follow_once` in `background`, so that the answer costs the epoch
nothing. It knows no Spark: it works on any `Cluster`, and a simulator gives it another.

Invariant: an epoch runs with one assignment, chosen before it starts and recorded in its manifest.
Whatever happens here (a lost executor, a failed round, a new request) changes later epochs only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from millrace import clock
from millrace.arrays import Float64Array
from millrace.errors import AutoscaleError, MillraceError, UsageError
from millrace.ids import Epoch, OperatorName, table_name
from millrace.keygroups import Assignment
from millrace.log import Trail
from millrace.reconfigure.cluster import Cluster, DirectorOptions, ElasticExecutors, Executor
from millrace.reconfigure.following import Following, Rounds
from millrace.reconfigure.inbox import Inbox
from millrace.reconfigure.moves import Move, MoveHistory, Progress
from millrace.reconfigure.placement import Placement
from millrace.reconfigure.requests import Request, Requests, check_request, operators_of
from millrace.reconfigure.strategies import MoveStatus, next_step
from millrace.repeating import first_line

ATTEMPTS = 3
"""A move whose rounds of following fail this often in a row is refused."""


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
        self._placement = Placement(cluster.alive(), assignments)
        self._following = Following(self._placement)
        self._inbox = Inbox(requests, run)
        self._location = requests.url
        self._elastic = ElasticExecutors(cluster, options)
        self._rounds = Rounds(cluster, options)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._version = Epoch(0)
        self._current: Progress | None = None
        self._history = MoveHistory()
        self._closed = False
        self.switch_autoscaling: Callable[[bool], None] | None = None
        """Switches autoscaling on or off; None if the query was started without it."""
        self.restarting = threading.Event()
        """Set from the decision to restart until `adopt`. Meanwhile the run stops Spark's query
        between epochs, and starts it again."""

    def close(self) -> None:
        """Stop; requests without an answer stay for the next driver."""
        with self._changed:
            self._closed = True
            for move in self._inbox.moves.values():
                move.abandon("the query has ended; its next start takes the request up again")
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def await_change(self, timeout: float, *, until: Callable[[], bool] | None = None) -> None:
        """Wait until it is closed or `until` holds; at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (until is not None and until()), timeout=timeout
            )

    # Around an epoch.

    def before_epoch(
        self, version: Epoch
    ) -> tuple[dict[OperatorName, Assignment], tuple[Executor, ...]]:
        """Choose the next epoch's assignments; with the executors they were chosen for."""
        placement = self._placement
        alive = placement.alive if self._local else self._cluster.alive()
        with self._lock:
            self._version = version
            self._update_executors(alive)
            self._next_request()
            if self._current is None and placement.needs_recovery():
                self._begin(self._move(clock.fresh_id()[:8], "recovery", "live", {}))
            waiting = self._following.by_owners(self._advance(version))
        found = self._rounds.before_epoch(waiting, version)
        with self._changed:
            self._following.add(found, self._current)
            placement.update_standbys(self._options.standby)
            self._changed.notify_all()
            return dict(placement.assignments), placement.alive

    def after_epoch(
        self, epoch: Epoch, seconds: float, rows: Mapping[OperatorName, Float64Array]
    ) -> None:
        """Record a committed epoch: how long it took, and each key group's rows."""
        with self._changed:
            self._version = epoch
            self._placement.add_load(rows)
            progress = self._current
            self._history.add_epoch(epoch, seconds, progress)
            if progress is not None and self._is_carried_out(progress):
                self._finish(progress, "done")
            self._changed.notify_all()

    @property
    def waits_for_epoch(self) -> bool:
        """Whether a request or a move under way needs an epoch to get further."""
        with self._lock:
            return bool(self._inbox.queue) or self._current is not None

    def needs_epoch(self, trail: Trail) -> bool:
        """Whether an epoch, even one without rows, would take the move under way further.

        It records assignments that no manifest has yet, or ends a move that is carried out.
        """
        with self._lock:
            now = self._placement.assignments
            recorded = {name: trail.operator(table_name(name)).assignment for name in now}
            return recorded != now or self._is_carried_out(self._current)

    def _is_carried_out(self, progress: Progress | None) -> bool:
        return progress is not None and progress.flipped and not self._following.is_fetching

    def adopt(self) -> None:
        """Switch to the target at once; for a query that was stopped to be restarted."""
        with self._changed:
            progress = self._current
            # Meanwhile it may have been superseded, or an executor lost: then it is planned again.
            if (
                progress is not None
                and self._strategy(progress.move) == "restart"
                and self._placement.fits(progress.plans)
            ):
                for name, plan in list(progress.plans.items()):
                    self._flip(progress, name, plan.target)
                progress.flipped = True
            self.restarting.clear()

    # For the user.

    def submit(self, kind: str, strategy: str, **details: object) -> Move:
        """Check a request, write it to the location, and carry it out from the next epoch on."""
        body = {**details, "strategy": strategy}
        with self._lock:
            self._check(kind, body)
        request = self._inbox.submit(kind, body)
        with self._changed:
            self._accept(request)
            return self._inbox.moves[request.id]

    @property
    def under_way(self) -> Move | None:
        """The move that is being carried out."""
        with self._lock:
            return self._current.move if self._current is not None else None

    def assignments(self) -> dict[OperatorName, Assignment]:
        with self._lock:
            return dict(self._placement.assignments)

    def unmet_parallelism(self) -> dict[OperatorName, int]:
        """Operators that lack executors for all their shards, and how many they should have.

        Empty while a rescale is under way: its request says what it aims for.
        """
        with self._lock:
            if self._current is not None and self._current.move.kind == "rescale":
                return {}
            return self._placement.unmet_parallelism()

    def executors(self) -> tuple[Executor, ...]:
        return self._cluster.alive()

    @property
    def is_elastic(self) -> bool:
        """Whether executors are asked for and given back."""
        return self._elastic.is_active

    @property
    def start_up_seconds(self) -> float | None:
        """How long executors took to come that were asked for; None if that was never seen."""
        with self._lock:
            return self._elastic.start_up_seconds

    def keep_spare(self, executors: int) -> None:
        """From now on, keep a number of executors warm beyond those in use."""
        with self._lock:
            self._elastic.spare = executors

    # Requests.

    def poll(self) -> None:
        """Take requests that were written into the location; raises what the store raises."""
        try:
            with self._lock:
                self._inbox.write_answers()
        finally:
            for request in self._inbox.take_new():
                with self._lock:
                    self._accept(request)

    def _accept(self, request: Request) -> None:
        """Queue a request, or refuse it with a reason."""
        if request.id in self._inbox.moves:
            return
        strategy = str(request.details.get("strategy", "live"))
        move = self._move(request.id, request.kind, strategy, request.details)
        refusal = ""
        try:
            self._check(request.kind, request.details)
        except MillraceError as error:
            refusal = str(error)
        # Not before: a check that failed for another reason is made again at the next poll.
        self._inbox.moves[request.id] = move
        if refusal:
            self._inbox.close(move, "refused", refusal)
        elif request.kind == "cancel":
            self._cancel(self._inbox.moves[str(request.details["request"])])
            self._inbox.close(move, "done")
        elif request.kind == "autoscale":
            assert self.switch_autoscaling is not None
            self.switch_autoscaling(request.details["switch"] == "on")
            self._inbox.close(move, "done")
        else:
            self._inbox.queue.append(move)

    def _move(self, id_: str, kind: str, strategy: str, details: dict[str, Any]) -> Move:
        return Move(id_, kind, strategy, details, self._history.report, self._cancel)

    def _check(self, kind: str, details: Mapping[str, object]) -> None:
        assignments, drained = self._placement.assignments, self._placement.drained
        check_request(kind, details, assignments, self._cluster.alive(), drained)
        if kind == "autoscale" and self.switch_autoscaling is None:
            raise AutoscaleError(
                f"the query on {self._location} was started without autoscale=, so there is "
                "nothing to switch on or off. Start it again with it."
            )
        if kind == "cancel":
            found = self._inbox.moves.get(str(details.get("request")))
            if found is None or not found.is_open:
                state = "is not known" if found is None else f"is {found.state} already"
                raise UsageError(
                    f"request {details.get('request')!r} {state}; there is nothing to cancel."
                )

    def _next_request(self) -> None:
        """The newest request wins; those before it are superseded."""
        newest = self._inbox.pop_newest()
        if newest is not None:
            if self._current is not None:
                reason = f"by request {newest.id}"
                self._inbox.close(self._current.move, "superseded", reason)
                self._abandon(self._current)
            self._begin(newest)

    def _cancel(self, move: Move) -> None:
        with self._lock:
            if move in self._inbox.queue:
                self._inbox.queue.remove(move)
            if self._current is not None and self._current.move is move:
                self._abandon(self._current)
                self._placement.undo_drain(move)
            self._inbox.close(move, "cancelled", "as asked")

    # A move under way.

    def _begin(self, move: Move) -> None:
        placement = self._placement
        before = dict(placement.target_parallelism)
        placement.set_target(move)
        if move.kind == "rescale":
            self._elastic.request_for(placement.most_shards, placement.alive)
        move.state = "moving"
        self._current = self._history.begin(move, before)

    def _drop(self) -> None:
        self._current = None
        self._following.background = {}

    def _abandon(self, progress: Progress) -> None:
        """What has moved stays; where nothing has, the target is again what it was before."""
        moved = {name for name, _ in progress.moved}
        if progress.move.kind == "rescale":
            for name, before in progress.parallelism_before.items():
                now = self._placement.assignments[name].shards
                self._placement.target_parallelism[name] = now if name in moved else before
        self._drop()

    def _finish(self, progress: Progress, state: str, reason: str = "") -> None:
        progress.seconds = clock.stopwatch() - progress.started
        if state == "done":
            if progress.move.kind == "move":
                # It may have opened or closed a shard, and recovery must not undo that.
                target = self._placement.target_parallelism
                for name, (old, new) in progress.shards.items():
                    operator = OperatorName(name)
                    target[operator] = max(1, target[operator] + new - old)
            self._drop()
        else:
            self._abandon(progress)
            self._placement.undo_drain(progress.move)
        self._inbox.close(progress.move, state, reason)
        if state == "done":
            placement = self._placement
            self._elastic.release_idle(placement.most_shards, placement.alive, placement.busy)

    def _advance(self, version: Epoch) -> dict[OperatorName, tuple[int, ...]]:
        """One step of the move under way; key groups that the epoch must wait for."""
        progress = self._current
        if progress is None or progress.flipped or self.restarting.is_set():
            return {}
        if not self._make_plans(progress):
            return {}
        waiting: dict[OperatorName, tuple[int, ...]] = {}
        background: dict[OperatorName, tuple[int, ...]] = {}
        done = True
        for name, plan in list(progress.plans.items()):
            followed = {
                group: self._following.versions.at(name, plan.destination(group), group)
                for group in plan.moved
            }
            status = MoveStatus(version, plan, followed, self._placement.load[name])
            step = next_step(self._strategy(progress.move), status)
            if step.restart and plan.moved:
                self.restarting.set()
                return {}
            done &= step.done
            if step.before:
                waiting[name] = step.before
            if step.background:
                background[name] = step.background
            if step.assignment != self._placement.assignments[name]:
                self._flip(progress, name, step.assignment)
        self._following.background = background
        progress.flipped = done
        return waiting

    def _strategy(self, move: Move) -> str:
        """How a move is carried out, whatever was asked for."""
        return "restart" if self._options.restarts_only else move.strategy

    def _flip(self, progress: Progress, name: OperatorName, assignment: Assignment) -> None:
        progress.flip(name, assignment)
        self._placement.assignments[name] = assignment

    def _make_plans(self, progress: Progress) -> bool:
        """Make plans if there are none or they no longer fit; False if it is too early."""
        placement, move = self._placement, progress.move
        if placement.fits(progress.plans):
            return True
        if move.kind == "rescale" and not self._elastic.suffice(
            placement.most_shards, placement.alive, progress.started
        ):
            return False
        try:
            names = operators_of(move.details, placement.assignments)
            progress.adopt_plans({name: placement.plan(move, name) for name in names})
        except UsageError as error:
            self._finish(progress, "refused", str(error))
            return False
        return True

    def _update_executors(self, alive: tuple[Executor, ...]) -> None:
        """Give the key groups of lost executors to the others at once, and get new ones warm."""
        placement, progress = self._placement, self._current
        placement.alive = alive
        self._elastic.see(alive)
        placement.drained &= placement.names
        warm_up = not self._local and not self._options.restarts_only
        self._following.update_executors(warm_up=warm_up)
        if placement.recover(self._location) and progress is not None:
            progress.plans = {}
            if not progress.flipped:
                self._following.background = {}

    # Following.

    def has_work(self) -> bool:
        """Whether `follow_once` would do something."""
        with self._lock:
            return bool(self._following.to_follow(self._current, self._version))

    def follow_once(self) -> float:
        """One round of following in the background; returns how long to pause after it."""
        with self._lock:
            progress, version = self._current, self._version
            to_follow = self._following.to_follow(progress, version)
            plans = progress.plans if progress is not None and not progress.flipped else {}
            targets = {name: plan.target for name, plan in plans.items()}
            busy = self._placement.busy
        if not to_follow or self._closed:
            return 0.0
        started = clock.stopwatch()
        self._rounds.prepare(targets)
        found = self._rounds.beside_epochs(to_follow, version, busy)
        with self._lock:
            self._following.add(found, self._current)
            self._following.warmed(to_follow)
            if self._current is not None:
                self._current.failures = 0
        read = sum(part.bytes for part in found)
        pace = read / self._options.follow_bytes_per_second
        return max(0.0, pace - (clock.stopwatch() - started))

    def follow_failed(self, error: BaseException) -> None:
        """Record that a round failed; a move whose rounds keep failing is refused."""
        reason = first_line(error)
        with self._lock:
            progress = self._current
            if progress is not None and not self._closed:
                progress.failures += 1
                if progress.failures >= ATTEMPTS:
                    # After a lazy flip it is carried out: the owners fetch what they touch.
                    state = "done" if progress.flipped else "refused"
                    self._finish(progress, state, f"following failed {ATTEMPTS} times: {reason}")
