"""The planner: few moves, balance, and nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.keygroups import Assignment
from millrace.reconfigure.cluster import Executor
from millrace.reconfigure.planner import (
    TOLERANCE,
    Plan,
    Slot,
    choose_slots,
    plan,
    relocate,
    surviving_slots,
)


def executors(count: int, cores: int = 1) -> list[Executor]:
    return [Executor(f"executor-{i}", "host", cores) for i in range(count)]


def placed(key_groups: int, shards: int) -> Assignment:
    even = Assignment.even(key_groups, shards)
    return even.placed(tuple(f"executor-{s}" for s in range(shards)))


def rescaled(current: Assignment, shards: int, load: np.ndarray | None = None) -> Plan:
    slots = choose_slots(current, shards, executors(max(shards, current.shards)))
    return plan(current, slots, load)


def loads(assignment: Assignment, load: np.ndarray) -> np.ndarray:
    return np.bincount(assignment.owners, load, minlength=assignment.shards)


def check(made: Plan) -> None:
    """What holds of every plan."""
    target = made.target
    assert len(target.owners) == made.current.key_groups
    assert set(target.owners) <= set(range(target.shards))
    assert len(made.keeps) == target.shards
    kept = [k for k in made.keeps if k is not None]
    assert len(kept) == len(set(kept))
    moved = set(made.moved)
    for group in range(target.key_groups):
        stays = made.keeps[target.owners[group]] == made.current.owners[group]
        assert stays == (group not in moved)


def fewest_moves(current: Assignment, slots: list[Slot]) -> int:
    """By counting: what shards that stay can keep, if no two shards differ by more than one."""
    low, extra = divmod(current.key_groups, len(slots))
    held = [current.owners.count(s.keeps) for s in slots if s.keeps is not None]
    kept = sum(min(h, low) for h in held) + min(extra, sum(h > low for h in held))
    return current.key_groups - kept


@pytest.mark.parametrize("key_groups", [256, 1024, 4096])
@pytest.mark.parametrize(
    ("before", "after", "most"), [(2, 4, 1 / 2), (4, 5, 1 / 5), (4, 2, 1 / 2), (1, 2, 1 / 2)]
)
def test_even_load_moves_no_more_than_its_share(
    key_groups: int, before: int, after: int, most: float
) -> None:
    made = rescaled(placed(key_groups, before), after)
    check(made)
    assert len(made.moved) <= key_groups * most + 1
    counts = np.bincount(made.target.owners, minlength=after)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("key_groups", [256, 1024, 4096])
def test_two_to_four_leaves_ranges(key_groups: int) -> None:
    target = rescaled(placed(key_groups, 2), 4).target
    changes = sum(a != b for a, b in zip(target.owners, target.owners[1:], strict=False))
    assert changes == 3


@given(
    st.sampled_from([256, 1024, 4096]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0, 0.3),
    st.integers(0, 2**32 - 1),
)
def test_moves_are_minimal_for_even_load(
    key_groups: int, before: int, after: int, noise: float, seed: int
) -> None:
    current = placed(key_groups, before)
    load = 1 + noise * np.random.default_rng(seed).random(key_groups)
    slots = choose_slots(current, after, executors(max(before, after)))
    made = plan(current, slots, load)
    check(made)
    assert len(made.moved) == fewest_moves(current, slots)
    counts = np.bincount(made.target.owners, minlength=after)
    assert counts.max() - counts.min() <= 1


@given(st.data(), st.sampled_from([8, 32, 256]), st.integers(1, 8), st.integers(1, 8))
def test_moves_are_minimal_from_any_assignment(
    data: st.DataObject, key_groups: int, before: int, after: int
) -> None:
    owner = st.integers(0, before - 1)
    owners = data.draw(st.lists(owner, min_size=key_groups, max_size=key_groups))
    current = Assignment(before, tuple(owners), tuple(f"executor-{s}" for s in range(before)))
    slots = choose_slots(current, after, executors(8))
    made = plan(current, slots)
    check(made)
    assert len(made.moved) == fewest_moves(current, slots)


@given(
    st.sampled_from([64, 256, 1024]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
    st.floats(0.3, 2.5),
)
def test_skewed_load_is_balanced_up_to_one_key_group(
    key_groups: int, before: int, after: int, seed: int, shape: float
) -> None:
    load = np.random.default_rng(seed).gamma(shape, size=key_groups)
    current = placed(key_groups, before)
    made = rescaled(current, after, load)
    check(made)
    # The planner lets an idle key group count a little.
    weights = 0.9 * load / load.sum() + 0.1 / key_groups
    most = loads(made.target, weights).max()
    assert most <= (1 + TOLERANCE) / after + weights.max()


def test_skewed_load_moves_no_more_than_even_load_would() -> None:
    load = np.random.default_rng(7).pareto(1.5, size=256) + 0.1
    assert len(rescaled(placed(256, 2), 4, load).moved) <= 129
    assert len(rescaled(placed(256, 4), 5, load).moved) <= 52


@given(
    st.sampled_from([64, 256]),
    st.integers(1, 6),
    st.integers(2, 8),
    st.integers(0, 63),
    st.floats(1.5, 20),
)
def test_a_hot_key_group_is_left_alone(
    key_groups: int, before: int, after: int, hot: int, factor: float
) -> None:
    """Of a key group that is more than a shard's share, the others leave the shard."""
    load = np.ones(key_groups)
    # So that it has `factor` times a shard's share of the whole.
    share = min(0.9, factor / after)
    load[hot] = share / (1 - share) * (key_groups - 1)
    made = rescaled(placed(key_groups, before), after, load)
    check(made)
    weights = 0.9 * load / load.sum() + 0.1 / key_groups
    if weights[hot] <= 1 / after:
        return
    mine = made.target.owners[hot]
    company = loads(made.target, weights)[mine] - weights[hot]
    target = (1 - weights[hot]) / (after - 1)
    assert company <= TOLERANCE * target + weights.min()
    others = np.delete(loads(made.target, weights), mine)
    assert others.max() <= (1 + TOLERANCE) * target + weights.min()


