"""A move: one reconfiguration from request to report.

`Move` is the handle that a user holds, `Progress` what the driver knows about a move that has
begun, and `MoveHistory` has the progress of recent moves and the epochs around them.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace import clock
from millrace.errors import MoveError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.planner import Plan

OPEN = ("waiting", "moving")
FINAL = ("done", "refused", "superseded", "cancelled")
KEPT_MOVES = 200
"""How many moves that have ended are remembered."""
SAMPLE = 20
"""How many epochs before and after a move its report covers."""


@dataclass(frozen=True)
class Latency:
    """Seconds that epochs took."""

    epochs: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @staticmethod
    def of(seconds: Sequence[float]) -> Latency:
        if not seconds:
            return Latency()
        ranked = sorted(seconds)
        high = ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
        return Latency(len(ranked), statistics.median(ranked), high, ranked[-1])


@dataclass(frozen=True)
class MoveReport:
    """What a move did."""

    kind: str
    strategy: str
    state: str
    reason: str
    key_groups: int = 0
    """Key groups that changed owner, over all operators."""
    bytes: int = 0
    """State that new owners followed, without what epochs fetched themselves."""
    seconds: float = 0.0
    """From the request to the epoch that ran with the last of it."""
    epochs: int = 0
    first_epoch: int | None = None
    last_epoch: int | None = None
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Operator -> shards before and after."""
    before: Latency = field(default_factory=Latency)
    during: Latency = field(default_factory=Latency)
    after: Latency = field(default_factory=Latency)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shards = ", ".join(f"{op} {old} -> {new}" for op, (old, new) in self.shards.items())
        reason = f", {self.reason}" if self.reason else ""
        lines = [
            f"{self.kind} ({self.strategy}): {self.state}{reason}",
            f"  shards: {shards or 'unchanged'}",
            f"  {self.key_groups} key groups, {self.bytes / 1e6:.1f} MB, {self.epochs} epochs, "
            f"{self.seconds:.2f} s",
        ]
        for name in ("before", "during", "after"):
            part: Latency = getattr(self, name)
            lines.append(
                f"  {name:6} {part.epochs:3} epochs: p50 {part.p50 * 1e3:.0f} ms, "
                f"p99 {part.p99 * 1e3:.0f} ms, max {part.max * 1e3:.0f} ms"
            )
        return "\n".join(lines)


@dataclass(eq=False, repr=False)
class Move:
    """A handle on a reconfiguration. The query's driver carries it out between epochs."""

    id: str
    kind: str
    strategy: str
    details: dict[str, Any]
    _report: Callable[[Move], MoveReport]
    _cancel: Callable[[Move], None]
    state: str = field(default="waiting", init=False)
    reason: str = field(default="", init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def report(self) -> MoveReport:
        """What it has done so far; latencies after the move are added by later epochs."""
        return self._report(self)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def cancel(self) -> None:
        """Leave what has not moved yet where it is."""
        self._cancel(self)

    def wait(self, timeout: float | None = None) -> Move:
        """Wait until it is done; raises if it was refused, superseded or cancelled."""
        if not self._ended.wait(timeout):
            raise MoveError(
                f"the {self.kind} {self.id} is still {self.state} after {timeout} seconds. It "
                "continues: wait again, or cancel() it."
            )
        if self.state != "done":
            was = "was" if self.state in FINAL else "is"
            raise MoveError(f"the {self.kind} {self.id} {was} {self.state}: {self.reason}")
        return self

    def end(self, state: str, reason: str = "") -> None:
        """Set its final state; the first one counts."""
        if self.is_open:
            self.state, self.reason = state, reason
            self._ended.set()

    def abandon(self, reason: str) -> None:
        """Release those who wait for it; the move itself stays open."""
        if self.is_open:
            self.reason = reason
            self._ended.set()

    def __repr__(self) -> str:
        return f"<Move {self.id} {self.kind} {self.strategy} {self.state}>"


@dataclass
class Progress:
    """How far a move that has begun has come."""

    move: Move
    started: float
    before: list[float]
    """How long epochs took before it; see `during` and `after`."""
    parallelism_before: dict[OperatorName, int]
    """The target parallelism of all operators when it began."""
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
    """Whether every key group that moves has its new owner."""

    def adopt_plans(self, plans: dict[OperatorName, Plan]) -> None:
        """Continue with these plans, which start from the current assignments."""
        self.plans = plans
        for name, plan in plans.items():
            old = self.shards.get(name, (plan.current.shards, 0))[0]
            self.shards[name] = (old, plan.target.shards)

    def flip(self, name: OperatorName, assignment: Assignment) -> None:
        """Some key groups of an operator have changed owner."""
        plan = self.plans[name]
        if assignment == plan.target:
            changed = frozenset(plan.moved)
        else:
            # On the way to the target, the shards that stay keep their numbers.
            changed = frozenset(
                g for g in plan.moved if plan.current.owners[g] != assignment.owners[g]
            )
        self.moved |= {(name, group) for group in changed}
        self.plans[name] = plan.after(changed)


class MoveHistory:
    """The progress of moves, and how long the epochs around them took."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._moves: dict[str, Progress] = {}

    def begin(self, move: Move, parallelism: dict[OperatorName, int]) -> Progress:
        """A move begins; `parallelism` was the target until now."""
        progress = Progress(move, clock.stopwatch(), self._seconds[-SAMPLE:], parallelism)
        self._moves[move.id] = progress
        for old in list(self._moves)[:-KEPT_MOVES]:
            del self._moves[old]
        return progress

    def add_epoch(self, epoch: Epoch, seconds: float, current: Progress | None) -> None:
        """An epoch was committed; `current` is the move under way, if any."""
        self._seconds.append(seconds)
        del self._seconds[:-SAMPLE]
        if current is not None:
            current.during.append(seconds)
            if current.first_epoch is None:
                current.first_epoch = epoch
            current.last_epoch = epoch
            current.seconds = clock.stopwatch() - current.started
        for past in self._moves.values():
            if past is not current and len(past.after) < SAMPLE:
                past.after.append(seconds)

    def report(self, move: Move) -> MoveReport:
        """What a move has done so far."""
        progress = self._moves.get(move.id)
        now = (move.kind, move.strategy, move.state, move.reason)
        if progress is None:
            return MoveReport(*now)
        return MoveReport(
            *now,
            key_groups=len(progress.moved),
            bytes=progress.bytes,
            seconds=progress.seconds,
            epochs=len(progress.during),
            first_epoch=progress.first_epoch,
            last_epoch=progress.last_epoch,
            shards=progress.shards,
            before=Latency.of(progress.before),
            during=Latency.of(progress.during),
            after=Latency.of(progress.after),
        )
