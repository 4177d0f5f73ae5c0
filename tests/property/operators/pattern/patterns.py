"""Random patterns, conditions and rows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from millrace.errors import PatternError
from millrace.operators.pattern import tree
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.expressions import (
    Call,
    Current,
    Expression,
    Literal,
    Reference,
)
from millrace.operators.pattern.matcher import EVERY, PAST_LAST, TO_FIRST, TO_LAST, TO_NEXT, After

SCHEMA = {"kind": "string", "whole": "bigint", "double": "double"}

rows = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["a", "a", "b", "c", None]),
        "whole": st.sampled_from([0, 1, 2, 3, None]),
        "double": st.sampled_from([0.0, 0.5, 1.0, -2.0, None]),
    }
)


@st.composite
def sequences(draw: st.DrawFn, names: list[str], depth: int = 0) -> tree.Sequence:
    """A sequence of one to four elements; takes names off the list."""
    elements = []
    for number in range(draw(st.integers(1, 4 if depth == 0 else 2))):
        guards: dict[str, tuple[str, ...]] = {}
        if number and names and draw(st.integers(0, 4)) == 0:
            guard = draw(st.sampled_from(["not_next", "not_followed_by"]))
            guards[guard] = (names.pop(0),)
        choices: tuple[tree.Sequence, ...] = ()
        if depth == 0 and len(names) > 3 and draw(st.integers(0, 3)) == 0:
            count = draw(st.integers(1, 2))
            choices = tuple(draw(sequences(names, 1)) for _ in range(count))
        elif not names:
            break
        least = draw(st.sampled_from([1, 1, 1, 2]))
        most = draw(st.sampled_from([least, least, least + 1, None]))
        elements.append(
            tree.Element(
                None if choices else names.pop(0),
                choices,
                draw(st.sampled_from(tree.WAYS)),
                least,
                most,
                draw(st.integers(0, 3)) == 0,
                draw(st.sampled_from(tree.WAYS)),
                draw(st.booleans()),
                **guards,
            )
        )
    if not elements:
        elements = [tree.Element(names.pop(0) if names else f"v{depth}")]
    behind: dict[str, tuple[str, ...]] = {}
    if depth == 0 and names and draw(st.integers(0, 4)) == 0:
        behind[draw(st.sampled_from(["not_next", "not_followed_by"]))] = (names.pop(0),)
    return tree.Sequence(tuple(elements), **behind)


@st.composite
def conditions(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Expression | None]:
    return {name: draw(_condition(names)) for name in names}


def _condition(names: tuple[str, ...]) -> st.SearchStrategy[Expression | None]:
    kind = st.sampled_from("aabc").map(lambda k: Call("=", (Current("kind"), Literal(k))))
    comparison = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    variable = st.sampled_from([None, *names])
    text = st.builds(
        lambda op, function, of: Call(op, (Current("kind"), Reference(function, of, "kind"))),
        comparison,
        st.sampled_from(["first", "last", "min", "max"]),
        variable,
    )
    numbers = st.recursive(
        st.one_of(
            st.sampled_from(["whole", "double"]).map(Current),
            st.sampled_from([0, 1, 2, 0.5, None]).map(Literal),
            st.builds(
                Reference,
                st.sampled_from(["first", "last", "min", "max", "sum", "mean", "count"]),
                variable,
                st.sampled_from(["whole", "double"]),
            ),
            variable.map(lambda of: Reference("count", of, None)),
            st.builds(
                lambda of, back: Reference("last", of, "whole", back), variable, st.integers(1, 2)
            ),
        ),
        lambda inner: st.one_of(
            st.builds(
                lambda op, x, y: Call(op, (x, y)),
                st.sampled_from(["+", "-", "*", "/", "coalesce"]),
                inner,
                inner,
            ),
            st.builds(lambda op, x: Call(op, (x,)), st.sampled_from(["negative", "abs"]), inner),
        ),
        max_leaves=3,
    )
    compared = st.builds(lambda op, x, y: Call(op, (x, y)), comparison, numbers, numbers)
    known = st.builds(
        lambda op, x: Call(op, (x,)), st.sampled_from(["is null", "is not null"]), numbers
    )
    simple: Any = st.one_of(kind, kind, text, compared, known)
    nested = st.one_of(
        simple,
        simple,
        st.builds(
            lambda op, x, y: Call(op, (x, y)), st.sampled_from(["and", "or"]), simple, simple
        ),
        simple.map(lambda x: Call("not", (x,))),
    )
    return st.one_of(st.none(), kind, kind, nested)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[tree.Sequence, dict[str, Expression | None], int, After]:
    """A pattern that can be compiled, conditions, how long a match may take, and what follows."""
    sequence = draw(sequences(["p", "q", "r", "s", "t", "u", "v", "w"]))
    try:
        compile_pattern(sequence)
    except PatternError:
        sequence = tree.Sequence((tree.Element("p"), tree.Element("q", most=None)))
    names = (*tree.variables(sequence), *tree.absent(sequence))
    found = draw(conditions(names))
    later = sorted(set(tree.variables(sequence)) - tree.first_variables(sequence))
    afters = [After(EVERY), After(TO_NEXT), After(PAST_LAST)]
    afters += [After(mode, name) for mode in (TO_FIRST, TO_LAST) for name in later]
    return sequence, found, draw(st.integers(1, 12)), draw(st.sampled_from(afters))
