"""`match`: patterns with conditions over Spark's columns, and what a match says of its rows.

`previous` and `matched` give Spark columns, so that conditions are ordinary Spark expressions. Such
a column has a name that tells what it stands for. Of a condition, the parts that look at the row
alone are computed by Spark, for all rows at once: those that must hold by themselves as a bit each,
others as a column. What is left are comparisons with earlier rows, which the operator makes. What a
match selects is computed by Spark, too, behind the operator.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.api.columns import named, resolve
from millrace.api.event_time import event_time_of
from millrace.api.origin import grouping, origin, then
from millrace.errors import DuplicateNameError, PatternError, UnknownColumnError, UsageError
from millrace.operators.pattern import tree
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.builder import Pattern
from millrace.operators.pattern.definition import define
from millrace.operators.pattern.expressions import (
    COALESCE,
    Call,
    Current,
    Expression,
    Literal,
    Reference,
)
from millrace.operators.pattern.operator import PatternOperator
from millrace.operators.window.spec import columns as columns_of
from millrace.spark.patterns import PatternExchange, PatternInput
from millrace.spark.steps import OperatorStep, TransformStep

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream
    from millrace.api.stream import Stream

_PREFIX = "_millrace_of_match_"

_OPERATIONS = {
    "=": "=",
    "==": "=",
    "!=": "<>",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "<=>": "<=>",
    "and": "and",
    "or": "or",
    "not": "not",
    "!": "not",
    "+": "+",
    "-": "-",
    "*": "*",
    "/": "/",
    "negative": "negative",
    "abs": "abs",
    "isnull": "is null",
    "isnotnull": "is not null",
    "coalesce": "coalesce",
}
"""Spark's functions that conditions on earlier rows can have."""


def previous(column: str) -> SparkColumn:
    """A column of the row that the match has taken last, before the one that is looked at."""
    return matched().last(column)


def matched(variable: str | None = None) -> MatchedRows:
    """The rows of a match that are of a variable, or all of its rows.

    In a condition they are the rows taken before the one that is looked at.
    """
    return MatchedRows(variable)


@dataclass(frozen=True)
class MatchedRows:
    """Rows of a match: what can be asked of them, in conditions and in `select`."""

    variable: str | None

    def first(self, column: str) -> SparkColumn:
        """The value in the first of them."""
        return self._of("first", column)

    def last(self, column: str, back: int = 0) -> SparkColumn:
        """The value in the last of them, or in the row that is `back` rows before it."""
        return self._of("last", column, back)

    def min(self, column: str) -> SparkColumn:
        return self._of("min", column)

    def max(self, column: str) -> SparkColumn:
        return self._of("max", column)

    def sum(self, column: str) -> SparkColumn:
        return self._of("sum", column)

    def mean(self, column: str) -> SparkColumn:
        return self._of("mean", column)

    def count(self, column: str | None = None) -> SparkColumn:
        """How many they are; of a column, how many values are not NULL."""
        return self._of("count", column)

    def list(self, column: str) -> SparkColumn:
        """All values, in order of event time. Not for conditions."""
        return self._of("list", column)

    def _of(self, function: str, column: str | None, back: int = 0) -> SparkColumn:
        if column is not None and not isinstance(column, str):
            raise UsageError(
                f"{function}() of the rows of a match takes the name of a column, not {column!r}. "
                "Compute it in transform()."
            )
        if type(back) is not int or back < 0:
            raise UsageError(f"last({column!r}, {back!r}): give how many rows back, from 0 on.")
        return F.col(_name(Reference(function, self.variable, column, back)))


def _name(reference: Reference) -> str:
    """The name of the column that stands for a reference: Spark compares names without case."""
    return _PREFIX + json.dumps(reference.to_json()).encode().hex()


def _reference(name: str) -> Reference | None:
    """What a column stands for; None if it is an ordinary one."""
    if not name.startswith(_PREFIX):
        return None
    return Reference(**json.loads(bytes.fromhex(name.removeprefix(_PREFIX))))


def node_of(column: SparkColumn) -> Any:
    """The tree of an expression, as Spark has it before it is resolved."""
    expression: Any = column._jc
    return expression.node()


def _is_of_match(node: Any) -> bool:
    """Whether an expression looks at rows of the match."""
    return _PREFIX in node.sql()


