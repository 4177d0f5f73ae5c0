"""The autoscaler of one query: it hears of every epoch, and asks the director for what it decides.

A decision becomes a request in the location, as a user's would, so that it survives the driver, is
shown where moves are shown, and is superseded by a newer one. Nothing here fails an epoch.

Invariant: it asks for nothing while somebody else's move is under way, and replaces only its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.errors import MillraceError
from millrace.reconfigure.autoscale.deciding import PAUSE, decide
from millrace.reconfigure.autoscale.history import Decision, History
from millrace.reconfigure.autoscale.observing import Observation
from millrace.reconfigure.autoscale.recording import Records
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.autoscale.warm import spare_executors
from millrace.reconfigure.director import Director
from millrace.reconfigure.moves import Move

KEPT = 200
"""Decisions that are remembered."""
CHUNK = 60
"""Epochs that are written to the location at once."""
BUSIEST = 8
"""Executors whose processor time is shown."""
RETRY_SECONDS = 300.0
"""After executors could not be had, they are asked for again this much later."""

_log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Scaling:
    """Autoscaling at a moment: what it sees, what it would do, and what it has done."""

    settings: Settings
    on: bool
    """Whether decisions are carried out."""
    seen: Observation | None
    """The last epoch."""
    now: Decision | None
    """What was decided after it, and why."""
    decisions: tuple[Decision, ...]
    """Decisions worth remembering, oldest first: changes, and reasons why there was none."""
    spare_executors: int = 0
    start_up_seconds: float | None = None

    def __str__(self) -> str:
        return "\n".join(explained(self))


def explained(scaling: Scaling) -> list[str]:
    """What autoscaling sees and does, in lines for people."""
    settings = scaling.settings
    latency = f", rows within {settings.latency:g} s" if settings.latency is not None else ""
    lines = [
        f"autoscaling by {settings.policy}: {'on' if scaling.on else 'off'}, {settings.min} to "
        f"{settings.max} shards, target {settings.target:.0%}{latency}"
    ]
    if scaling.seen is not None:
        seen = scaling.seen
        behind = f", {_behind(seen)}"
        lines.append(
            f"epoch {seen.epoch}: {seen.rows:,} rows in {seen.seconds:.2f} s, "
            f"{seen.interval:.2f} s after the one before{behind}; {seen.executors} executors"
        )
        for load in seen.operators:
            rate = load.true_rate
            rates = "" if rate is None else f", {rate:,.0f} rows/s a shard"
            lines.append(
                f"  {load.name}: {load.parallelism} shards, {load.rows:,} rows{rates}, "
                f"the heaviest has {load.skew:.2f} times the mean"
            )
        busy = seen.executor_cpu()
        if busy:
            lines.append(f"  processors kept busy: {_busiest(busy)}")
    if scaling.now is not None:
        lines.append(f"now: {scaling.now.action}, {scaling.now.reason}")
        lines += [f"  advice: {line}" for line in scaling.now.advice]
    for decision in scaling.decisions[-10:]:
        lines.append(f"epoch {decision.epoch}: {decision.action}, {decision.reason}")
    return lines


def _behind(seen: Observation) -> str:
    if seen.full:
        return "more rows wait, nobody knows how many"
    return "backlog unknown" if seen.backlog is None else f"{seen.backlog:,} rows behind"


def _busiest(busy: Mapping[str, float]) -> str:
    """The executors whose shards have used most processor time."""
    names = sorted(busy, key=lambda name: (-busy[name], name))
    shown = [f"{busy[name]:.2f} on {name}" for name in names[:BUSIEST]]
    rest = [f"{len(names) - BUSIEST} more with less"] if len(names) > BUSIEST else []
    return ", ".join(shown + rest)


class Autoscaler:
    """Decides after epochs, and acts through a director."""

    def __init__(self, director: Director, settings: Settings, records: Records) -> None:
        self._director = director
        self._settings = settings
        self._records = records
        self._lock = threading.Lock()
        self._on = settings.act
        self._history = History()
        self._unwritten: list[Observation] = []
        self._decisions: deque[Decision] = deque(maxlen=KEPT)
        self._last: Decision | None = None
        self._move: Move | None = None
        self._wanted = 0
        """The shards that the last move asked for."""
        self._refused_at: float | None = None
        self._spare = 0
        director.switch_autoscaling = self.switch

    def switch(self, on: bool) -> None:
        """From now on, carry decisions out or do not."""
        self._on = on

    def state(self) -> Scaling:
        with self._lock:
            return Scaling(
                self._settings,
                self._on,
                self._history.latest,
                self._last,
                tuple(self._decisions),
                self._spare,
                self._director.start_up_seconds,
            )

    def observe(self, seen: Observation) -> None:
        """Take an epoch into account; now and then, decide and act."""
        moving = self._director.under_way is not None or (
            self._move is not None and self._move.is_open
        )
        seen = replace(seen, moving=moving, room=self._room(seen))
        with self._lock:
            self._history = self._history.add(seen)
            self._unwritten.append(seen)
            history, last = self._history, self._last
        if last is None or seen.at - last.at >= PAUSE:
            self._decide(history)
        if len(self._unwritten) >= CHUNK:
            self.write()

    def write(self) -> None:
        """Write what was seen since the last time."""
        unwritten, self._unwritten = self._unwritten, []
        if unwritten:
            self._records.write_seen(self._settings, unwritten)

    def _decide(self, history: History) -> None:
        decision = decide(self._settings, history)
        told = self._decisions[-1] if self._decisions else None
        with self._lock:
            self._last = decision
        if decision.acts and self._on:
            if not self._act(decision):
                return
            with self._lock:
                self._history = self._history.decided(decision)
            self._remember(decision)
        elif _is_news(decision, told):
            self._remember(decision)

    def _remember(self, decision: Decision) -> None:
        with self._lock:
            self._decisions.append(decision)
        self._records.write_decision(decision)

    def _act(self, decision: Decision) -> bool:
        """Ask for what was decided; whether that could be asked for."""
        changed = {
            name: shards
            for name, shards in decision.parallelism.items()
            if decision.action == "rebalance" or shards != decision.before[name]
        }
        under_way = self._director.under_way
        if under_way is not None and under_way is not self._move:
            # Somebody else's move is not ours to replace.
            return False
        self._keep_warm(decision)
        try:
            self._move = self._director.submit(
                "rescale",
                "live",
                parallelism=changed,
                fit=True,
                by="autoscale",
                reason=decision.reason,
            )
        except MillraceError as error:
            # Such as a location that is out of reach: the next epoch decides again.
            _log.warning("autoscaling could not ask for a rescale: %s", error)
            return False
        self._wanted = max(decision.parallelism.values())
        _log.info("autoscaling: %s, %s", decision.action, decision.reason)
        return True

    def _keep_warm(self, decision: Decision) -> None:
        if not self._director.is_elastic:
            return
        executors = self._director.executors()
        cores = max((executor.cores for executor in executors), default=1)
        acts = [*self._history.acts, decision]
        start_up = self._director.start_up_seconds
        spare = spare_executors(acts, decision.at, start_up, cores, self._settings)
        if spare != self._spare:
            self._spare = spare
            self._director.keep_spare(spare)

    def _room(self, seen: Observation) -> int | None:
        """The most shards that there are cores for; None if more can be asked for."""
        if not self._director.is_elastic:
            return seen.cores
        move = self._move
        if move is not None and not move.is_open and self._wanted > seen.cores:
            # The director has waited for them in vain.
            self._refused_at = self._refused_at or seen.at
        if self._refused_at is None:
            return None
        if seen.cores >= self._wanted or seen.at - self._refused_at > RETRY_SECONDS:
            self._refused_at, self._wanted = None, 0
            return None
        return seen.cores


def _is_news(decision: Decision, told: Decision | None) -> bool:
    """Whether a decision that changes nothing says something that the last one did not."""
    if decision.acts:
        return told is None or (told.action, told.parallelism) != (
            decision.action,
            decision.parallelism,
        )
    if decision.blocked:
        return told is None or not told.blocked
    # The numbers in a piece of advice differ from epoch to epoch.
    return bool(decision.advice) and (told is None or not told.advice)
