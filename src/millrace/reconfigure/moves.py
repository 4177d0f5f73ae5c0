"""A move: one reconfiguration from request to report, as the user holds it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace.errors import MoveError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.planner import Plan

OPEN = ("waiting", "moving")
FINAL = ("done", "refused", "superseded", "cancelled")
KEPT_MOVES = 200
"""Moves that have ended are forgotten beyond so many."""


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
    key_groups: int
    """Key groups that changed hands, over all operators."""
    bytes: int
    """State that new owners followed before or behind; what epochs fetched themselves is not in."""
    seconds: float
    """From the request to the epoch that ran with the last of it."""
    epochs: int
    first_epoch: int | None
    last_epoch: int | None
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


class Move:
    """A handle on a reconfiguration. The query's driver carries it out between epochs."""

    def __init__(
        self,
        id_: str,
        kind: str,
        strategy: str,
        details: dict[str, Any],
        report: Callable[[Move], MoveReport],
        cancel: Callable[[Move], None],
    ) -> None:
        self.id = id_
        self.kind = kind
        self.strategy = strategy
        self.details = details
        self.state = "waiting"
        self.reason = ""
        self._report = report
        self._cancel = cancel
        self._ended = threading.Event()

    @property
    def report(self) -> MoveReport:
        """What it has done so far; latencies after the move fill up as epochs go on."""
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
                f"the {self.kind} {self.id} is still {self.state} after {timeout} seconds. It goes "
                "on; wait again, or cancel() it."
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
        """Let go of those who wait for it, without an end to it."""
        if self.is_open:
            self.reason = reason
            self._ended.set()

    def __repr__(self) -> str:
        return f"<Move {self.id} {self.kind} {self.strategy} {self.state}>"


@dataclass
class Progress:
    """What the driver keeps of a move that is under way, or was."""

    move: Move
    started: float
    before: list[float]
    """How long epochs took before it, as during and after it below."""
    parallelism: dict[OperatorName, int]
    """What was wanted before it."""
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
    """Whether all that moves has its new owner."""

    def take(self, plans: dict[OperatorName, Plan]) -> None:
        """Go on by other plans, which are for how things are now."""
        self.plans = plans
        for name, planned in plans.items():
            old = self.shards.get(name, (planned.current.shards, 0))[0]
            self.shards[name] = (old, planned.target.shards)

    def flip(self, name: OperatorName, assignment: Assignment) -> None:
        """Some key groups of an operator have changed hands."""
        planned = self.plans[name]
        if assignment == planned.target:
            changed = frozenset(planned.moved)
        else:
            # On the way to the target the shards that were there keep their numbers.
            changed = frozenset(
                g for g in planned.moved if planned.current.owners[g] != assignment.owners[g]
            )
        self.moved |= {(name, group) for group in changed}
        self.plans[name] = planned.after(changed)
