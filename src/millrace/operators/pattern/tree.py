"""A pattern as a tree of frozen values: what the builder makes, a spec keeps and a compiler reads.

A sequence has elements. An element is a variable, or a choice between sequences, that occurs a
number of times; it says how it follows the element before it, and which rows must not come between.
Conditions are not part of the tree: it names variables, and conditions are kept beside it.

Invariant: a tree that `check` has passed names each variable once, can match no empty set of rows,
and can match a set of rows with the same variables in one way only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import PatternError

NEXT, FOLLOWED_BY, FOLLOWED_BY_ANY = "next", "followed_by", "followed_by_any"
WAYS = (NEXT, FOLLOWED_BY, FOLLOWED_BY_ANY)
"""How a row follows the one before it: it is the very next one; the next one that fits; or any one
that fits, however many others that fit are left out."""

MOST_POSITIONS = 1_000
"""Of a pattern with its bounded repetitions written out."""


@dataclass(frozen=True)
class Sequence:
    """Elements that follow each other."""

    elements: tuple[Element, ...]
    not_next: tuple[str, ...] = ()
    """Variables that the row behind the last element must not be."""
    not_followed_by: tuple[str, ...] = ()
    """Variables that no row behind the last element may be, until the pattern's time is over."""

    def to_json(self) -> dict[str, Any]:
        return {
            "elements": [element.to_json() for element in self.elements],
            "not_next": list(self.not_next),
            "not_followed_by": list(self.not_followed_by),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Sequence:
        return Sequence(
            tuple(Element.from_json(element) for element in data["elements"]),
            tuple(data["not_next"]),
            tuple(data["not_followed_by"]),
        )


@dataclass(frozen=True)
class Element:
    """A variable or a choice, how often it occurs, and how it follows what was before it."""

    variable: str | None = None
    choices: tuple[Sequence, ...] = ()
    """Instead of a variable: one of these, the first being preferred."""
    way: str = FOLLOWED_BY
    """How it follows the element before it."""
    least: int = 1
    most: int | None = 1
    """None: without limit."""
    optional: bool = False
    """Whether it may be missing altogether."""
    each: str = FOLLOWED_BY
    """How its occurrences follow each other."""
    greedy: bool = False
    """Whether more occurrences are preferred to fewer."""
    not_next: tuple[str, ...] = ()
    not_followed_by: tuple[str, ...] = ()
    """Variables that rows between the element before and this one must not be: the first of them,
    and any of them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "variable": self.variable,
            "choices": [choice.to_json() for choice in self.choices],
            "way": self.way,
            "least": self.least,
            "most": self.most,
            "optional": self.optional,
            "each": self.each,
            "greedy": self.greedy,
            "not_next": list(self.not_next),
            "not_followed_by": list(self.not_followed_by),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Element:
        return Element(
            data["variable"],
            tuple(Sequence.from_json(choice) for choice in data["choices"]),
            data["way"],
            data["least"],
            data["most"],
            data["optional"],
            data["each"],
            data["greedy"],
            tuple(data["not_next"]),
            tuple(data["not_followed_by"]),
        )


@dataclass
class _Names:
    matched: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def _walk(sequence: Sequence, names: _Names) -> None:
    for element in sequence.elements:
        names.absent += [*element.not_next, *element.not_followed_by]
        if element.variable is not None:
            names.matched.append(element.variable)
        for choice in element.choices:
            _walk(choice, names)
    names.absent += [*sequence.not_next, *sequence.not_followed_by]


def variables(sequence: Sequence) -> tuple[str, ...]:
    """The variables that rows of a match have, in the order in which the pattern names them."""
    names = _Names()
    _walk(sequence, names)
    return tuple(names.matched)


def absent(sequence: Sequence) -> tuple[str, ...]:
    """The variables that say which rows must not come."""
    names = _Names()
    _walk(sequence, names)
    return tuple(names.absent)


def can_be_empty(sequence: Sequence) -> bool:
    """Whether no row at all would be a match."""
    return all(_element_can_be_empty(element) for element in sequence.elements)


def _element_can_be_empty(element: Element) -> bool:
    return element.optional or any(map(can_be_empty, element.choices))


def first_variables(sequence: Sequence) -> set[str]:
    """The variables that the first row of a match can be."""
    found: set[str] = set()
    for element in sequence.elements:
        found |= {element.variable} if element.variable is not None else set()
        for choice in element.choices:
            found |= first_variables(choice)
        if not _element_can_be_empty(element):
            break
    return found


def _elements(sequence: Sequence) -> Iterator[Element]:
    for element in sequence.elements:
        yield element
        for choice in element.choices:
            yield from _elements(choice)


def check(sequence: Sequence) -> None:
    """Raise `PatternError` unless the tree can be made an automaton."""
    if can_be_empty(sequence):
        raise PatternError(
            "the pattern can match nothing at all: every element of it is optional. Make one of "
            "them necessary."
        )
    names = [*variables(sequence), *absent(sequence)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PatternError(
            f"the pattern has two variables called {twice[0]!r}. Give each a name of its own."
        )
    for element in _elements(sequence):
        _check_element(element)
    first = sequence.elements[0]
    if first.not_next or first.not_followed_by:
        raise PatternError(
            f"the pattern begins with not_next() or not_followed_by() of "
            f"{(*first.not_next, *first.not_followed_by)[0]!r}: there is no row before it. Begin "
            "with a row that must come."
        )


def _check_element(element: Element) -> None:
    what = repr(element.variable) if element.variable is not None else "a choice"
    for choice in element.choices:
        if can_be_empty(choice):
            raise PatternError(
                "a choice between patterns has one that can match nothing. Make the choice "
                "optional() instead."
            )
        if choice.not_next or choice.not_followed_by:
            raise PatternError(
                "a choice between patterns has one that ends with not_next() or "
                "not_followed_by(). Put these behind the choice."
            )
    if element.least < 1 or (element.most is not None and element.most < element.least):
        most = "any number of" if element.most is None else element.most
        raise PatternError(
            f"{what} occurs {element.least} to {most} times, which no rows can match. Give numbers "
            "above 0, the larger one last; optional() is for what may be missing."
        )
