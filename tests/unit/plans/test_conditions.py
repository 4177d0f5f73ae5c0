"""Conditions of joins, taken apart, compared with what rows satisfy."""

from __future__ import annotations

import itertools

import pytest

from millrace.plans.conditions import FOREVER_US, take_apart
from millrace.plans.nodes import Attribute, Expression

LEFT = [Attribute(1, "k", "string"), Attribute(2, "at", "timestamp", 1000)]
RIGHT = [
    Attribute(3, "k", "string"),
    Attribute(4, "shown", "timestamp", 1000),
    Attribute(5, "n", "int"),
]


def column(number: int) -> Expression:
    return Expression("AttributeReference", f"c{number}", attribute=number)


def interval(us: int) -> Expression:
    return Expression("Literal", f"{us} us", interval_us=us)


def of(kind: str, *children: Expression) -> Expression:
    return Expression(kind, f"{kind}({', '.join(c.sql for c in children)})", children)


def plus(number: int, us: int) -> Expression:
    shifted = of("TimestampAddInterval", column(number), interval(us))
    return of("Cast", shifted)


COMPARE = {
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "EqualTo": lambda a, b: a == b,
}


@pytest.mark.parametrize("kind", COMPARE)
@pytest.mark.parametrize("left_first", [True, False])
def test_a_bound_holds_for_the_pairs_that_the_comparison_holds_for(
    kind: str, left_first: bool
) -> None:
    numbers = (2, 4) if left_first else (4, 2)
    for first_us, second_us in itertools.product((-3, 0, 2), repeat=2):
        condition = of(kind, plus(numbers[0], first_us), plus(numbers[1], second_us))
        found = take_apart(condition, LEFT, RIGHT)
        assert found.times == (LEFT[1], RIGHT[1])
        for left, right in itertools.product(range(-8, 9), repeat=2):
            times = (left, right) if left_first else (right, left)
            holds = COMPARE[kind](times[0] + first_us, times[1] + second_us)
            assert (found.lower_us <= right - left <= found.upper_us) == holds


def test_several_bounds_are_met_together() -> None:
    later = of("GreaterThanOrEqual", column(4), column(2))
    earlier = of("LessThanOrEqual", column(4), plus(2, 50))
    keys = of("EqualTo", column(3), column(1))
    found = take_apart(of("And", of("And", keys, later), earlier), LEFT, RIGHT)
    assert (found.lower_us, found.upper_us) == (0, 50)
    assert [(pair.left, pair.right) for pair in found.keys] == [(column(1), column(3))]
    assert found.rest == ()


def test_a_subtracted_interval_and_a_negated_one_are_the_same() -> None:
    subtracted = of("Subtract", column(2), interval(7))
    negated = of("TimestampAddInterval", column(2), of("UnaryMinus", interval(7)))
    for shifted in (subtracted, negated):
        found = take_apart(of("GreaterThanOrEqual", column(4), shifted), LEFT, RIGHT)
        assert (found.lower_us, found.upper_us) == (-7, FOREVER_US)


def test_what_is_no_bound_of_event_times_is_left_over() -> None:
    without_watermark = [Attribute(a.id, a.name, a.type) for a in RIGHT]
    bound = of("GreaterThanOrEqual", column(4), column(2))
    found = take_apart(bound, LEFT, without_watermark)
    assert (found.times, found.rest) == (None, (bound,))
    other = of("GreaterThan", column(5), column(2))
    assert take_apart(other, LEFT, RIGHT).rest == (other,)
    either = of("Or", bound, bound)
    assert take_apart(either, LEFT, RIGHT).rest == (either,)


def test_an_equality_of_one_stream_is_no_key() -> None:
    same_side = of("EqualTo", column(3), column(5))
    mixed = of("EqualTo", of("Add", column(1), column(3)), column(5))
    found = take_apart(of("And", same_side, mixed), LEFT, RIGHT)
    assert (found.keys, found.rest) == ((), (same_side, mixed))


def test_equal_event_times_are_a_key_and_a_bound() -> None:
    found = take_apart(of("EqualTo", column(2), column(4)), LEFT, RIGHT)
    assert (len(found.keys), found.lower_us, found.upper_us) == (1, 0, 0)


def test_bounds_between_different_columns_are_left_over() -> None:
    more = [*RIGHT, Attribute(6, "also", "timestamp", 1000)]
    bounds = [of("LessThan", column(2), column(4)), of("LessThan", column(2), column(6))]
    found = take_apart(of("And", *bounds), LEFT, more)
    assert (found.times, found.rest) == (None, tuple(bounds))
