"""What a spec in a manifest must be before an operator's tables are made of it.

A spec comes from a file. Here its shape is checked once: names are text and differ, types are
written as Spark writes them, options are there. What the types and functions mean is decided where
they are used, with errors of their own.

There is a function for each kind of operator; `registry.check_spec` chooses it. It takes the names
of the key's columns and returns all names that must differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from millrace import fields
from millrace.errors import MalformedError, PatternError
from millrace.fields import Fields
from millrace.operators.aggregate.limits import (
    ACCURACY,
    LG_K_HLL,
    LG_K_THETA,
    MOST_HITTERS,
    MOST_TOP,
    MOST_TRACKED,
)
from millrace.operators.dedup.layout import EVENT, NEVER, PROCESSING
from millrace.operators.graph.layout import MOST_COLOURS, VERTEX
from millrace.operators.join.layout import EITHER, HOWS, LEFT, OWN_COLUMNS, RIGHT
from millrace.operators.lookup.layout import EVENT as LOOKUP_EVENT
from millrace.operators.lookup.layout import HOWS as LOOKUP_HOWS
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.expressions import ARITHMETIC as PATTERN_ARITHMETIC
from millrace.operators.pattern.expressions import COALESCE, COMPARISONS, LOGIC, UNARY
from millrace.operators.pattern.expressions import FUNCTIONS as PATTERN_FUNCTIONS
from millrace.operators.pattern.layout import OWN_COLUMNS as PATTERN_COLUMNS
from millrace.operators.pattern.tree import WAYS, Sequence
from millrace.operators.process.kinds import EVENT_TIME, KINDS, PROCESSING_TIME, Place
from millrace.operators.window.emission import EARLY, FINAL, NONE, UPDATE
from millrace.operators.window.panes import MOST_PANES

MOST_US = 10_000 * 366 * 86_400_000_000
"""The longest duration."""


def _flag(value: Any, what: str) -> None:
    if type(value) is not bool:
        raise MalformedError(f"{what} is neither true nor false")


def _within(low: int, high: int) -> Callable[[Any, str], object]:
    return lambda value, what: fields.integer(value, what, low, high)


def _ranks(value: Any, what: str) -> None:
    for rank in fields.items(value, what):
        if not 0 <= fields.number(rank, what) <= 1:
            raise MalformedError(f"{what} has a rank that is not between 0 and 1")


OPTIONS: dict[str, dict[str, Callable[[Any, str], object]]] = {
    **{name: {"ignore_nulls": _flag} for name in ("first", "last")},
    **{name: {"sample": _flag} for name in ("variance", "stddev", "covar")},
    "approx_distinct": {"lg_k": _within(*LG_K_HLL)},
    "distinct_sketch": {"lg_k": _within(*LG_K_THETA)},
    "quantile": {"ranks": _ranks, "single": _flag, "accuracy": _within(*ACCURACY)},
    "top": {"k": _within(1, MOST_TOP)},
    "heavy_hitters": {"k": _within(1, MOST_HITTERS), "track": _within(1, MOST_TRACKED)},
}
"""What the options of aggregate functions must be."""
OF_TWO = frozenset(("max_by", "min_by", "covar", "corr"))
"""Functions of two columns: their input is a struct of both."""
MOST_DEPTH = 100
"""Of types within types."""


def check_aggregate(spec: Fields, names: list[str]) -> list[str]:
    return [*names, *(_aggregate(Fields(a, "an aggregate")) for a in spec.items("aggregates"))]


def check_process(spec: Fields, names: list[str]) -> list[str]:
    names = [*names, *(_state(Fields(s, "a state")) for s in spec.items("states"))]
    for name in spec.items("deleted") if spec.has("deleted") else []:
        fields.text(name, "a deleted state")
    return names


def check_distinct(names: list[str]) -> None:
    """Raise unless names of columns and states differ."""
    if len(set(names)) < len(names):
        raise MalformedError("two of its columns or states have the same name")


def _check_streams(spec: Fields, names: list[str]) -> None:
    """The columns of two streams."""
    for side in (LEFT, RIGHT):
        columns = [check_column(column, "a column") for column in spec.items(side)]
        check_distinct([*names, *columns, *OWN_COLUMNS, LOOKUP_EVENT])


def check_join(spec: Fields, names: list[str]) -> list[str]:
    """The interval and the kind of a join."""
    _check_streams(spec, names)
    within = Fields(spec.members("within"), "its interval")
    lower = within.integer("lower", -MOST_US, MOST_US)
    within.integer("upper", lower, MOST_US)
    _check_one_of(spec, "how", HOWS)
    _check_one_of(spec, "time", (LEFT, RIGHT, EITHER))
    return names


def check_as_of(spec: Fields, names: list[str]) -> list[str]:
    _check_streams(spec, names)
    if spec["tolerance"] is not None:
        spec.integer("tolerance", 0, MOST_US)
    return names


def check_lookup(spec: Fields, names: list[str]) -> list[str]:
    _check_streams(spec, names)
    _check_one_of(spec, "how", LOOKUP_HOWS)
    return names


def _check_one_of(spec: Fields, name: str, known: tuple[str, ...]) -> None:
    if spec.text(name) not in known:
        raise MalformedError(f"its {name!r} is {spec.text(name)[:80]!r}")


def check_window(spec: Fields, names: list[str]) -> list[str]:
    """The aggregates and windows of a window operator, and when they are emitted."""
    names = check_aggregate(spec, names)
    window = Fields(spec.members("window"), "its window")
    size = window.integer("size", 1, MOST_US)
    slide = window.integer("slide", 1, size)
    window.integer("offset", 1 - slide, slide - 1)
    if size // math.gcd(size, slide) > MOST_PANES:
        raise MalformedError("a window has too many panes")
    if spec.has("lengths"):
        sizes = [fields.integer(s, "a length", slide, size) for s in spec.items("lengths")]
        if sizes != sorted(set(sizes)) or sizes[-1:] != [size] or any(s % slide for s in sizes):
            raise MalformedError("its windows have lengths that do not go together")
    _check_emission(spec)
    return names


def check_session(spec: Fields, names: list[str]) -> list[str]:
    """The aggregates and the gap of a session operator, and when sessions are emitted."""
    names = check_aggregate(spec, names)
    spec.integer("gap", 1, MOST_US)
    _check_emission(spec)
    return names


def _check_emission(spec: Fields) -> None:
    emit = Fields(spec.members("emit"), "its emission")
    if emit.text("mode") not in (FINAL, UPDATE, EARLY, NONE):
        raise MalformedError(f"a result is emitted {emit.text('mode')[:80]!r}")
    emit.integer("period", 1 if emit.text("mode") == EARLY else 0, MOST_US)


def check_dedup(spec: Fields, names: list[str]) -> list[str]:
    """How long a deduplication remembers keys."""
    time = spec.text("time")
    if time not in (EVENT, PROCESSING, NEVER):
        raise MalformedError(f"keys are remembered by {time[:80]!r}")
    spec.integer("ttl", 1 if time == PROCESSING else 0, MOST_US)
    return names


def _check_vertex(names: list[str]) -> None:
    if names != [VERTEX]:
        raise MalformedError("the key of an operator on graphs is not its vertex")


def check_adjacency(spec: Fields, names: list[str]) -> list[str]:
    """Whether edges have a direction."""
    _check_vertex(names)
    _flag(spec["directed"], "'directed'")
    return names


def check_components(spec: Fields, names: list[str]) -> list[str]:
    """Whether vertices are on sides."""
    _check_vertex(names)
    _flag(spec["sides"], "'sides'")
    return names


def check_triangles(spec: Fields, names: list[str]) -> list[str]:
    """The vertices, and how they are divided into parts."""
    if len(names) != 1:
        raise MalformedError("the key of a count of triangles is not a part of the graph")
    check_column(spec["vertex"], "a vertex")
    spec.integer("colours", 1, MOST_COLOURS)
    if not 0 < fields.number(spec["sample"], "'sample'") <= 1:
        raise MalformedError("'sample' is not a share")
    _flag(spec["corners"], "'corners'")
    return names


def check_pattern(spec: Fields, names: list[str]) -> list[str]:
    """The pattern, its conditions on earlier rows, and what its matches say."""
    columns = [check_column(column, "a column") for column in spec.items("columns")]
    check_distinct([*names, *columns, *OWN_COLUMNS, *PATTERN_COLUMNS])
    _check_sequence(Fields(spec.members("pattern"), "its pattern"), 0)
    try:
        automaton = compile_pattern(Sequence.from_json(spec.members("pattern")))
    except PatternError as error:
        raise MalformedError(f"its pattern cannot be: {error}") from error
    for variable in (*spec.items("bits"), *spec.members("conditions")):
        if variable not in automaton.variables:
            raise MalformedError("a condition is of a variable that its pattern has not")
    spec.integer("within", 1, MOST_US)
    for variable in spec.items("bits"):
        fields.text(variable, "a variable")
    for name, condition in spec.members("conditions").items():
        fields.text(name, "a variable")
        _check_condition(Fields(condition, "a condition"), 0)
    after = Fields(spec.members("after"), "what follows a match")
    after.text("mode")
    if after["variable"] is not None:
        after.text("variable")
    for measure in spec.items("measures"):
        of = Fields(measure, "a measure")
        _name(of)
        of.text("function")
        for part in ("variable", "column"):
            if of[part] is not None:
                of.text(part)
    return names


def _check_sequence(sequence: Fields, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise MalformedError("a pattern is nested too deeply")
    for part in ("not_next", "not_followed_by"):
        for name in sequence.items(part):
            fields.text(name, "a variable")
    if not sequence.items("elements"):
        raise MalformedError("a pattern has no elements")
    for item in sequence.items("elements"):
        element = Fields(item, "an element of a pattern")
        for part in ("not_next", "not_followed_by"):
            for name in element.items(part):
                fields.text(name, "a variable")
        for part in ("way", "each"):
            _check_one_of(element, part, WAYS)
        for part in ("optional", "greedy"):
            _flag(element[part], f"{part!r} of an element of a pattern")
        least = element.integer("least", 1)
        if element["most"] is not None:
            element.integer("most", least)
        if element["variable"] is not None:
            element.text("variable")
        elif not element.items("choices"):
            raise MalformedError("an element of a pattern is neither a variable nor a choice")
        for choice in element.items("choices"):
            _check_sequence(Fields(choice, "a choice of a pattern"), depth + 1)


def _check_condition(of: Fields, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise MalformedError("a condition is nested too deeply")
    if of.has("current"):
        of.text("current")
    elif of.has("operation"):
        of_two = (*COMPARISONS, *LOGIC, *PATTERN_ARITHMETIC, COALESCE)
        _check_one_of(of, "operation", (*UNARY, *of_two))
        count = 1 if of.text("operation") in UNARY else 2
        for argument in of.items("arguments", count):
            _check_condition(Fields(argument, "a condition"), depth + 1)
    elif of.has("function"):
        _check_one_of(of, "function", PATTERN_FUNCTIONS)
        of.integer("back", 0)
        for part in ("variable", "column"):
            if of[part] is not None:
                of.text(part)
        if of["column"] is None and of.text("function") != "count":
            raise MalformedError("a condition has a function of no column")
    elif type(of["literal"]) not in (bool, int, float, str, type(None)):
        raise MalformedError("a constant of a condition is neither a number nor a text")


def check_column(of: Any, what: str) -> str:
    """The name of a column; raises unless it has one and a type."""
    column = Fields(of, what)
    _check_type(column["type"])
    return _name(column)


def _name(of: Fields) -> str:
    name = of.text("name")
    if not name or "\0" in name:
        raise MalformedError("a column or a state has no name")
    return name


def _aggregate(aggregate: Fields) -> str:
    function, options = aggregate.text("function"), aggregate.members("options")
    _check_type(aggregate["type"])
    for name, check in OPTIONS.get(function, {}).items():
        if name not in options:
            raise MalformedError(f"an aggregate {function!r} lacks its option {name!r}")
        check(options[name], f"the option {name!r} of {function!r}")
    if function in OF_TWO:
        of = Fields(aggregate["type"], f"the type of {function!r}")
        if of.text("type") != "struct":
            raise MalformedError(f"an aggregate {function!r} is not of two columns")
        of.items("fields", 2)
    if function == "top":
        of = Fields(aggregate["type"], "the type of 'top'")
        if of.text("type") != "struct" or not of.items("fields"):
            raise MalformedError("an aggregate 'top' is not of rows")
    return _name(aggregate)


def _state(state: Fields) -> str:
    kind = KINDS.get(name := state.text("kind"))
    if kind is None:
        raise MalformedError(f"a state is a {name[:80]!r}")
    if kind.place is Place.TIMERS:
        return _name(state)
    for data_type in state.items("types", len(kind.columns)):
        _check_type(data_type)
    if kind.place is not Place.SHARED and state["ttl"] is not None:
        duration, time = state.items("ttl", 2)
        fields.integer(duration, "a TTL", 1)
        if time not in (EVENT_TIME, PROCESSING_TIME):
            raise MalformedError(f"a TTL is in {str(time)[:80]!r} time")
    return _name(state)


def _check_type(description: Any, depth: int = 0) -> None:
    """Raise unless this is written as Spark writes a type; which ones there are is not known."""
    if depth > MOST_DEPTH:
        raise MalformedError("a type is nested too deeply")
    if isinstance(description, str):
        return
    of = Fields(description, "a type")
    kind = of.text("type")
    inner = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(kind, ())
    flags = {"array": ("containsNull",), "map": ("valueContainsNull",), "struct": ()}.get(kind, ())
    for flag in flags:
        if type(of[flag]) is not bool:
            raise MalformedError(f"{flag!r} of a type is neither true nor false")
    for part in inner:
        _check_type(of[part], depth + 1)
    if kind == "struct":
        for field in of.items("fields"):
            member = Fields(field, "a field of a struct")
            member.text("name")
            _check_type(member["type"], depth + 1)
            if member.has("nullable") and type(member["nullable"]) is not bool:
                raise MalformedError("'nullable' of a field is neither true nor false")
            for name, value in (
                member.members("metadata") if member.has("metadata") else {}
            ).items():
                fields.text(name, "metadata")
                if name == "__COLLATIONS":
                    for collation in fields.members(value, "collations").values():
                        fields.text(collation, "a collation")
