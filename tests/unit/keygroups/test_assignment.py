from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import MalformedError, UsageError
from millrace.ids import Shard
from millrace.keygroups import Assignment


@pytest.mark.parametrize("key_groups", [2, 4, 256])
def test_even_gives_contiguous_ranges_that_differ_by_at_most_one(key_groups: int) -> None:
    for shards in range(1, key_groups + 1):
        assignment = Assignment.even(key_groups, shards)
        sizes = [len(assignment.groups_of(Shard(s))) for s in range(shards)]
        assert sum(sizes) == key_groups
        assert max(sizes) - min(sizes) <= 1
        assert list(assignment.owners) == sorted(assignment.owners)


@pytest.mark.parametrize("shards", [-1, 0, 257, 10_000])
def test_a_parallelism_that_cannot_be_is_refused(shards: int) -> None:
    with pytest.raises(UsageError, match=f"parallelism={shards}.*between 1 and.*256"):
        Assignment.even(256, shards)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    shards = draw(st.integers(1, 9))
    owners = draw(st.lists(st.integers(0, shards - 1), min_size=16, max_size=16))
    return Assignment(shards, tuple(owners))


@given(assignments())
def test_every_key_group_has_one_owner(assignment: Assignment) -> None:
    parts = [assignment.groups_of(Shard(s)) for s in range(assignment.shards)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(assignment.key_groups))
    assert assignment.key_groups == 16


@given(assignments())
def test_json_round_trip_even_with_idle_shards(assignment: Assignment) -> None:
    data = json.loads(json.dumps(assignment.to_json()))
    assert Assignment.from_json(data, assignment.key_groups) == assignment


def test_a_key_group_without_an_owner_is_corruption() -> None:
    data = {"shards": 2, "groups": ["0-1", "3"]}
    with pytest.raises(MalformedError, match="key groups 2 no owner"):
        Assignment.from_json(data, 4)


@pytest.mark.parametrize(
    "data",
    [
        {"shards": 2, "groups": ["0-2", "2-3"]},
        {"shards": 1, "groups": ["0-1", "2-3"]},
        {"shards": 1, "groups": ["0-4"]},
    ],
    ids=["owned twice", "more owners than shards", "beyond the last"],
)
def test_an_assignment_that_breaks_the_invariant_is_corruption(data: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match=r"assignment|key groups below 4"):
        Assignment.from_json(data, 4)
