"""The class a user writes: `class Visits(mr.Processor)`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from millrace.errors import UsageError
from millrace.operators.process.context import Context, Rows, Timer
from millrace.operators.process.declarations import Declaration, StateDeclaration, TimerDeclaration
from millrace.operators.process.initial import fill

P = TypeVar("P")

INITIAL = "on_initial_state"
"""The method that is called for the rows of an initial state."""


class Processor:
    """Logic per key. States and timers are class attributes.

    `process` is called for every key that has rows in an epoch, `on_timer` for every timer. Both
    may yield rows, or return an iterable of rows, or nothing. So may `on_initial_state`, which is
    called once, for every key of the initial state.
    """

    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Any] | None:
        raise NotImplementedError(f"{type(self).__name__} has no process(self, key, rows, ctx)")

    def on_timer(self, key: Any, timer: Timer, ctx: Context) -> Iterable[Any] | None:
        """Called once for every timer that fires, in order of time."""
        raise NotImplementedError(
            f"{type(self).__name__} sets timers but has no on_timer(self, key, timer, ctx)"
        )

    def on_initial_state(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Any] | None:
        """Called for every key of the initial state, in the first epoch and before `process`.

        By default, it takes one row per key and puts each column into the state of that name.
        """
        fill(self, key, rows)
        return None


def declarations(processor: object) -> dict[str, Declaration]:
    """A processor's states and timers by name, base classes first."""
    found: dict[str, Declaration] = {}
    for cls in reversed(type(processor).__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, Declaration):
                found[name] = value
            else:
                # A derived class may take a state away by giving its name another meaning.
                found.pop(name, None)
    return found


def fresh_copy(processor: P) -> P:
    """A processor as it was made, for one epoch: what its code leaves on `self` does not stay."""
    if not vars(processor):
        return copy.copy(processor)
    try:
        return copy.deepcopy(processor)
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__} has an attribute that cannot be copied ({error}). Every "
            "epoch starts with a copy of the processor: make such things in process(), or at the "
            "level of a module."
        ) from error


def states(processor: Processor) -> dict[str, StateDeclaration]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, StateDeclaration)}


def timers(processor: Processor) -> dict[str, TimerDeclaration]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, TimerDeclaration)}


def check_processor(processor: object) -> Processor:
    """Raise unless this is an instance of a processor that can run."""
    if isinstance(processor, type):
        raise UsageError(
            f"process() takes an instance: {processor.__name__}(...), not the class itself."
        )
    if not isinstance(processor, Processor):
        raise UsageError(
            f"process() takes a mr.Processor, not {type(processor).__name__}. Derive the class "
            "from mr.Processor."
        )
    check_placement(processor)
    if type(processor).process is Processor.process:
        raise UsageError(f"{type(processor).__name__} has no process(self, key, rows, ctx).")
    if timers(processor) and type(processor).on_timer is Processor.on_timer:
        raise UsageError(
            f"{type(processor).__name__} declares timers but has no "
            "on_timer(self, key, timer, ctx)."
        )
    return processor


def check_placement(processor: object) -> None:
    """Raise if a state was declared on the instance, where it would never be found."""
    for name, value in vars(processor).items():
        if isinstance(value, Declaration):
            cls = type(processor).__name__
            raise UsageError(
                f"{cls}: {name!r} is declared on the instance. Declare states and timers in the "
                f"class body: class {cls}: {name} = mr.{type(value).__name__}(...)."
            )
