"""The protocol holds in small worlds, and the checker finds every protocol that is almost right.

`make stress` and `make model` check the larger worlds.
"""

from __future__ import annotations

import pytest
from tests.model.bounds import FULL, QUICK, SHOWN_IN, Bounds, Deviation
from tests.model.checker import Explored, explore
from tests.model.invariants import (
    DOUBLE,
    INVARIANTS,
    KEPT,
    LOST,
    NO_FALSE_ALARM,
    ONE_WINNER,
    OUTPUT,
    OWNER,
    READY,
)
from tests.model.protocol import Protocol
from tests.model.state import State

BREAKS = {
    Deviation.CREATE_OVERWRITES: {ONE_WINNER},
    Deviation.FOLLOWER_SKIPS: {LOST},
    Deviation.FLIP_UNREADY: {READY},
    Deviation.FLIP_MID_EPOCH: {OWNER},
    Deviation.REPLICA_IN_PLACE: {DOUBLE},
    Deviation.REPLAY_APPLIED: {DOUBLE},
    Deviation.HEAD_READ_EARLY: {NO_FALSE_ALARM},
    Deviation.SPARK_COMMITS_FIRST: {NO_FALSE_ALARM},
    Deviation.NO_LATENESS_CHECK: {ONE_WINNER},
    Deviation.LATE_WITHOUT_PARENT: {KEPT},
    Deviation.PARENT_IS_PROOF: {ONE_WINNER},
    Deviation.LATE_WITHOUT_CHILD: {KEPT},
    Deviation.MARK_AFTERWARDS: {ONE_WINNER},
    Deviation.COLLECT_UNFINISHED: {LOST},
    Deviation.SHARED_SEGMENT_NAMES: {LOST},
    Deviation.OFFSETS_OVERWRITTEN: {LOST, DOUBLE, OUTPUT},
    Deviation.MISSING_REPORT: {LOST, OWNER},
}


def checked(bounds: Bounds, wrong: Deviation | None = None, ends: bool = False) -> Explored[State]:
    protocol = Protocol(bounds, wrong)
    return explore(
        protocol.initial(),
        protocol.successors,
        canonical=protocol.canonical,
        is_end=protocol.is_end if ends else None,
    )


@pytest.mark.parametrize("name", QUICK)
def test_the_invariants_hold_and_nothing_gets_stuck(name: str) -> None:
    found = checked(QUICK[name], ends=True)
    assert found.broken is None, [action for action, _ in found.trace]
    # Whatever has happened, all batches can still be committed.
    assert not found.stuck
    assert found.states > 1000


@pytest.mark.stress
@pytest.mark.parametrize("name", FULL)
def test_the_invariants_hold_in_the_full_bounds(name: str) -> None:
    found = checked(FULL[name])
    assert found.broken is None, [action for action, _ in found.trace]
    assert found.states > 10_000


def test_every_action_is_taken() -> None:
    """A model in which nothing happens breaks nothing."""
    taken: set[str] = set()
    for bounds in QUICK.values():
        taken |= checked(bounds).actions.keys()
    assert taken == {
        *("launch", "log_offsets", "replay", "offsets_taken", "crash"),
        *("begin_epoch", "skip_batch", "run_shard", "sink_fails", "create_manifest", "fenced"),
        *("not_head", "late", "lost", "committed", "spark_commit", "commit_taken"),
        *("mark", "collect", "lose_executor", "follow"),
    }


@pytest.mark.parametrize("deviation", Deviation)
def test_a_protocol_that_is_almost_right_is_found_out(deviation: Deviation) -> None:
    found = checked(SHOWN_IN[deviation], deviation)
    assert found.broken is not None
    assert found.broken.invariant in BREAKS[deviation] <= set(INVARIANTS)