def _parts(node: Any) -> Iterator[Any]:
    """The conditions of which all must hold."""
    if node.getClass().getSimpleName() == "UnresolvedFunction" and node.functionName() == "and":
        for argument in _listed(node.arguments()):
            yield from _parts(argument)
    else:
        yield node


def _listed(nodes: Any) -> list[Any]:
    return [nodes.apply(i) for i in range(nodes.size())]


@dataclass
class _Conditions:
    """The conditions of a pattern, divided into what Spark computes and what is left."""

    sample: DataFrame
    bits: dict[str, SparkColumn] = field(default_factory=dict)
    """By variable: conditions on the row alone."""
    left: dict[str, list[Expression]] = field(default_factory=dict)
    """By variable: conditions on earlier rows, too."""
    computed: dict[str, tuple[SparkColumn, T.DataType]] = field(default_factory=dict)
    """What conditions on earlier rows read of the row itself, by the name it gets."""
    _known: dict[str, str] = field(default_factory=dict)

    def add(self, variable: str, condition: Any) -> None:
        if isinstance(condition, str):
            condition = F.expr(condition)
        if not isinstance(condition, SparkColumn):
            raise PatternError(
                f"where() of {variable!r} takes a Spark column that is true or false, or a text of "
                f"Spark's SQL, not {condition!r}."
            )
        for node in _parts(node_of(condition)):
            if _is_of_match(node):
                self.left.setdefault(variable, []).append(self._expression(node, variable))
                continue
            alone = self._column(node)
            found, _ = resolve(self.sample, alone, f"where() of {variable!r}")
            if not isinstance(found.type, T.BooleanType | T.NullType):
                raise PatternError(
                    f"where() of {variable!r}: {found.name} is of type "
                    f"{found.type.simpleString()}, and a condition is true or false."
                )
            self.bits[variable] = self.bits[variable] & alone if variable in self.bits else alone

    def _column(self, node: Any) -> SparkColumn:
        jvm: Any = self.sample.sparkSession._jvm
        return SparkColumn(jvm.org.apache.spark.sql.Column(node))

    def _expression(self, node: Any, variable: str) -> Expression:
        kind = node.getClass().getSimpleName()
        if kind == "Alias":
            return self._expression(node.child(), variable)
        if not _is_of_match(node):
            return self._of_row(node, kind, variable)
        if kind == "UnresolvedAttribute":
            reference = _reference(_listed(node.nameParts())[0])
            assert reference is not None
            return reference
        if kind == "UnresolvedFunction" and node.functionName().lower() in _OPERATIONS:
            arguments = [self._expression(a, variable) for a in _listed(node.arguments())]
            operation = _OPERATIONS[node.functionName().lower()]
            if operation == COALESCE:
                return functools.reduce(lambda x, y: Call(operation, (x, y)), arguments)
            return Call(operation, tuple(arguments))
        what = node.functionName() if kind == "UnresolvedFunction" else kind
        raise PatternError(
            f"where() of {variable!r}: rows of the match are an argument of {what!r}. They can be "
            "compared, added, subtracted, multiplied and divided, tested for NULL, replaced by "
            "F.coalesce, and joined by &, | and ~. Compute other things in transform(), "
            "as columns of the rows."
        )

    def _of_row(self, node: Any, kind: str, variable: str) -> Expression:
        """What depends on the row alone: a constant, a column, or something that Spark computes."""
        if kind == "Literal":
            value = node.value()
            if value is None or isinstance(value, bool | int | float | str):
                return Literal(value)
        text = str(node.sql())
        if text not in self._known:
            found, column = resolve(self.sample, self._column(node), f"where() of {variable!r}")
            plain = kind == "UnresolvedAttribute" and found.name in self.sample.columns
            name = found.name if plain else f"value {len(self.computed) + 1}"
            if not plain:
                self.computed[name] = column, found.type
            self._known[text] = name
        return Current(self._known[text])


