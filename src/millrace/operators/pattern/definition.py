"""A pattern, its conditions and measures put together and checked: what an operator is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import types as T

from millrace.errors import DuplicateNameError, PatternError, UnknownColumnError
from millrace.operators.operator import Column
from millrace.operators.pattern import tree
from millrace.operators.pattern.builder import Pattern
from millrace.operators.pattern.expressions import Expression, Reference, columns
from millrace.operators.pattern.matcher import parse_after
from millrace.operators.pattern.spec import FUNCTIONS, Measure, PatternDefinition

MOST_BITS = 62
"""Variables with a condition that is computed before."""


def define(
    pattern: Pattern,
    keys: tuple[Column, ...],
    types: Mapping[str, T.DataType],
    measures: Mapping[str, Reference],
    after: object,
    *,
    bits: Sequence[str] = (),
    conditions: Mapping[str, Sequence[Expression]] | None = None,
) -> PatternDefinition:
    """The definition of an operator.

    `types` are those of all columns that conditions and measures can read. `bits` are the variables
    with a condition that Spark computes; `conditions` are those that it cannot, and without it all
    of the pattern's own.
    """
    if not isinstance(pattern, Pattern):
        raise PatternError(
            f"match() takes a pattern, such as mr.pattern('a').followed_by('b'), not {pattern!r}."
        )
    if pattern.within_us is None:
        raise PatternError(
            "the pattern is without bound: a partial match of it would be kept for ever. Say how "
            "long a match may take, with within('1 hour')."
        )
    sequence = pattern.sequence()
    tree.check(sequence)
    if len(bits) > MOST_BITS:
        raise PatternError(f"a pattern has conditions for at most {MOST_BITS} variables.")
    given = pattern.conditions() if conditions is None else conditions
    joined = {name: reduce(lambda x, y: x & y, each) for name, each in given.items() if each}
    absent = set(tree.absent(sequence))
    for name in absent & set(tree.variables(sequence)):
        raise DuplicateNameError(f"the pattern names {name!r} twice.")
    for name in absent - joined.keys() - set(bits):
        raise PatternError(
            f"{name!r} must not come, and has no condition: nothing could follow. Say which rows "
            "it means, with where()."
        )
    made = [Measure(name, r.function, r.variable, r.column) for name, r in measures.items()]
    read = [column for condition in joined.values() for column in columns(condition)]
    read += [measure.column for measure in made if measure.column is not None]
    for measure in made:
        if measure.function not in FUNCTIONS:
            raise PatternError(f"a match has no {measure.function!r} of its rows.")
    for column in read:
        if column not in types:
            raise UnknownColumnError(
                f"the pattern reads the column {column!r}, which there is not. The columns are "
                f"{', '.join(types)}."
            )
    key_names = {key.name for key in keys}
    kept = sorted({column for column in read if column not in key_names})
    return PatternDefinition(
        keys,
        tuple(Column(name, types[name]) for name in kept),
        sequence,
        tuple(bits),
        tuple(joined.items()),
        pattern.within_us,
        parse_after(after, sequence),
        tuple(made),
    )
