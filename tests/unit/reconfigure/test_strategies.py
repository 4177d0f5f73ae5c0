"""Each strategy as what it is: a function from what is known to what to do next."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.errors import UsageError
from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.reconfigure.planner import Plan, Slot, plan
from millrace.reconfigure.strategies import (
    FLUID_STEPS,
    STRATEGIES,
    MoveStatus,
    check_strategy,
    next_step,
)

VERSION = Epoch(10)


def two_to_four(key_groups: int = 16) -> Plan:
    current = Assignment.even(key_groups, 2).placed(("a", "b"))
    return plan(current, [Slot("a", keeps=0), Slot("b", keeps=1), Slot("c"), Slot("d")])


def status(
    planned: Plan, followed: int | None = None, load: np.ndarray | None = None
) -> MoveStatus:
    known = {} if followed is None else {g: Epoch(followed) for g in planned.moved}
    return MoveStatus(VERSION, planned, known, np.zeros(0) if load is None else load)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_nothing_to_move_all_are_done(strategy: str) -> None:
    planned = two_to_four()
    there = planned.after(frozenset(planned.moved))
    step = next_step(strategy, status(there))
    assert step.done
    assert step.assignment == planned.target
    assert (step.before, step.background, step.restart) == ((), (), False)


@pytest.mark.parametrize("strategy", ["live", "standby"])
@pytest.mark.parametrize(("followed", "flips"), [(None, False), (8, False), (9, True), (10, True)])
def test_live_flips_when_no_more_than_one_epoch_behind(
    strategy: str, followed: int | None, flips: bool
) -> None:
    planned = two_to_four()
    step = next_step(strategy, status(planned, followed))
    assert step.done == flips
    assert step.assignment == (planned.target if flips else planned.current)
    assert step.background == (() if flips else planned.moved)
    assert not step.before


def test_live_waits_for_the_last_key_group() -> None:
    planned = two_to_four()
    followed = dict.fromkeys(planned.moved, VERSION)
    followed[planned.moved[0]] = Epoch(3)
    step = next_step("live", MoveStatus(VERSION, planned, followed))
    assert not step.done
    assert step.assignment == planned.current


def test_pause_waits_for_everything_at_once() -> None:
    planned = two_to_four()
    step = next_step("pause", status(planned))
    assert step.done
    assert step.assignment == planned.target
    assert step.before == planned.moved


def test_lazy_flips_at_once_and_follows_behind() -> None:
    planned = two_to_four()
    step = next_step("lazy", status(planned))
    assert step.done
    assert step.assignment == planned.target
    assert step.background == planned.moved
    assert not step.before


def test_restart_asks_for_it() -> None:
    planned = two_to_four()
    step = next_step("restart", status(planned))
    assert step.restart
    assert step.done
    assert step.assignment == planned.target


@pytest.mark.parametrize("key_groups", [8, 256, 4096])
def test_fluid_moves_a_few_at_a_time_and_the_hottest_last(key_groups: int) -> None:
    planned = two_to_four(key_groups)
    moved = len(planned.moved)
    load = np.arange(key_groups, dtype=np.float64)
    order: list[int] = []
    steps = 0
    while True:
        step = next_step("fluid", status(planned, load=load))
        assert 1 <= len(step.before) <= max(1, -(-key_groups // (2 * FLUID_STEPS)))
        order += step.before
        steps += 1
        changed = {
            g
            for g in range(key_groups)
            if step.assignment.executor_of(step.assignment.owners[g])
            != planned.current.executor_of(planned.current.owners[g])
        }
        assert changed == set(step.before)
        planned = planned.after(frozenset(step.before))
        assert planned.current == step.assignment
        if step.done:
            break
    assert planned.current == planned.target
    assert order == sorted(order, key=lambda g: load[g])
    assert len(order) == moved
    assert steps <= FLUID_STEPS + 1


@pytest.mark.parametrize("name", ["", "LIVE", "teleport", None, 3, ["live"]])
def test_what_is_not_a_strategy(name: object) -> None:
    with pytest.raises(
        UsageError, match="Choose one of live, restart, pause, fluid, lazy, standby"
    ):
        check_strategy(name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_a_strategy(name: str) -> None:
    assert check_strategy(name) == name
