"""Where shards may run, and who stands by."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.keygroups import Assignment
from millrace.reconfigure.cluster import Executor
from millrace.reconfigure.planner import choose_slots, choose_standbys, surviving_slots

ONE_CORE = [Executor(f"executor-{i}", "host", 1) for i in range(4)]


def placed(key_groups: int, *names: str) -> Assignment:
    return Assignment.even(key_groups, len(names)).placed(names)


def test_shards_stay_and_new_ones_go_where_room_is() -> None:
    current = placed(8, "executor-2", "executor-0")
    slots = choose_slots(current, 4, ONE_CORE)
    assert [(s.executor, s.keeps) for s in slots] == [
        ("executor-2", 0),
        ("executor-0", 1),
        ("executor-1", None),
        ("executor-3", None),
    ]


def test_the_shards_with_most_state_are_kept() -> None:
    owners = (0, 1, 1, 1, 2, 2, 2, 2)
    current = Assignment(3, owners, ("executor-0", "executor-1", "executor-2"))
    slots = choose_slots(current, 2, ONE_CORE)
    assert [(s.executor, s.keeps) for s in slots] == [("executor-1", 1), ("executor-2", 2)]


def test_drained_executors_are_avoided_unless_there_is_no_other() -> None:
    current = placed(8, "executor-0", "executor-1")
    slots = choose_slots(current, 2, ONE_CORE[:3], avoid={"executor-0"})
    assert [(s.executor, s.keeps) for s in slots] == [("executor-1", 1), ("executor-2", None)]
    slots = choose_slots(current, 2, ONE_CORE[:1], avoid={"executor-0"})
    assert [s.executor for s in slots] == ["executor-0", "executor-0"]


def test_shards_that_were_anywhere_go_on_as_what_they_are() -> None:
    slots = choose_slots(Assignment.even(8, 3), 4, ONE_CORE)
    assert [s.keeps for s in slots] == [0, 1, 2, None]
    assert len({s.executor for s in slots}) == 4


def test_without_executors_shards_are_anywhere() -> None:
    slots = choose_slots(placed(8, "executor-0", "executor-1"), 3, [])
    assert [(s.executor, s.keeps) for s in slots] == [("", 0), ("", 1), ("", None)]


def test_more_cores_take_more_shards() -> None:
    big = [Executor("big", "host", 3), Executor("small", "host", 1)]
    slots = choose_slots(Assignment.even(16, 4), 4, big)
    assert Counter(s.executor for s in slots) == {"big": 3, "small": 1}


def test_crowded_shards_spread_when_executors_join() -> None:
    """All shards on the executor that was up first do not stay there."""
    current = placed(16, *["executor-0"] * 4)
    slots = choose_slots(current, 4, ONE_CORE)
    assert Counter(s.executor for s in slots) == dict.fromkeys((e.name for e in ONE_CORE), 1)
    assert [s.keeps for s in slots if s.executor == "executor-0"] == [0]


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.data(),
)
def test_choosing_again_changes_nothing(
    shards: int, before: int, cores: list[int], data: st.DataObject
) -> None:
    """So a move to the slots that were chosen is never followed by another one."""
    executors = [Executor(f"executor-{i}", "host", c) for i, c in enumerate(cores)]
    names = [f"executor-{i}" for i in range(6)]
    where = data.draw(st.lists(st.sampled_from(names), min_size=before, max_size=before))
    slots = choose_slots(placed(64, *where), shards, executors)
    assert len(slots) == shards
    chosen = placed(64, *(s.executor for s in slots))
    again = choose_slots(chosen, shards, executors)
    assert [s.executor for s in again] == [s.executor for s in slots]
    assert [s.keeps for s in again] == list(range(shards))


def test_survivors_keep_their_shards() -> None:
    current = placed(8, "executor-1", "executor-9", "executor-0")
    left = [Executor("executor-0", "host", 1), Executor("executor-1", "host", 1)]
    slots = surviving_slots(current, left)
    assert [(s.executor, s.keeps) for s in slots] == [("executor-1", 0), ("executor-0", 2)]
    assert surviving_slots(current, []) == []


@pytest.mark.parametrize("replicas", [0, 1, 2, 3])
def test_every_key_group_has_its_standbys(replicas: int) -> None:
    current = placed(32, "executor-0", "executor-1", "executor-2")
    found = choose_standbys(current, ONE_CORE[:3], replicas)
    followers = Counter(g for groups in found.values() for g in groups)
    assert followers == (dict.fromkeys(range(32), min(replicas, 2)) if replicas else {})
    for name, groups in found.items():
        assert list(groups) == sorted(set(groups))
        for group in groups:
            assert current.executor_of(current.owners[group]) != name


def test_idle_executors_stand_by_first() -> None:
    current = placed(32, "executor-0", "executor-1")
    assert set(choose_standbys(current, ONE_CORE, 1)) == {"executor-2", "executor-3"}


def test_standbys_of_one_owner_are_spread() -> None:
    """After a death every one that is left takes a part."""
    current = placed(30, "executor-0", "executor-1", "executor-2", "executor-3")
    found = choose_standbys(current, ONE_CORE, 1)
    mine = {g for g, s in enumerate(current.owners) if s == 0}
    shares = [len(mine & set(found[f"executor-{i}"])) for i in (1, 2, 3)]
    assert sum(shares) == len(mine)
    assert max(shares) - min(shares) <= 1


def test_one_executor_has_no_standby() -> None:
    assert choose_standbys(placed(8, "executor-0"), ONE_CORE[:1], 2) == {}
