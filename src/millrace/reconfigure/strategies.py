"""How a plan is carried out. Pure: what is known before an epoch in, what to do next out.

All strategies are policies over two verbs: *follow the log up to a version* and *flip the
assignment at an epoch*. `next_step` is asked before every epoch until the move is done. It keeps
nothing between calls, so a driver that starts again, a lost executor or a new plan half-way need no
care: whatever the assignment and the followers are by then, the same question has an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from millrace.errors import UsageError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.reconfigure.planner import Plan

FLUID_STEPS = 16
"""In about how many epochs `fluid` moves everything."""
BEHIND = 1
"""`live` flips when the new owners are no more epochs behind than this."""


@dataclass(frozen=True)
class View:
    """What is known before an epoch."""

    version: Epoch
    """What the epoch is going to read."""
    plan: Plan
    """From the assignment of the last epoch to the target."""
    followed: dict[int, Epoch]
    """Key group -> the version up to which its destination has followed it."""
    load: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def ready(self, group: int) -> bool:
        return self.followed.get(group, Epoch(-1)) >= self.version - BEHIND


@dataclass(frozen=True)
class Step:
    """What to do for one epoch."""

    assignment: Assignment
    before: tuple[int, ...] = ()
    """Key groups whose destinations follow before the epoch runs: it waits for them."""
    behind: tuple[int, ...] = ()
    """Key groups whose destinations follow while epochs go on."""
    done: bool = False
    restart: bool = False
    """Stop the query and start it again with the assignment."""


def _restart(view: View) -> Step:
    return Step(view.plan.target, done=True, restart=True)


def _pause(view: View) -> Step:
    return Step(view.plan.target, before=view.plan.moved, done=True)


def _fluid(view: View) -> Step:
    moved = view.plan.moved
    load = view.load if len(view.load) else np.zeros(view.plan.current.key_groups)
    coolest_first = sorted(moved, key=lambda group: (load[group], group))
    number = max(1, -(-view.plan.current.key_groups // (2 * FLUID_STEPS)))
    chunk = tuple(sorted(coolest_first[:number]))
    return Step(
        view.plan.after(frozenset(chunk)).current, before=chunk, done=len(chunk) == len(moved)
    )


def _lazy(view: View) -> Step:
    return Step(view.plan.target, behind=view.plan.moved, done=True)


def _live(view: View) -> Step:
    if all(view.ready(group) for group in view.plan.moved):
        return Step(view.plan.target, done=True)
    return Step(view.plan.current, behind=view.plan.moved)


STRATEGIES: dict[str, tuple[Callable[[View], Step], str]] = {
    "live": (_live, "new owners follow the log while epochs go on; then ownership flips"),
    "restart": (_restart, "stop the query and start it again: what Spark and Flink do"),
    "pause": (_pause, "everything moves at one epoch boundary, which waits for it"),
    "fluid": (_fluid, "a few key groups per epoch, the hottest last"),
    "lazy": (_lazy, "ownership flips at once; pages are fetched when touched, or behind"),
    "standby": (_live, "as live, to replicas that follow the log all the time"),
}
"""Name -> (policy, one line about it)."""


def check_strategy(name: object) -> str:
    """Return the name if there is such a strategy, else raise."""
    if not isinstance(name, str) or name not in STRATEGIES:
        raise UsageError(
            f"strategy={name!r}: there is no such strategy. Choose one of {', '.join(STRATEGIES)}."
        )
    return name


def next_step(strategy: str, view: View) -> Step:
    """What to do for the next epoch; with nothing left to move, the target."""
    if not view.plan.moved:
        return Step(view.plan.target, done=True)
    return STRATEGIES[strategy][0](view)
