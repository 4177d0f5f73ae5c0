"""A pattern compiled: the states in which a partial match waits, and what follows each of them.

A state is what a partial match waits for next: a row of a variable, in one of three ways, with rows
that must not come before it. Taking a row leads to other states, in order of preference, or to the
end: a match. So a partial match is a state and the rows that it has taken.

    a next b+ followed_by c         a ──next──> b ──followed_by──> b, c ──followed_by──> end

Bounded repetitions are written out. No state is entered in two ways with the same rows: a pattern
in which that could happen is refused, so every partial match has rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.errors import PatternError
from millrace.operators.pattern import tree
from millrace.operators.pattern.tree import Element, Sequence

FIRST = "first"
"""The way of a match's first row."""

END = -1
"""The target behind the last row of a match."""

AT_END, AFTER_NEXT = -1, -2
"""In place of a variable: a match once the pattern's time is over, or once the next row, if there
is one, is not a forbidden one."""


@dataclass(frozen=True)
class State:
    """What a partial match waits for."""

    variable: int
    """Its number, or `AT_END`, or `AFTER_NEXT`."""
    way: str
    not_next: tuple[int, ...]
    """Variables that the first row after the last one taken must not be."""
    never: tuple[int, ...]
    """Variables that no row may be, the one that is taken included."""
    targets: tuple[int, ...]
    """What follows a row that is taken: numbers of states, or `END`; preferred ones first."""


@dataclass(frozen=True)
class Automaton:
    """A compiled pattern."""

    variables: tuple[str, ...]
    """The names of variables by number: first those of rows that are matched, then the others."""
    states: tuple[State, ...]
    initial: tuple[int, ...]
    """The states in which the first row of a match is taken, preferred ones first."""

    @property
    def is_relaxed(self) -> bool:
        """Whether rows that are of no variable make no difference to any match."""
        return not any(state.way == tree.NEXT or state.not_next for state in self.states)


@dataclass(frozen=True)
class _Guards:
    not_next: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()

    def __or__(self, other: _Guards) -> _Guards:
        return _Guards(self.not_next | other.not_next, self.never | other.never)


_NONE = _Guards()

_Then = Callable[[_Guards], list[int]]
"""What may come next, given the guards of what was left out."""

_Part = Callable[[str, _Guards], list[int]]
"""How a part of a pattern is entered: its states for a way and guards, preferred ones first."""


@dataclass(eq=False)
class _Position:
    """A place of a variable in the pattern with its repetitions written out."""

    then: _Then


@dataclass
class _Built:
    variable: int
    way: str
    guards: _Guards
    position: _Position | None


class _Compiler:
    """Parts are made from the last to the first; states when they are first entered."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.states: list[_Built] = []
        self._numbers = numbers
        self._known: dict[tuple[_Position | None, int, str, _Guards], int] = {}
        self._positions = 0

    def _state(
        self, variable: int, way: str, guards: _Guards, position: _Position | None = None
    ) -> int:
        key = (position, variable, way, guards)
        if key not in self._known:
            self._known[key] = len(self.states)
            self.states.append(_Built(variable, way, guards, position))
        return self._known[key]

    def _guards(self, not_next: tuple[str, ...], never: tuple[str, ...]) -> _Guards:
        return _Guards(
            frozenset(self._numbers[name] for name in not_next),
            frozenset(self._numbers[name] for name in never),
        )

    def end(self, guards: _Guards) -> list[int]:
        if guards == _NONE:
            return [END]
        return [self._state(AT_END if guards.never else AFTER_NEXT, tree.FOLLOWED_BY, guards)]

    def sequence(self, sequence: Sequence, then: _Then) -> _Part:
        behind = self._guards(sequence.not_next, sequence.not_followed_by)

        def after(guards: _Guards) -> list[int]:
            return then(guards | behind)

        part = self._element(sequence.elements[-1], after)
        for i in range(len(sequence.elements) - 2, -1, -1):
            part = self._element(sequence.elements[i], _entered(part, sequence.elements[i + 1].way))
        return part

    def _element(self, element: Element, then: _Then) -> _Part:
        part = self._occurrences(element, then)
        own = self._guards(element.not_next, element.not_followed_by)
        return lambda way, guards: part(way, guards | own)

    def _occurrences(self, element: Element, then: _Then) -> _Part:
        """An element's occurrences: those that must be, then those that may be."""
        each = element.each

        def either(more: list[int], fewer: list[int]) -> list[int]:
            return more + fewer if element.greedy else fewer + more

        def perhaps(part: _Part) -> _Then:
            return lambda guards: either(part(each, guards), then(guards))

        part: _Part | None = None
        if element.most is None:
            part = self._loop(element, perhaps)
        else:
            for _ in range(element.most - element.least + 1):
                part = self._one(element, then if part is None else perhaps(part))
        assert part is not None
        # The first of these is one that must be.
        for _ in range(element.least - 1):
            part = self._one(element, _entered(part, each))
        if not element.optional:
            return part
        present = part
        return lambda way, guards: either(present(way, guards), then(guards))

    def _loop(self, element: Element, perhaps: Callable[[_Part], _Then]) -> _Part:
        parts: list[_Part] = []
        parts.append(self._one(element, lambda guards: perhaps(parts[0])(guards)))
        return parts[0]

    def _one(self, element: Element, then: _Then) -> _Part:
        """A single occurrence."""
        if element.variable is None:
            choices = [self.sequence(choice, then) for choice in element.choices]
            return lambda way, guards: [s for choice in choices for s in choice(way, guards)]
        self._positions += 1
        if self._positions > tree.MOST_POSITIONS:
            raise PatternError(
                f"the pattern has more than {tree.MOST_POSITIONS:,} rows that it counts one by "
                "one. Use smaller numbers in times(), or one_or_more()."
            )
        variable, position = self._numbers[element.variable], _Position(then)
        return lambda way, guards: [self._state(variable, way, guards, position)]


def _entered(part: _Part, way: str) -> _Then:
    return lambda guards: part(way, guards)


def compile_pattern(sequence: Sequence) -> Automaton:
    """The automaton of a pattern; raises `PatternError` if there is none."""
    tree.check(sequence)
    names = (*tree.variables(sequence), *tree.absent(sequence))
    compiler = _Compiler({name: number for number, name in enumerate(names)})
    initial = compiler.sequence(sequence, compiler.end)(FIRST, _NONE)
    _check_one_way(names, compiler, initial)
    states: list[State] = []
    while len(states) < len(compiler.states):
        # Entering what follows a state may add others.
        built = compiler.states[len(states)]
        targets = [] if built.position is None else built.position.then(_NONE)
        _check_one_way(names, compiler, targets)
        states.append(
            State(
                built.variable,
                built.way,
                tuple(sorted(built.guards.not_next)),
                tuple(sorted(built.guards.never)),
                tuple(targets),
            )
        )
    return Automaton(names, tuple(states), tuple(initial))


def _check_one_way(names: tuple[str, ...], compiler: _Compiler, targets: list[int]) -> None:
    numbers = [compiler.states[target].variable for target in targets if target != END]
    for number in numbers:
        if number >= 0 and numbers.count(number) > 1:
            raise PatternError(
                f"the pattern can match the same rows in two ways: {names[number]!r} repeats, and "
                "so does what it is in. Let one of the two repeat."
            )
