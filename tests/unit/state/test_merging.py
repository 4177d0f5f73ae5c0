"""The merge planner, simulated over many epochs without any data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.state import merging
from millrace.state.merging import (
    BACKLOG,
    INDEX_ROW_BYTES,
    LOG_PIECES,
    MERGE_RATIO,
    RUN_PIECES,
    RUN_ROWS,
    GroupLoad,
    log_limit,
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
            GroupLoad(np.arange(len(self.keys)), self.base, self.logged, self.index * 48),
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


CASES = [
    (256, 4_000, 100_000),
    (256, 400, 100_000),
    (256, 4_000, 1_000),
    (128, 78_000, 50_000),
    (16, 10_000, 10_000),
    (1, 10_000, 1_000),
]


@pytest.mark.parametrize(("groups", "keys", "changed"), CASES)
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


@pytest.mark.parametrize(("groups", "keys", "changed"), CASES)
def test_write_amplification_from_the_start(groups: int, keys: int, changed: int) -> None:
    """Merges that come early, to get out of step, are paid for by the time without any."""
    simulation = Simulation(groups, keys, seed=4)
    deltas = merges = 0
    for _ in range(max(3 * int(groups * keys * MERGE_RATIO / changed), 20)):
        delta, merged = simulation.epoch(changed)
        deltas += delta
        merges += merged
        assert merges <= deltas / MERGE_RATIO + 2 * keys


def test_no_epoch_is_special() -> None:
    """Merges are spread evenly: small epochs on a large state merge one key group now and then."""
    simulation = Simulation(256, 1_000, seed=2)
    changed = 20_000
    for _ in range(120):
        simulation.epoch(changed)
    merged = [simulation.epoch(changed)[1] for _ in range(200)]
    fair = changed / MERGE_RATIO
    assert max(merged) <= fair + 2_000
    assert min(merged) >= fair - 2_000


def test_merges_of_large_key_groups_are_spread() -> None:
    """A key group that is larger than an epoch is merged every few epochs, not in a burst."""
    simulation = Simulation(128, 78_000, seed=5)
    for _ in range(500):
        simulation.epoch(50_000)
    merging = [simulation.epoch(50_000)[1] for _ in range(400)]
    between = np.diff(np.flatnonzero(merging))
    assert max(merging) <= 2 * 78_000
    assert between.max() <= 3 * 78_000 * MERGE_RATIO / 50_000


def test_replay_is_bounded() -> None:
    """The log is never longer than half the ratio, but for the epoch's own rows."""
    simulation = Simulation(64, 1_000, seed=3)
    for _ in range(300):
        simulation.epoch(5_000)
        assert simulation.logged.sum() <= log_limit(simulation.base) + 5_000
    assert log_limit(simulation.base) < 0.51 * MERGE_RATIO * simulation.base.sum()


def test_a_long_log_is_not_merged_at_once() -> None:
    """A location that another version left with a longer log is brought back in many epochs."""
    simulation = Simulation(256, 1_000, seed=6)
    simulation.logged[:] = 4_000
    merged = [simulation.epoch(10_000)[1] for _ in range(200)]
    assert max(merged) <= BACKLOG * 10_000 / MERGE_RATIO
    assert simulation.logged.sum() <= log_limit(simulation.base) + 10_000


def test_a_key_group_that_alone_is_changed_is_merged() -> None:
    base = np.full(256, 100)
    for logged, expected in ((2 * MERGE_RATIO * 100 - 1, []), (2 * MERGE_RATIO * 100, [7])):
        rows = np.zeros(256, np.int64)
        rows[7] = logged
        loads = GroupLoad(np.arange(256), base, rows, np.zeros(256, np.int64))
        assert plan_merges(loads, 10, UNLIMITED).tolist() == expected


def load(base: list[int], logged: list[int], index_bytes: list[int]) -> GroupLoad:
    n = len(base)
    return GroupLoad(
        np.arange(10, 10 + n),
        np.asarray(base),
        np.asarray(logged),
        np.asarray(index_bytes),
    )


def test_nothing_to_merge() -> None:
    assert plan_merges(load([10, 0, 5], [0, 0, 3], [0, 0, 9]), 100, UNLIMITED).tolist() == []
    assert plan_merges(load([10, 10], [14, 14], [1, 1]), 100, UNLIMITED).tolist() == []
    empty = np.empty(0, np.int64)
    assert plan_merges(GroupLoad(empty, empty, empty, empty), 5, 0).tolist() == []


def test_a_log_may_have_as_many_rows_as_its_limit() -> None:
    base = np.asarray([100])
    limit = int(log_limit(base))
    assert limit == log_limit(base)
    assert plan_merges(load([100], [limit], [1]), 100, UNLIMITED).tolist() == []
    assert plan_merges(load([100], [limit + 1], [1]), 100, UNLIMITED).tolist() == [10]


def test_the_most_overdue_goes_first_and_one_always_goes() -> None:
    loads = load([100, 100, 100], [300, 900, 400], [1, 1, 1])
    assert plan_merges(loads, 1, UNLIMITED).tolist() == [11]
    # What is left fits the limit: no more is merged than has to be.
    assert plan_merges(loads, 10_000, UNLIMITED).tolist() == [11, 12]


def test_the_budget_takes_the_largest_tables_first() -> None:
    loads = load([1000] * 4, [3] * 4, [100, 400, 300, 200])
    assert plan_merges(loads, 0, 1000).tolist() == []
    assert plan_merges(loads, 0, 999).tolist() == [11]
    assert plan_merges(loads, 0, 500).tolist() == [11, 12]
    assert plan_merges(loads, 0, 0).tolist() == [10, 11, 12, 13]
    # The rows of this epoch need room as well.
    assert plan_merges(loads, 5, 1000 + 5 * INDEX_ROW_BYTES).tolist() == []
    assert plan_merges(loads, 6, 1000 + 5 * INDEX_ROW_BYTES).tolist() == [11]


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
    needed = changed * INDEX_ROW_BYTES
    assert int(loads.index_bytes[left].sum()) <= max(0, budget - needed)
    assert np.all(loads.logged_rows[plan - 10] > 0)


def test_runs_take_the_newest_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "LOG_PIECES", RUN_PIECES)
    small, large = RUN_ROWS - 1, RUN_ROWS
    assert plan_run([]) == 0
    assert plan_run([small] * (RUN_PIECES - 1)) == 0
    assert plan_run([small] * RUN_PIECES) == RUN_PIECES
    assert plan_run([1] * (RUN_PIECES + 5) + [large, 1, 1]) == RUN_PIECES + 5
    assert plan_run([1, large] + [1] * RUN_PIECES) == 0


def test_a_short_log_has_no_runs() -> None:
    """Writing rows once more pays only when there are too many files."""
    assert plan_run([1] * (LOG_PIECES - 1)) == 0
    assert plan_run([1] * LOG_PIECES) == LOG_PIECES
    assert plan_run([1] * (RUN_PIECES - 1) + [RUN_ROWS] * LOG_PIECES) == 0
