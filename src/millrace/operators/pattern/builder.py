"""The builder of patterns: `pattern("small").where(...).followed_by("large").where(...)`.

Every call gives a new pattern; `where`, `times` and the like speak of the element named last. A
condition is kept as it was given: who matches the pattern knows what it can be.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import Any

from millrace.errors import PatternError, UsageError
from millrace.operators.pattern import tree
from millrace.operators.pattern.tree import FOLLOWED_BY, FOLLOWED_BY_ANY, NEXT, WAYS
from millrace.operators.process.durations import duration_us


def pattern(name: str) -> Pattern:
    """A pattern that begins with a row, called `name`."""
    if type(name) is not str or not name:
        raise PatternError(
            f"pattern({name!r}): give the first row of a match a name, such as mr.pattern('a'). A "
            "group is a pattern already: mr.one_of(...).next('b')."
        )
    return Pattern((_Step(name),))


def one_of(*patterns: Pattern) -> Pattern:
    """A choice between patterns; of two that match, the one that is given first is preferred.

    Of a single pattern, that pattern as a group: `one_of(p).one_or_more()` repeats the whole.
    """
    if not patterns or not all(isinstance(p, Pattern) for p in patterns):
        raise PatternError("one_of() takes patterns: one_of(mr.pattern('a'), mr.pattern('b')).")
    for p in patterns:
        _check_whole(p, "one_of()")
    return Pattern((_Step(None, choices=patterns),))


@dataclass(frozen=True)
class _Step:
    """An element as it is built, or a row that must not come."""

    name: str | None
    choices: tuple[Pattern, ...] = ()
    way: str = FOLLOWED_BY
    conditions: tuple[Any, ...] = ()
    is_absent: bool = False
    times: tuple[int, int | None] | None = None
    is_optional: bool = False
    each: str = FOLLOWED_BY
    greedy: bool = False

    @property
    def what(self) -> str:
        return "the choice" if self.name is None else repr(self.name)


@dataclass(frozen=True)
class Pattern:
    """What rows of a key are looked for, in order of event time. It is never changed."""

    _steps: tuple[_Step, ...]
    within_us: int | None = None

    def where(self, condition: Any) -> Pattern:
        """A condition on the row named last; several must all hold."""
        last = self._steps[-1]
        if last.name is None:
            raise PatternError(
                "where() after one_of(): a choice has no row of its own. Give each pattern of the "
                "choice its conditions."
            )
        return self._with_last(conditions=(*last.conditions, condition))

    def next(self, what: str | Pattern) -> Pattern:
        """Followed by the very next row of the key, which must be this one."""
        return self._then(what, NEXT)

    def followed_by(self, what: str | Pattern) -> Pattern:
        """Followed by the next row that fits; rows in between are left out."""
        return self._then(what, FOLLOWED_BY)

    def followed_by_any(self, what: str | Pattern) -> Pattern:
        """Followed by any row that fits; rows in between are left out, even ones that fit."""
        return self._then(what, FOLLOWED_BY_ANY)

    def not_next(self, name: str) -> Pattern:
        """The very next row must not be this one."""
        return self._absent(name, NEXT, "not_next()")

    def not_followed_by(self, name: str) -> Pattern:
        """No such row may come before the next element; at the end, before the time is over."""
        return self._absent(name, FOLLOWED_BY, "not_followed_by()")

    def one_or_more(self, *, greedy: bool = False, each: str = FOLLOWED_BY) -> Pattern:
        """The element named last occurs once or more often.

        `greedy` prefers more rows to fewer. `each` says how they follow each other: "next",
        "followed_by" or "followed_by_any".
        """
        return self._repeated(1, None, greedy, each)

    def times(
        self, least: int, most: int | None = None, *, greedy: bool = False, each: str = FOLLOWED_BY
    ) -> Pattern:
        """The element named last occurs `least` times, or `least` to `most` times."""
        return self._repeated(least, least if most is None else most, greedy, each)

    def times_or_more(
        self, least: int, *, greedy: bool = False, each: str = FOLLOWED_BY
    ) -> Pattern:
        """The element named last occurs `least` times or more often."""
        return self._repeated(least, None, greedy, each)

    def optional(self, *, greedy: bool | None = None) -> Pattern:
        """The element named last may be missing as a whole. `greedy` prefers that it is there."""
        self._check_occurs("optional()")
        given = {} if greedy is None else {"greedy": greedy}
        return self._with_last(is_optional=True, **given)

    def within(self, duration: str | dt.timedelta) -> Pattern:
        """The last row of a match is less than this long after the first."""
        try:
            within_us = duration_us(duration)
        except UsageError as error:
            raise PatternError(f"within({duration!r}): {error}") from error
        return dataclasses.replace(self, within_us=within_us)

    def conditions(self) -> dict[str, tuple[Any, ...]]:
        """The conditions of each variable."""
        found: dict[str, tuple[Any, ...]] = {}
        for step in self._steps:
            if step.name is not None:
                found[step.name] = step.conditions
            for choice in step.choices:
                found |= choice.conditions()
        return found

    def sequence(self) -> tree.Sequence:
        """The pattern as a tree."""
        elements: list[tree.Element] = []
        not_next: tuple[str, ...] = ()
        never: tuple[str, ...] = ()
        for step in self._steps:
            if step.is_absent:
                assert step.name is not None
                if step.way == NEXT:
                    not_next += (step.name,)
                else:
                    never += (step.name,)
                continue
            least, most = step.times or (1, 1)
            elements.append(
                tree.Element(
                    step.name,
                    tuple(choice.sequence() for choice in step.choices),
                    step.way,
                    max(least, 1),
                    most,
                    step.is_optional or least == 0,
                    step.each,
                    step.greedy,
                    not_next,
                    never,
                )
            )
            not_next = never = ()
        return tree.Sequence(tuple(elements), not_next, never)

    def _then(self, what: str | Pattern, way: str) -> Pattern:
        if isinstance(what, str):
            return dataclasses.replace(self, _steps=(*self._steps, _Step(what, way=way)))
        if not isinstance(what, Pattern):
            raise PatternError(f"{way}({what!r}): give the name of a row, or a pattern.")
        _check_whole(what, f"{way}()")
        first = dataclasses.replace(what._steps[0], way=way)
        return dataclasses.replace(self, _steps=(*self._steps, first, *what._steps[1:]))

    def _absent(self, name: str, way: str, what: str) -> Pattern:
        if not isinstance(name, str):
            raise PatternError(f"{what[:-1]}{name!r}): give the name of a row that must not come.")
        return dataclasses.replace(
            self, _steps=(*self._steps, _Step(name, way=way, is_absent=True))
        )

    def _repeated(self, least: int, most: int | None, greedy: bool, each: str) -> Pattern:
        self._check_occurs("times()")
        if each not in WAYS:
            raise PatternError(
                f"each={each!r}: rows follow each other by {', '.join(map(repr, WAYS))}."
            )
        numbers = [least] if most is None else [least, most]
        if any(type(n) is not int or n < 0 for n in numbers) or numbers[-1] < max(1, least):
            raise PatternError(
                f"{self._steps[-1].what} cannot occur times({least!r}, {most!r}). Give whole "
                "numbers, the larger one last and above 0."
            )
        if self._steps[-1].times is not None:
            raise PatternError(f"{self._steps[-1].what} says twice how often it occurs.")
        return self._with_last(times=(least, most), greedy=greedy, each=each)

    def _check_occurs(self, what: str) -> None:
        if self._steps[-1].is_absent:
            raise PatternError(
                f"{what} after {self._steps[-1].what}, a row that must not come. Say how often "
                "rows occur that must come."
            )

    def _with_last(self, **changes: Any) -> Pattern:
        last = dataclasses.replace(self._steps[-1], **changes)
        return dataclasses.replace(self, _steps=(*self._steps[:-1], last))


def _check_whole(part: Pattern, what: str) -> None:
    if part.within_us is not None:
        raise PatternError(
            f"{what} got a pattern with within(), which is for a whole pattern. Call within() last."
        )
