"""What a pattern can be, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.errors import PatternError, UsageError
from millrace.operators.pattern import tree
from millrace.operators.pattern.automaton import AFTER_NEXT, AT_END, END, compile_pattern
from millrace.operators.pattern.builder import Pattern, one_of, pattern
from millrace.operators.pattern.expressions import column, earlier, previous
from millrace.operators.pattern.matcher import After, parse_after
from millrace.testing import PatternHarness


def waits(of: Pattern) -> list[tuple[str, str, list[str]]]:
    """Each state as a variable, a way, and what follows."""
    automaton = compile_pattern(of.sequence())

    def named(state: int) -> str:
        if state == END:
            return "end"
        variable = automaton.states[state].variable
        names = {AT_END: "at end", AFTER_NEXT: "after next"}
        return names.get(variable) or automaton.variables[variable]

    return [
        (named(i), state.way, [named(target) for target in state.targets])
        for i, state in enumerate(automaton.states)
    ]


def test_a_sequence_is_a_chain_of_states() -> None:
    found = waits(pattern("a").next("b").followed_by("c").followed_by_any("d"))
    assert found == [
        ("a", "first", ["b"]),
        ("b", "next", ["c"]),
        ("c", "followed_by", ["d"]),
        ("d", "followed_by_any", ["end"]),
    ]


def test_repetitions_prefer_more_or_fewer() -> None:
    greedy = waits(pattern("a").one_or_more(greedy=True, each="next").next("b"))
    assert greedy == [
        ("a", "first", ["a", "b"]),
        ("a", "next", ["a", "b"]),
        ("b", "next", ["end"]),
    ]
    assert waits(pattern("a").times(2, 3))[1] == ("a", "followed_by", ["end", "a"])
    assert waits(pattern("a").times_or_more(2, greedy=True))[-1][2] == ["a", "end"]
    optional = waits(pattern("a").followed_by("b").times(2).optional().followed_by("c"))
    assert optional[0] == ("a", "first", ["c", "b"])


def test_absent_rows_guard_what_follows_and_the_end() -> None:
    states = compile_pattern(
        pattern("a").not_next("x").not_followed_by("y").followed_by("b").sequence()
    ).states
    assert (states[1].not_next, states[1].never) == ((2,), (3,))
    assert waits(pattern("a").not_followed_by("x"))[0][2] == ["at end"]
    assert waits(pattern("a").not_next("x"))[0][2] == ["after next"]


def test_trees_survive_a_spec() -> None:
    of = pattern("a").next(one_of(pattern("b").times(2, 4), pattern("c"))).not_next("d").sequence()
    assert tree.Sequence.from_json(of.to_json()) == of


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: compile_pattern(pattern("a").optional().sequence()), "match nothing"),
        (lambda: compile_pattern(pattern("a").next("a").sequence()), "two variables"),
        (
            lambda: compile_pattern(one_of(pattern("a").one_or_more()).one_or_more().sequence()),
            "two ways",
        ),
        (lambda: compile_pattern(pattern("a").times(2000).sequence()), "one by one"),
        (lambda: compile_pattern(one_of(pattern("a").optional()).next("b").sequence()), "nothing"),
        (
            lambda: compile_pattern(one_of(pattern("a").not_next("b")).next("c").sequence()),
            "behind the choice",
        ),
        (lambda: pattern("a").times(0, 0), "larger one last"),
        (lambda: pattern("a").times(3, 2), "larger one last"),
        (lambda: pattern("a").times(True), "whole numbers"),
        (lambda: pattern("a").one_or_more().times(2), "twice"),
        (lambda: pattern("a").one_or_more(each="after"), "follow each other"),
        (lambda: pattern("a").not_next("b").optional(), "must not come"),
        (lambda: pattern("a").within("soon"), "within"),
        (lambda: pattern("a").next(pattern("b").within("1 hour")), "whole pattern"),
        (lambda: pattern("a").next(3), "name of a row"),  # type: ignore[arg-type]
        (lambda: pattern("a").not_next(3), "must not come"),  # type: ignore[arg-type]
        (lambda: pattern(""), "give the first row of a match a name"),
        (lambda: pattern(3), "give the first row of a match a name"),  # type: ignore[arg-type]
        (lambda: pattern(one_of(pattern("a"))), "is a pattern already"),  # type: ignore[arg-type]
        (lambda: one_of(), "takes patterns"),
        (lambda: one_of(pattern("a")).where("x"), "no row of its own"),
    ],
)
def test_refuses_what_cannot_be(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PatternError, match=words):
        make()


def test_says_where_the_next_match_may_begin() -> None:
    of = pattern("a").next("b").sequence()
    assert parse_after("skip to last b", of) == After("skip to last", "b")
    for text, words in [
        ("skip", "say"),
        ("skip to first c", "no 'c'"),
        ("skip to last a", "first"),
    ]:
        with pytest.raises(PatternError, match=words):
            parse_after(text, of)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (column("x") + 1, "true or false"),
        (column("x") > previous("city"), "do not go together"),
        (column("city") + 1 > 2, "do not go together"),
        (column("missing") > 1, "there is not"),
        (earlier("z").count() > 1, "refers to 'z'"),
        (earlier("a").sum("city") > 1, "numbers can be added"),
        (column("parts") == previous("parts"), "cast it"),
        (column("x") > 2**70, "64 bits"),
    ],
)
def test_refuses_conditions_that_cannot_be_computed(condition: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PatternHarness(
            pattern("a").followed_by("b").where(condition).within("1 hour"),
            key="k",
            schema="k string, x bigint, city string, parts array<int>, at timestamp",
            event_time="at",
            select={"n": earlier().count()},
        )