def match_rows(
    keyed: KeyedStream,
    pattern: Pattern,
    after: str,
    select: Mapping[str, SparkColumn],
    name: str | None,
) -> Stream:
    """See `KeyedStream.match`."""
    group = grouping(keyed)
    of = origin(group.stream)
    event_us = event_time_of(of, "match()")
    sample = of.sample()
    if not isinstance(pattern, Pattern):
        raise PatternError(
            f"match() takes a pattern, such as mr.pattern('a').followed_by('b'), not {pattern!r}."
        )
    conditions = _Conditions(sample)
    for variable, given in pattern.conditions().items():
        for condition in given:
            conditions.add(variable, condition)
    measures = _measures(select)
    types = {f.name: f.dataType for f in of.schema.fields}
    types |= {of: kind for of, (_, kind) in conditions.computed.items()}
    types |= {key.name: key.type for key in group.keys}
    definition = define(
        pattern,
        group.keys,
        types,
        {_name(reference): reference for reference in measures},
        after,
        bits=tuple(conditions.bits),
        conditions=conditions.left,
    )
    fields = columns_of(of.schema.fields)
    operator = PatternOperator(of.new_name("match", name), definition, fields)
    stream = PatternInput(
        group.columns,
        event_us,
        [
            conditions.computed[c.name][0] if c.name in conditions.computed else named(c.name)
            for c in definition.columns
        ],
        list(conditions.bits.values()),
        [named(f.name).alias(f.name) for f in fields],
        _leaves_out(pattern, conditions),
    )
    step = OperatorStep(
        operator,
        PatternExchange(operator, stream),
        operator.code(),
        late=functools.partial(PatternExchange, operator, stream),
    )
    raw = then(group.stream, operator.output_schema, step)
    show = functools.partial(_selected, keys=[k.name for k in group.keys], select=dict(select))
    try:
        schema = show(origin(raw).sample()).schema
    except AnalysisException as error:
        why = str(error).strip().splitlines()[0]
        raise UnknownColumnError(
            f"select= of match(): Spark cannot resolve it: {why} A match "
            "has its key, and mr.matched('name').last('column') and the like."
        ) from error
    if len(set(schema.names)) < len(schema.names):
        raise DuplicateNameError(
            f"select= of match() has a column with the name of the key: {', '.join(schema.names)}."
        )
    time = _event_time(select, of.event_time)
    return then(raw, schema, TransformStep(show, is_own=True), event_time=time)


def _measures(select: object) -> list[Reference]:
    """What a selection asks of matches."""
    if not isinstance(select, Mapping) or not select:
        raise PatternError(
            f"select={select!r} of match(): give the columns of a match by name, such as "
            "{'amount': mr.matched('large').last('amount')}."
        )
    found: dict[str, Reference] = {}
    for name, column in select.items():
        if not isinstance(column, SparkColumn):
            raise PatternError(
                f"select={{{name!r}: ...}} of match() takes Spark columns over mr.matched('name'), "
                f"not {column!r}."
            )
        for reference in _references(node_of(column)):
            if reference.back:
                raise PatternError(
                    f"select={{{name!r}: ...}}: last({reference.column!r}, {reference.back}) is "
                    "for conditions. Select list() and take an element of it."
                )
            found[_name(reference)] = reference
    return list(found.values())


def _references(node: Any) -> Iterator[Reference]:
    """The references in an expression, wherever they are in it."""
    words = str(node.sql()).replace("`", " ").replace("(", " ").replace(")", " ")
    for word in words.replace(",", " ").replace(".", " ").split():
        reference = _reference(word)
        if reference is not None:
            yield reference


def _selected(df: DataFrame, keys: Sequence[str], select: Mapping[str, SparkColumn]) -> DataFrame:
    chosen = [column.alias(name) for name, column in select.items()]
    return df.select(*map(named, keys), *chosen)


def _event_time(select: Mapping[str, SparkColumn], event_time: str | None) -> str | None:
    """The first column of a selection that is an event time of a row, as it is."""
    for name, column in select.items():
        node = node_of(column)
        if node.getClass().getSimpleName() == "UnresolvedAttribute":
            reference = _reference(_listed(node.nameParts())[0])
            is_time = reference is not None and reference.column == event_time
            if is_time and reference is not None and reference.function in ("first", "last"):
                return name
    return None


def _leaves_out(pattern: Pattern, conditions: _Conditions) -> bool:
    """Whether rows that meet no condition can be left out before they are sent."""
    sequence = pattern.sequence()
    names = {*tree.variables(sequence), *tree.absent(sequence)}
    return names == conditions.bits.keys() and compile_pattern(sequence).is_relaxed
