"""How a plan is carried out. Pure: what is known before an epoch in, what to do next out.

All strategies are policies over two verbs: *follow the log up to a version* and *flip the
assignment at an epoch*. `next_step` is asked before every epoch until the move is done. It keeps
nothing between calls, so a driver that starts again, a lost executor or a new plan half-way need no
care: whatever the assignment and the followed versions are by then, the same question has an
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from millrace.arrays import Float64Array
from millrace.errors import UsageError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.reconfigure.planner import Plan

FLUID_STEPS = 16
"""In about how many epochs `fluid` moves everything."""
MAX_LAG = 1
"""`live` flips when the new owners are no more epochs behind than this."""


@dataclass(frozen=True)
class MoveStatus:
    """What is known about one operator's part of a move before an epoch."""

    version: Epoch
    """What the epoch is going to read."""
    plan: Plan
    """From the assignment of the last epoch to the target."""
    followed: dict[int, Epoch]
    """Key group -> the version up to which its destination has followed it."""
    load: Float64Array = field(default_factory=lambda: np.zeros(0))

    def is_ready(self, group: int) -> bool:
        return self.followed.get(group, Epoch(-1)) >= self.version - MAX_LAG


@dataclass(frozen=True)
class MoveStep:
    """What to do for one epoch."""

    assignment: Assignment
    before: tuple[int, ...] = ()
    """Key groups whose destinations follow before the epoch runs: it waits for them."""
    background: tuple[int, ...] = ()
    """Key groups whose destinations follow while epochs run."""
    done: bool = False
    restart: bool = False
    """Stop the query and start it again with the assignment."""


def _live(status: MoveStatus) -> MoveStep:
    """New owners follow the log while epochs run; then ownership flips."""
    if all(status.is_ready(group) for group in status.plan.moved):
        return MoveStep(status.plan.target, done=True)
    return MoveStep(status.plan.current, background=status.plan.moved)


def _restart(status: MoveStatus) -> MoveStep:
    """Stop the query and start it again, as Spark and Flink do."""
    return MoveStep(status.plan.target, done=True, restart=True)


def _pause(status: MoveStatus) -> MoveStep:
    """Everything moves at one epoch boundary, which waits for it."""
    return MoveStep(status.plan.target, before=status.plan.moved, done=True)


def _fluid(status: MoveStatus) -> MoveStep:
    """A few key groups per epoch, the hottest last."""
    plan = status.plan
    load = status.load if len(status.load) else np.zeros(plan.current.key_groups)
    coolest_first = sorted(plan.moved, key=lambda group: (load[group], group))
    number = max(1, -(-plan.current.key_groups // (2 * FLUID_STEPS)))
    chunk = tuple(sorted(coolest_first[:number]))
    done = len(chunk) == len(plan.moved)
    return MoveStep(plan.after(frozenset(chunk)).current, before=chunk, done=done)


def _lazy(status: MoveStatus) -> MoveStep:
    """Ownership flips at once; pages are fetched when touched, or in the background."""
    return MoveStep(status.plan.target, background=status.plan.moved, done=True)


STRATEGIES: dict[str, Callable[[MoveStatus], MoveStep]] = {
    "live": _live,
    "restart": _restart,
    "pause": _pause,
    "fluid": _fluid,
    "lazy": _lazy,
    # Its new owners are replicas that follow the log all the time: they are ready at once.
    "standby": _live,
}


def check_strategy(name: object) -> str:
    """Return the name if there is such a strategy, else raise."""
    if not isinstance(name, str) or name not in STRATEGIES:
        raise UsageError(
            f"strategy={name!r}: there is no such strategy. Choose one of {', '.join(STRATEGIES)}."
        )
    return name


def next_step(strategy: str, status: MoveStatus) -> MoveStep:
    """What to do for the next epoch; with nothing left to move, the target."""
    if not status.plan.moved:
        return MoveStep(status.plan.target, done=True)
    return STRATEGIES[strategy](status)
