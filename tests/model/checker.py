"""An explicit-state model checker: visits every state, and shows the shortest way to a bad one.

A model is an initial state and a function from a state to its successors, each with the name of the
action that leads there. An action that breaks an invariant raises `Broken`. States are visited
breadth first, so the trace to the first broken invariant is as short as any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

Successors = Callable[[S], Iterable[tuple[str, S]]]


class Broken(Exception):
    """An action broke an invariant."""

    def __init__(self, invariant: str, action: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.action = action
        self.detail = detail


@dataclass
class Explored(Generic[S]):
    """What there is."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    """The length of the longest shortest way to a state."""
    actions: Counter[str] = field(default_factory=Counter)
    """How often each action was taken, without what follows its name in brackets."""
    stuck: list[S] = field(default_factory=list)
    """States from which no good end can be reached, if ends were asked for."""
    broken: Broken | None = None
    trace: list[tuple[str, S]] = field(default_factory=list)
    """The way to the state in which an action breaks an invariant."""


def explore(
    initial: S,
    successors: Successors[S],
    *,
    canonical: Callable[[S], S] = lambda state: state,
    is_end: Callable[[S], bool] | None = None,
    tell: Callable[[int], None] = lambda states: None,
) -> Explored[S]:
    """Visit everything; with `is_end`, also find states from which no end can be reached.

    States with the same canonical form are visited once.
    """
    found: Explored[S] = Explored()
    number = {initial: 0}
    order = [initial]
    came_from = [-1]
    before: list[list[int]] = [[]]
    depth = [0]
    at = 0
    while at < len(order):
        state = order[at]
        try:
            for action, after in successors(state):
                found.steps += 1
                found.actions[action.partition("(")[0]] += 1
                after = canonical(after)
                known = number.get(after)
                if known is None:
                    known = number[after] = len(order)
                    order.append(after)
                    came_from.append(at)
                    depth.append(depth[at] + 1)
                    if is_end is not None:
                        before.append([])
                if is_end is not None:
                    before[known].append(at)
        except Broken:
            way = _way(order, came_from, at)
            found.trace, found.broken = _retold(initial, successors, canonical, way)
            break
        at += 1
        if at % 100_000 == 0:
            tell(len(order))
    found.states = len(order)
    found.depth = depth[-1]
    if is_end is not None and found.broken is None:
        found.stuck = _stuck(order, before, is_end)
    return found


def _way(order: list[S], came_from: list[int], at: int) -> list[S]:
    way = []
    while at:
        way.append(order[at])
        at = came_from[at]
    return way[::-1]


def _retold(
    initial: S, successors: Successors[S], canonical: Callable[[S], S], way: list[S]
) -> tuple[list[tuple[str, S]], Broken]:
    """The same way through states as they are, so that an action names who really takes it."""
    trace = []
    state = initial
    for wanted in way:
        action, state = next(s for s in successors(state) if canonical(s[1]) == wanted)
        trace.append((action, state))
    try:
        for _ in successors(state):
            pass
    except Broken as broken:
        return trace, broken
    raise AssertionError("a broken invariant was not broken when it was looked at again")


def _stuck(order: list[S], before: list[list[int]], is_end: Callable[[S], bool]) -> list[S]:
    reached = bytearray(len(order))
    todo = [i for i, state in enumerate(order) if is_end(state)]
    for i in todo:
        reached[i] = 1
    while todo:
        for origin in before[todo.pop()]:
            if not reached[origin]:
                reached[origin] = 1
                todo.append(origin)
    return [state for i, state in enumerate(order) if not reached[i]]
