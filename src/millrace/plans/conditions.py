"""The condition of a join of two streams, taken apart: keys, bounds of time, and the rest.

A bound says how far the right row's event time may be from the left one's:
`r.at <= l.at + INTERVAL 1 HOUR` is an upper bound of an hour. Bounds are found only between columns
that have a watermark, because only those bound the state, in Spark as here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.plans.nodes import Attribute, Expression

FOREVER_US = 366 * 86_400_000_000 * 1000
"""A thousand years: no bound."""

_LATER = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_EARLIER = {"LessThan": 1, "LessThanOrEqual": 0}
_ADDING = ("TimestampAddInterval", "TimeAdd", "Add")
_SUBTRACTING = ("Subtract", "DatetimeSub")


@dataclass(frozen=True)
class Pair:
    """An equality of the two streams: expressions over the left one and over the right one."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Condition:
    """A condition, taken apart."""

    keys: tuple[Pair, ...]
    times: tuple[Attribute, Attribute] | None
    """The event times that bounds are between."""
    lower_us: int
    upper_us: int
    rest: tuple[Expression, ...]
    """What is neither an equality nor a bound."""

    @property
    def is_bounded(self) -> bool:
        return self.times is not None


def conjuncts(condition: Expression | None) -> Iterator[Expression]:
    """The parts of a condition that must all hold."""
    if condition is None:
        return
    if condition.kind == "And":
        for child in condition.children:
            yield from conjuncts(child)
    else:
        yield condition


def take_apart(
    condition: Expression | None, left: Sequence[Attribute], right: Sequence[Attribute]
) -> Condition:
    """A condition over the columns of two streams."""
    sides = frozenset(a.id for a in left), frozenset(a.id for a in right)
    times = {a.id: a for a in (*left, *right) if a.delay_ms is not None}
    keys: list[Pair] = []
    rest: list[Expression] = []
    bounds: list[tuple[Attribute, Attribute, int, int]] = []
    for part in conjuncts(condition):
        pair = _pair(part, sides)
        bound = _bound(part, sides, times)
        if bound is not None:
            bounds.append(bound)
        if pair is not None:
            keys.append(pair)
        elif bound is None:
            rest.append(part)
    used = {(first.id, second.id) for first, second, _, _ in bounds}
    if len(used) > 1:
        # Spark bounds the state by each of them; here there is one event time per stream.
        return Condition(tuple(keys), None, -FOREVER_US, FOREVER_US, _without_keys(condition, keys))
    lower = max([b[2] for b in bounds], default=-FOREVER_US)
    upper = min([b[3] for b in bounds], default=FOREVER_US)
    found = (bounds[0][0], bounds[0][1]) if bounds else None
    return Condition(tuple(keys), found, lower, upper, tuple(rest))


def _without_keys(condition: Expression | None, keys: Sequence[Pair]) -> tuple[Expression, ...]:
    equal = [{pair.left, pair.right} for pair in keys]
    return tuple(part for part in conjuncts(condition) if set(part.children) not in equal)


def _pair(part: Expression, sides: tuple[frozenset[int], frozenset[int]]) -> Pair | None:
    if part.kind != "EqualTo":
        return None
    first, second = part.children
    for left, right in ((first, second), (second, first)):
        of_left, of_right = left.attributes(), right.attributes()
        if of_left and of_right and of_left <= sides[0] and of_right <= sides[1]:
            return Pair(left, right)
    return None


def _bound(
    part: Expression,
    sides: tuple[frozenset[int], frozenset[int]],
    times: dict[int, Attribute],
) -> tuple[Attribute, Attribute, int, int] | None:
    """The event times of both streams, and the bounds on right less left."""
    if part.kind not in (*_LATER, *_EARLIER, "EqualTo"):
        return None
    first, second = (_shifted(child) for child in part.children)
    if first is None or second is None or not {first[0], second[0]} <= times.keys():
        return None
    # first + a  op  second + b   is   second - first  op'  a - b
    shift = first[1] - second[1]
    if first[0] in sides[0] and second[0] in sides[1]:
        left, right = first[0], second[0]
        later, earlier = _EARLIER, _LATER
    elif first[0] in sides[1] and second[0] in sides[0]:
        # right + a  op  left + b   is   right - left  op  b - a
        left, right, shift = second[0], first[0], -shift
        later, earlier = _LATER, _EARLIER
    else:
        return None
    pair = times[left], times[right]
    if part.kind == "EqualTo":
        return *pair, shift, shift
    if part.kind in later:
        return *pair, shift + later[part.kind], FOREVER_US
    return *pair, -FOREVER_US, shift - earlier[part.kind]


def _shifted(side: Expression) -> tuple[int, int] | None:
    """A column and what is added to it, in microseconds."""
    if side.attribute is not None:
        return side.attribute, 0
    if side.kind == "Cast" and len(side.children) == 1:
        return _shifted(side.children[0])
    if side.kind not in (*_ADDING, *_SUBTRACTING) or len(side.children) != 2:
        return None
    of, by = side.children
    if of.interval_us is not None and side.kind in _ADDING:
        of, by = by, of
    shifted, us = _shifted(of), _interval(by)
    if shifted is None or us is None:
        return None
    return shifted[0], shifted[1] + (-us if side.kind in _SUBTRACTING else us)


def _interval(expression: Expression) -> int | None:
    if expression.interval_us is not None:
        return expression.interval_us
    if expression.kind in ("UnaryMinus", "UnaryPositive") and len(expression.children) == 1:
        us = _interval(expression.children[0])
        if us is None:
            return None
        return -us if expression.kind == "UnaryMinus" else us
    if expression.kind == "Cast" and len(expression.children) == 1:
        return _interval(expression.children[0])
    return None