def test_a_hot_key_group_stays_where_it_is() -> None:
    load = np.ones(256)
    load[10] = 500
    made = rescaled(placed(256, 2), 4, load)
    assert 10 not in made.moved


def test_two_hot_key_groups_part() -> None:
    load = np.ones(256)
    load[[10, 20]] = 500
    made = rescaled(placed(256, 2), 4, load)
    assert made.target.owners[10] != made.target.owners[20]
    shares = loads(made.target, load) / load.sum()
    assert shares.max() < 0.45


def test_nothing_moves_when_all_is_well() -> None:
    current = placed(256, 4)
    assert rescaled(current, 4).moved == ()
    load = np.random.default_rng(1).uniform(0.9, 1.1, size=256)
    assert rescaled(current, 4, load).moved == ()


def test_standbys_are_taken_first() -> None:
    """What moves goes where it is followed already, as long as that does not overload."""
    current = placed(16, 2)
    slots = [
        Slot("executor-0", keeps=0),
        Slot("executor-1", keeps=1),
        Slot("executor-2"),
        Slot("executor-3"),
    ]
    following = {"executor-2": (0, 1, 8, 9), "executor-3": (2, 3, 10, 11)}
    made = plan(current, slots, standbys=following)
    check(made)
    assert len(made.moved) == 8
    for group in made.moved:
        assert group in following[made.destination(group)]


@given(st.integers(2, 6), st.data())
def test_recovery_moves_only_what_was_lost(shards: int, data: st.DataObject) -> None:
    load = np.random.default_rng(data.draw(st.integers(0, 999))).pareto(1, size=64)
    owner = st.integers(0, shards - 1)
    owners = data.draw(st.lists(owner, min_size=64, max_size=64))
    current = Assignment(shards, tuple(owners), tuple(f"executor-{s}" for s in range(shards)))
    left = executors(shards)
    del left[data.draw(st.integers(0, shards - 1))]
    slots = surviving_slots(current, left)
    made = plan(current, slots, load if data.draw(st.booleans()) else None, only_lost=True)
    check(made)
    alive = {e.name for e in left}
    for group in made.moved:
        assert current.executor_of(current.owners[group]) not in alive
    assert set(made.target.executors) <= alive


def test_recovery_spreads_over_all_that_are_left() -> None:
    current = placed(256, 4)
    made = plan(current, surviving_slots(current, executors(4)[:3]), only_lost=True)
    assert len(made.moved) == 64
    counts = np.bincount(made.target.owners)
    assert counts.max() - counts.min() <= 1


@given(st.data())
def test_after_some_moved_the_rest_is_left(data: st.DataObject) -> None:
    """However a plan is cut into steps, it ends at its target, and keeps its promises between."""
    before, after = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    made = rescaled(placed(32, before), after)
    wanted = set(made.moved)
    while made.moved:
        chunk = frozenset(data.draw(st.sets(st.sampled_from(made.moved), min_size=1), "chunk"))
        left = made.after(chunk)
        check(left)
        assert left.target == made.target
        assert set(left.moved) == set(made.moved) - chunk
        for group in range(32):
            place = left.current.executor_of(left.current.owners[group])
            if group in chunk:
                assert place == made.destination(group)
            else:
                assert place == made.current.executor_of(made.current.owners[group])
        wanted -= chunk
        made = left
    assert not wanted
    assert made.current == made.target


def test_relocating_to_a_shard_that_is_there() -> None:
    current = placed(8, 2)
    made = relocate(current, [0, 5], Slot("executor-1", keeps=1))
    check(made)
    assert made.moved == (0,)
    assert made.destination(0) == "executor-1"
    assert made.target.owners == (1, 0, 0, 0, 1, 1, 1, 1)


def test_relocating_to_a_new_executor_opens_a_shard() -> None:
    made = relocate(placed(8, 2), [0, 5], Slot("executor-7"))
    check(made)
    assert made.moved == (0, 5)
    assert made.target.shards == 3
    assert made.target.executors == ("executor-0", "executor-1", "executor-7")


def test_relocating_everything_closes_a_shard() -> None:
    made = relocate(placed(8, 2), [0, 1, 2, 3], Slot("executor-1", keeps=1))
    check(made)
    assert made.target.shards == 1
    assert made.target.executors == ("executor-1",)
    assert made.moved == (0, 1, 2, 3)
