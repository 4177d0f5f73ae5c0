"""How task state is split and merged: the rules, and exact totals over any assignments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from millrace.errors import ProcessorError, StateTypeError
from millrace.operators.process.shared.declarations import (
    concatenated,
    copies,
    divided_array,
    divided_float,
    divided_integer,
)
from millrace.operators.process.shared.redistribution import Holding, redistributed

WHAT = "task state 'x' of operator 'y'"


def flip(before: list[Holding], owners: Sequence[int], split: Any, merge: Any) -> list[Holding]:
    """All shards under a new assignment."""
    after = []
    for shard in sorted(set(owners)):
        value = redistributed(before, owners, shard, split, merge, WHAT)
        if value is not None:
            groups = tuple(g for g, owner in enumerate(owners) if owner == shard)
            after.append(Holding(groups, value))
    return after


assignments = st.lists(st.integers(0, 7), min_size=16, max_size=16)


@given(st.lists(assignments, min_size=1, max_size=6), st.integers(-(2**62), 2**62))
def test_divided_integers_keep_their_sum(moves: list[list[int]], value: int) -> None:
    held = [Holding(tuple(range(16)), value)]
    for owners in moves:
        held = flip(held, owners, divided_integer, sum)
        assert sum(h.value for h in held) == value
    assert flip(held, [0] * 16, divided_integer, sum) == [Holding(tuple(range(16)), value)]


@given(st.lists(assignments, min_size=1, max_size=6), st.lists(st.integers(), max_size=40))
def test_divided_arrays_keep_their_elements(moves: list[list[int]], value: list[int]) -> None:
    held = [Holding(tuple(range(16)), value)]
    for owners in moves:
        held = flip(held, owners, divided_array, concatenated)
        assert sorted(x for h in held for x in h.value) == sorted(value)


@given(assignments, assignments)
def test_every_key_group_has_one_value_behind_it(first: list[int], second: list[int]) -> None:
    held = [Holding(tuple(g for g in range(16) if first[g] == s), s) for s in sorted(set(first))]
    after = flip(held, second, copies, max)
    assert sorted(g for h in after for g in h.groups) == list(range(16))
    for holding in after:
        assert holding.value == max(first[g] for g in holding.groups)


def test_parts_are_in_order_of_key_groups_and_shares_are_numbers_of_key_groups() -> None:
    asked: list[Any] = []

    def split(value: Any, shares: list[int]) -> list[Any]:
        asked.append((value, shares))
        return [f"{value}{i}" for i in range(len(shares))]

    before = [Holding((2, 3, 6), "b"), Holding((0, 1), "a"), Holding((4, 5, 7), "c")]
    owners = [3, 3, 1, 3, 1, 1, 3, 1]
    joined = [redistributed(before, owners, s, split, ",".join, WHAT) for s in range(4)]
    assert joined == [None, "b0,c", None, "a,b1"]
    assert asked == [("b", [1, 2]), ("b", [1, 2])]


def test_nothing_is_split_or_merged_that_stays_together() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    before = [Holding((0, 1), "a"), Holding((2, 3), "b")]
    assert flip(before, [1, 1, 0, 0], never, never) == [Holding((2, 3), "b"), Holding((0, 1), "a")]


def test_a_part_may_be_nothing() -> None:
    before = [Holding((0, 1), "a"), Holding((2, 3), "b")]

    def first_only(value: Any, shares: list[int]) -> list[Any]:
        return [value] + [None] * (len(shares) - 1)

    assert flip(before, [0, 1, 1, 1], first_only, "".join) == [
        Holding((0,), "a"),
        Holding((1, 2, 3), "b"),
    ]


def test_floats_are_divided_in_proportion() -> None:
    assert divided_float(8.0, [1, 3]) == [2.0, 6.0]


@pytest.mark.parametrize(
    ("split", "merge", "error", "named"),
    [
        (lambda v, s: 1 / 0, sum, ProcessorError, "split rule of task state 'x' of operator 'y'"),
        (lambda v, s: [v], sum, StateTypeError, "should return a list of 2 values"),
        (lambda v, s: v, sum, StateTypeError, "split rule of task state 'x'"),
        (lambda v, s: {1: v, 2: v}, sum, StateTypeError, "list of 2 values"),
        (lambda v: [v], sum, ProcessorError, "TypeError"),
        (copies, lambda vs: 1 / 0, ProcessorError, "merge rule of task state 'x'"),
        (copies, lambda vs: None, StateTypeError, "returned None for [5, 6]"),
    ],
)
def test_a_rule_that_is_wrong_is_named(split: Any, merge: Any, error: Any, named: str) -> None:
    before = [Holding((0, 1), 5), Holding((2, 3), 6)]
    with pytest.raises(error) as caught:
        redistributed(before, [0, 1, 1, 1], 1, split, merge, WHAT)
    assert named in str(caught.value)
    assert "fix the rule" in str(caught.value)
