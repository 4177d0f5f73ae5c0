"""Patterns matched by backtracking, in plain Python: what the operator is compared with.

It goes through the tree of a pattern as it is written, without an automaton, and reads conditions
as they are written, without a program. Matches of a start come in order of preference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.operators.pattern import tree
from millrace.operators.pattern.expressions import Call, Current, Expression, Literal, Reference
from millrace.operators.pattern.matcher import EVERY, PAST_LAST, TO_FIRST, TO_NEXT, After

Row = dict[str, Any]
Path = tuple[tuple[str, int], ...]
"""Variables and numbers of rows."""

MATCH, OPEN = "match", "open"
Event = tuple[str, Path]


@dataclass(frozen=True)
class Guards:
    not_next: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def __add__(self, other: Guards) -> Guards:
        return Guards(self.not_next + other.not_next, self.never + other.never)


Then = Callable[[int, Path, Guards], Iterator[Event]]


@dataclass
class Results:
    matches: list[Path] = field(default_factory=list)
    timeouts: list[Path] = field(default_factory=list)


class Backtracking:
    def __init__(
        self,
        sequence: tree.Sequence,
        conditions: dict[str, Expression | None],
        within: int,
        rows: Sequence[Row],
        time: str,
    ) -> None:
        self.sequence = sequence
        self.conditions = conditions
        self.within = within
        self.rows = rows
        self.time = time
        self.end = 0

    def results(self, after: After) -> Results:
        """All that rows without an end of time before the last deadline give."""
        found = Results()
        start = 0
        while start < len(self.rows):
            events = list(self.events(start))
            matches = [path for what, path in events if what == MATCH]
            opened = [path for what, path in events if what == OPEN]
            following = start + 1
            if after.mode == EVERY:
                found.matches += matches
            elif matches:
                found.matches.append(matches[0])
                following = self.following(after, matches[0])
            if not matches and opened:
                found.timeouts.append(opened[0])
            start = following
        return found

    def following(self, after: After, match: Path) -> int:
        if after.mode == TO_NEXT:
            return match[0][1] + 1
        if after.mode == PAST_LAST:
            return match[-1][1] + 1
        named = [row for variable, row in match if variable == after.variable]
        if not named:
            return match[0][1] + 1
        return named[0] if after.mode == TO_FIRST else named[-1]

    def events(self, start: int) -> Iterator[Event]:
        limit = self.rows[start][self.time] + self.within
        self.end = start
        while self.end < len(self.rows) and self.rows[self.end][self.time] < limit:
            self.end += 1
        return self.of_sequence(self.sequence, "first", start, (), Guards(), self.finish)

    def finish(self, at: int, path: Path, guards: Guards) -> Iterator[Event]:
        rest = range(at, self.end)
        for row in rest[:1]:
            if any(self.holds(name, row, path) for name in guards.not_next):
                return
        for row in rest:
            if any(self.holds(name, row, path) for name in guards.never):
                return
        yield MATCH, path

    def of_sequence(
        self, sequence: tree.Sequence, way: str, at: int, path: Path, guards: Guards, then: Then
    ) -> Iterator[Event]:
        def of_rest(number: int) -> Then:
            def go(at: int, path: Path, guards: Guards) -> Iterator[Event]:
                if number == len(sequence.elements):
                    behind = Guards(sequence.not_next, sequence.not_followed_by)
                    yield from then(at, path, guards + behind)
                    return
                element = sequence.elements[number]
                own = Guards(element.not_next, element.not_followed_by)
                how = way if number == 0 else element.way
                yield from self.of_element(
                    element, how, at, path, guards + own, of_rest(number + 1)
                )

            return go

        yield from of_rest(0)(at, path, guards)

    def of_element(
        self, element: tree.Element, way: str, at: int, path: Path, guards: Guards, then: Then
    ) -> Iterator[Event]:
        def after(times: int) -> Then:
            """What may come after some occurrences."""

            def go(at: int, path: Path, guards: Guards) -> Iterator[Event]:
                more = element.most is None or times < element.most
                enough = times >= element.least or (times == 0 and element.optional)
                how = way if times == 0 else element.each
                again = self.of_one(element, how, at, path, guards, after(times + 1))
                if more and element.greedy:
                    yield from again
                if enough:
                    yield from then(at, path, guards)
                if more and not element.greedy:
                    yield from again

            return go

        yield from after(0)(at, path, guards)

    def of_one(
        self, element: tree.Element, way: str, at: int, path: Path, guards: Guards, then: Then
    ) -> Iterator[Event]:
        if element.variable is None:
            for choice in element.choices:
                yield from self.of_sequence(choice, way, at, path, guards, then)
            return
        if not path:
            # Whatever is left out before it, a match begins with the row that starts it; and what
            # must not come before that is behind nothing.
            way, guards = "first", Guards()
        for row in range(at, self.end):
            forbidden = guards.never + (guards.not_next if row == at else ())
            if any(self.holds(name, row, path) for name in forbidden):
                return
            if self.holds(element.variable, row, path):
                yield from then(row + 1, (*path, (element.variable, row)), Guards())
                if way != tree.FOLLOWED_BY_ANY:
                    return
            elif way == tree.NEXT:
                return
            if way == "first":
                return
        if way != "first":
            yield OPEN, path

    def holds(self, variable: str, row: int, path: Path) -> bool:
        condition = self.conditions.get(variable)
        return condition is None or self.value(condition, row, path) is True

    def value(self, expression: Expression, row: int, path: Path) -> Any:
        if isinstance(expression, Literal):
            return expression.value
        if isinstance(expression, Current):
            return self.rows[row][expression.column]
        if isinstance(expression, Reference):
            return self.reference(expression, path)
        assert isinstance(expression, Call)
        values = [self.value(argument, row, path) for argument in expression.arguments]
        return called(expression.operation, values)

    def reference(self, reference: Reference, path: Path) -> Any:
        taken = [
            self.rows[row]
            for variable, row in path
            if reference.variable is None or variable == reference.variable
        ]
        if reference.column is None:
            return len(taken)
        values = [row[reference.column] for row in taken]
        if reference.function == "first":
            return values[0] if values else None
        if reference.function == "last":
            return values[-1 - reference.back] if len(values) > reference.back else None
        known = [value for value in values if value is not None]
        if reference.function == "count":
            return len(known)
        if not known:
            return None
        total: Callable[[list[Any]], Any] = {
            "min": min,
            "max": max,
            "sum": sum,
            "mean": lambda found: sum(found) / len(found),
        }[reference.function]
        return total(known)


def called(operation: str, values: list[Any]) -> Any:
    if operation == "is null":
        return values[0] is None
    if operation == "is not null":
        return values[0] is not None
    if operation == "coalesce":
        return values[1] if values[0] is None else values[0]
    if operation == "<=>":
        return values[0] == values[1]
    if operation == "and":
        return False if False in values else None if None in values else True
    if operation == "or":
        return True if True in values else None if None in values else False
    if None in values:
        return None
    if operation == "/" and values[1] == 0:
        return None
    calculations: dict[str, Callable[..., Any]] = {
        "not": lambda x: not x,
        "negative": lambda x: -x,
        "abs": abs,
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "/": lambda x, y: x / y,
        "=": lambda x, y: x == y,
        "<>": lambda x, y: x != y,
        "<": lambda x, y: x < y,
        "<=": lambda x, y: x <= y,
        ">": lambda x, y: x > y,
        ">=": lambda x, y: x >= y,
    }
    return calculations[operation](*values)
