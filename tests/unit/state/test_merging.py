"""The merge planner, simulated over many epochs without any data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.state.merging import (
    MERGE_RATIO,
    RUN_PIECES,
    RUN_ROWS,
    GroupLoad,
    plan_merges,
    plan_run,
)

UNLIMITED = 1 << 60


class Simulation:
    """Key groups of known keys, each epoch changing a random part of them."""

    def __init__(self, groups: int, keys_per_group: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.keys = np.full(groups, keys_per_group)
        self.base = np.full(groups, keys_per_group)
        self.logged = np.zeros(groups, np.int64)
        self.index = np.zeros(groups, np.int64)

    def epoch(self, changed: int, budget: int = UNLIMITED) -> tuple[int, int]:
        """(rows of deltas, rows of new bases) that the epoch writes."""
        plan = plan_merges(
            GroupLoad(
                np.arange(len(self.keys)), self.base, self.logged, self.index, self.index * 48
            ),
            changed,
            budget,
        )
        merged = int(self.keys[plan].sum())
        self.base[plan] = self.keys[plan]
        self.logged[plan] = self.index[plan] = 0
        delta = self.rng.multinomial(changed, self.keys / self.keys.sum())
        untouched = (1 - 1 / self.keys) ** delta
        self.index += np.round((self.keys - self.index) * (1 - untouched)).astype(np.int64)
        self.logged += delta
        return int(delta.sum()), merged


@pytest.mark.parametrize(
    ("groups", "keys", "changed"),
    [(256, 4_000, 100_000), (256, 400, 100_000), (256, 4_000, 1_000), (16, 10_000, 10_000)],
)
def test_write_amplification_at_steady_state(groups: int, keys: int, changed: int) -> None:
    """Deltas and merges together write at most 1.5 times the changed rows."""
    simulation = Simulation(groups, keys, seed=1)
    cycle = int(groups * keys * MERGE_RATIO / changed) + 1
    for _ in range(2 * cycle):
        simulation.epoch(changed)
    deltas = merges = 0
    for _ in range(max(4 * cycle, 50)):
        delta, merged = simulation.epoch(changed)
        deltas += delta
        merges += merged
    assert merges > 0
    assert (deltas + merges) / deltas <= 1.5


def test_no_epoch_is_special() -> None:
    """Once the key groups are out of step, no epoch merges much more than it can afford."""
    simulation = Simulation(256, 1_000, seed=2)
    changed = 20_000
    for _ in range(120):
        simulation.epoch(changed)
    merged = [simulation.epoch(changed)[1] for _ in range(200)]
    assert max(merged) <= changed / MERGE_RATIO + 1_000


def test_replay_is_bounded() -> None:
    simulation = Simulation(64, 1_000, seed=3)
    for _ in range(300):
        simulation.epoch(5_000)
        assert simulation.logged.sum() <= (MERGE_RATIO + 1) * simulation.base.sum()


def load(base: list[int], logged: list[int], index_bytes: list[int]) -> GroupLoad:
    n = len(base)
    return GroupLoad(
        np.arange(10, 10 + n),
        np.asarray(base),
        np.asarray(logged),
        np.minimum(logged, 5),
        np.asarray(index_bytes),
    )


def test_nothing_to_merge() -> None:
    assert plan_merges(load([10, 0, 5], [0, 0, 3], [0, 0, 9]), 100, UNLIMITED).tolist() == []
    empty = np.empty(0, np.int64)
    assert plan_merges(GroupLoad(empty, empty, empty, empty, empty), 5, 0).tolist() == []


def test_the_most_overdue_goes_first_and_one_always_goes() -> None:
    loads = load([100, 100, 100], [300, 900, 400], [1, 1, 1])
    assert plan_merges(loads, 1, UNLIMITED).tolist() == [11]
    assert plan_merges(loads, 10_000, UNLIMITED).tolist() == [10, 11, 12]


def test_the_budget_takes_the_largest_tables_first() -> None:
    loads = load([1000] * 4, [3] * 4, [100, 400, 300, 200])
    assert plan_merges(loads, 1, 1000).tolist() == []
    assert plan_merges(loads, 1, 999).tolist() == [11]
    assert plan_merges(loads, 1, 500).tolist() == [11, 12]
    assert plan_merges(loads, 1, 0).tolist() == [10, 11, 12, 13]


def test_an_empty_table_is_not_merged_for_its_memory() -> None:
    assert plan_merges(load([0, 10], [0, 3], [500, 100]), 1, 0).tolist() == [11]


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 5000), st.integers(0, 1000)), min_size=1
    ),
    st.integers(1, 10_000),
    st.integers(0, 20_000),
)
def test_the_index_that_is_left_fits_the_budget(
    groups: list[tuple[int, int, int]], changed: int, budget: int
) -> None:
    base, logged, index_bytes = (list(column) for column in zip(*groups, strict=True))
    index_bytes = [b if rows else 0 for b, rows in zip(index_bytes, logged, strict=True)]
    loads = load(base, logged, index_bytes)
    plan = plan_merges(loads, changed, budget)
    assert plan.tolist() == sorted(set(plan.tolist()))
    left = np.setdiff1d(np.arange(len(groups)), plan - 10)
    assert int(loads.index_bytes[left].sum()) <= budget
    assert np.all(loads.logged_rows[plan - 10] > 0)


def test_runs_take_the_newest_small_pieces() -> None:
    small, large = RUN_ROWS - 1, RUN_ROWS
    assert plan_run([]) == 0
    assert plan_run([small] * (RUN_PIECES - 1)) == 0
    assert plan_run([small] * RUN_PIECES) == RUN_PIECES
    assert plan_run([1] * (RUN_PIECES + 5) + [large, 1, 1]) == RUN_PIECES + 5
    assert plan_run([1, large] + [1] * RUN_PIECES) == 0
