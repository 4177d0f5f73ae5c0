"""Patterns as text: the MATCH_RECOGNIZE clause of SQL, made a pattern and a selection.

sqlglot parses the clause, and this translates what it finds: `PATTERN` into a pattern of rows that
are next to each other, `DEFINE` into conditions, `MEASURES` into a selection. In SQL the row that
is looked at is among the rows of its own variable, and here it is not; so `LAST(b.x, 1)` in the
definition of `b` becomes the last of the earlier ones, and `SUM(b.x)` their sum with the row's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from millrace.api.columns import named
from millrace.api.origin import origin
from millrace.api.patterns import MatchedRows, matched, node_of
from millrace.errors import MissingPackageError, PatternError
from millrace.operators.pattern.builder import Pattern, one_of, pattern
from millrace.operators.pattern.tree import NEXT

if TYPE_CHECKING:
    from millrace.api.event_time import Duration
    from millrace.api.stream import Stream

_DIALECT = "snowflake"
"""One that has the clause."""
_SPARK = "spark"

_WITHIN = re.compile(r"\bWITHIN\s+(?:INTERVAL\s+)?'?(\d+)'?\s*([A-Za-z]+)\b", re.IGNORECASE)
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\{\s*\d*\s*(?:,\s*\d*\s*)?\}|[()|*+?]|\S)")
_COUNTS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_SKIPS = {
    "PAST LAST ROW": "skip past last",
    "TO NEXT ROW": "skip to next",
}
_AGGREGATES = {"Sum": "sum", "Avg": "mean", "Min": "min", "Max": "max"}


def match_recognize(
    stream: Stream, text: str, *, within: Duration | None = None, name: str | None = None
) -> Stream:
    """The matches that SQL's MATCH_RECOGNIZE finds in a stream, given what is in its parentheses.

    `PARTITION BY` and `ORDER BY` name the key and the event time. How long a match may take is said
    by `within`, or behind the pattern, as in Flink: `PATTERN (A B+) WITHIN INTERVAL '1' HOUR`.
    """
    if type(text) is not str:
        raise PatternError(
            f"match_recognize() takes what SQL has in the parentheses of MATCH_RECOGNIZE, as text, "
            f"not {text!r}."
        )
    clause, duration = _parsed(text)
    if within is not None and duration is not None:
        raise PatternError("match_recognize() says twice how long a match may take.")
    keys = [_plain(column, "PARTITION BY") for column in clause.args.get("partition_by") or ()]
    if not keys:
        raise PatternError("match_recognize() needs PARTITION BY: the key of the stream.")
    _check_order(clause, origin(stream).event_time)
    rows = clause.args.get("rows")
    if rows is not None and rows.name.upper() != "ONE ROW PER MATCH":
        raise PatternError(f"match_recognize() gives ONE ROW PER MATCH, and not {rows.name}.")
    variables = _Parser(clause.args["pattern"].name).names
    defined = {_variable(d.alias, variables): d.this for d in clause.args.get("define") or ()}
    conditions = {name: _Condition(name, variables).column(of) for name, of in defined.items()}
    found = _Parser(clause.args["pattern"].name, conditions).pattern()
    if within is not None or duration is not None:
        found = found.within(duration if within is None else within)  # type: ignore[arg-type]
    select = {m.this.alias: _measure(m.this.this, variables) for m in clause.args["measures"] or ()}
    after = _after(clause.args.get("after"), variables)
    return stream.key_by(*keys).match(found, select=select, after=after, name=name)


def _parsed(text: str) -> tuple[Any, str | None]:
    """The clause, and how long a match may take."""
    try:
        import sqlglot
        from sqlglot import errors, exp
    except ImportError as error:
        raise MissingPackageError(
            "match_recognize() parses SQL with sqlglot, which is not installed. Install "
            "millrace[patterns], or build the pattern with mr.pattern()."
        ) from error
    said = _WITHIN.search(text)
    duration = None if said is None else f"{said[1]} {said[2].lower()}"
    inside = text if said is None else text[: said.start()] + text[said.end() :]
    try:
        query = sqlglot.parse_one(f"SELECT * FROM t MATCH_RECOGNIZE ({inside})", read=_DIALECT)
    except errors.SqlglotError as error:
        raise PatternError(f"match_recognize() cannot read the clause: {error}") from error
    clause = query.find(exp.MatchRecognize)
    if clause is None or not clause.args.get("pattern"):
        raise PatternError("match_recognize() needs PATTERN (...), with the variables of a match.")
    return clause, duration


def _plain(column: Any, what: str) -> str:
    if type(column).__name__ != "Column" or column.table:
        raise PatternError(f"{what} {column.sql()}: name a column of the stream.")
    return str(column.name)


def _check_order(clause: Any, event_time: str | None) -> None:
    order = clause.args.get("order")
    by = [] if order is None else order.expressions
    if len(by) != 1 or by[0].args.get("desc") or _plain(by[0].this, "ORDER BY") != event_time:
        raise PatternError(
            f"match_recognize() looks at rows in order of event time: ORDER BY {event_time}, and "
            "nothing else."
        )


def _variable(name: str, variables: list[str]) -> str:
    """A variable as the pattern writes it: SQL does not care about case."""
    for known in variables:
        if known.lower() == name.lower():
            return known
    raise PatternError(
        f"match_recognize(): {name!r} is not in the pattern. It has {', '.join(variables)}."
    )


def _after(given: Any, variables: list[str]) -> str:
    if given is None:
        return "skip past last"
    words = " ".join(given.name.split()).upper().removeprefix("AFTER MATCH SKIP ")
    if words in _SKIPS:
        return _SKIPS[words]
    where = given.name.split()
    mode = "first" if "FIRST" in words.split()[:2] else "last"
    return f"skip to {mode} {_variable(where[-1], variables)}"


class _Parser:
    """`A (B | C)+ D{2,3}?` as a pattern of rows that are next to each other."""

    def __init__(self, text: str, conditions: dict[str, SparkColumn] | None = None) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._conditions = conditions or {}
        self.names = [t for t in self._tokens if t[0].isalpha() or t[0] == "_"]

    def pattern(self) -> Pattern:
        found = self._choice()
        if self._at < len(self._tokens):
            raise self._error(self._tokens[self._at])
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _error(self, token: str) -> PatternError:
        where = repr(token) if token else "its end"
        return PatternError(
            f"PATTERN ({self._text}): {where} is not expected there. A pattern has variables, "
            "groups, | and the quantifiers *, +, ? and {n,m}, each with ? to be reluctant."
        )

    def _choice(self) -> Pattern:
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else one_of(*choices)

    def _sequence(self) -> Pattern:
        found = self._element()
        while self._peek() not in ("", "|", ")"):
            found = found.next(self._element())
        return found

    def _element(self) -> Pattern:
        token = self._peek()
        self._at += 1
        if token == "(":
            inside = self._choice()
            if self._peek() != ")":
                raise self._error(self._peek())
            self._at += 1
            # A pattern of one element is a group by itself.
            is_single = len(inside.sequence().elements) == 1
            return self._quantified(inside if is_single else one_of(inside))
        if not token or token not in self.names:
            raise self._error(token)
        single = pattern(token)
        if token in self._conditions:
            single = single.where(self._conditions[token])
        return self._quantified(single)

    def _quantified(self, of: Pattern) -> Pattern:
        token = self._peek()
        counts = _COUNTS.fullmatch(token)
        if token not in ("*", "+", "?") and counts is None:
            return of
        self._at += 1
        greedy = self._peek() != "?"
        if not greedy:
            self._at += 1
        options: dict[str, Any] = {"greedy": greedy, "each": NEXT}
        if token == "?":
            return of.optional(greedy=greedy)
        if counts is None:
            found = of.one_or_more(**options)
            return found.optional(greedy=greedy) if token == "*" else found
        least = int(counts[1] or 0)
        if not counts[2]:
            return of.times(least, **options)
        if counts[3]:
            return of.times(least, int(counts[3]), **options)
        found = of.times_or_more(max(least, 1), **options)
        return found if least else found.optional(greedy=greedy)


def _of_row(of: Any) -> SparkColumn:
    """What depends on the row alone. Columns and constants need not be computed."""
    kind = type(of).__name__
    if kind == "Column":
        return named(of.name)
    if kind == "Literal":
        text = of.name
        return F.lit(text if of.is_string else int(text) if text.isdigit() else float(text))
    return F.expr(of.sql(_SPARK))


def _refers(of: Any) -> bool:
    """Whether an expression looks at other rows: by a variable, or by a function of rows."""
    from sqlglot import exp

    functions = (exp.First, exp.Last, exp.AggFunc)
    return any(
        isinstance(node, functions)
        or (isinstance(node, exp.Column) and node.table)
        or (isinstance(node, exp.Anonymous) and node.name.upper() in ("PREV", "NEXT"))
        for node in of.walk()
    )


@dataclass(frozen=True)
class _Condition:
    """A condition of `DEFINE`, as a Spark column."""

    variable: str
    variables: list[str]

    def column(self, of: Any) -> SparkColumn:
        kind = type(of).__name__
        own = self._without_own(of)
        if not _refers(own):
            return _of_row(own)
        binary: dict[str, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
            "And": lambda x, y: x & y,
            "Or": lambda x, y: x | y,
            "EQ": lambda x, y: x == y,
            "NEQ": lambda x, y: x != y,
            "LT": lambda x, y: x < y,
            "LTE": lambda x, y: x <= y,
            "GT": lambda x, y: x > y,
            "GTE": lambda x, y: x >= y,
            "Add": lambda x, y: x + y,
            "Sub": lambda x, y: x - y,
            "Mul": lambda x, y: x * y,
            "Div": lambda x, y: x / y,
        }
        if kind in binary:
            return binary[kind](self.column(of.this), self.column(of.expression))
        if kind == "Paren":
            return self.column(of.this)
        if kind == "Not":
            return ~self.column(of.this)
        if kind == "Neg":
            return -self.column(of.this)
        if kind == "Abs":
            return F.abs(self.column(of.this))
        if kind == "Is" and type(of.expression).__name__ == "Null":
            return self.column(of.this).isNull()
        if kind == "Column":
            return matched(_variable(of.table, self.variables)).last(of.name)
        return self._function(of, kind)

    def _without_own(self, of: Any) -> Any:
        """The expression with columns of its own variable as those of the row."""
        from sqlglot import exp

        def own(node: Any) -> Any:
            is_own = isinstance(node, exp.Column) and node.table.lower() == self.variable.lower()
            inside = isinstance(node.parent, exp.First | exp.Last | exp.AggFunc)
            return exp.column(node.name) if is_own and not inside else node

        return of.transform(own)

    def _function(self, of: Any, kind: str) -> SparkColumn:
        """A function of rows. The row itself is one of those of its own variable, and of all."""
        name = kind.lower()
        argument = of.expressions[0] if kind == "Anonymous" else of.this
        if kind == "Anonymous" and of.name.upper() == "PREV" and len(of.expressions) == 1:
            return matched().last(_plain(argument, "PREV"))
        rows, column, is_own = self._rows(argument, kind)
        if kind == "Count":
            return rows.count(column) + (1 if is_own else 0)
        assert column is not None
        if kind == "Last":
            back = int(of.expression.name) if of.expression is not None else 0
            if is_own:
                return named(column) if back == 0 else rows.last(column, back - 1)
            return rows.last(column, back)
        if kind == "First" and of.expression is None:
            first = rows.first(column)
            return F.coalesce(first, named(column)) if is_own else first
        if kind in _AGGREGATES and not is_own:
            result: SparkColumn = getattr(rows, _AGGREGATES[kind])(column)
            return result
        if kind in ("Sum", "Avg"):
            own, before = named(column), rows.sum(column)
            total = F.coalesce(before + own, before, own)
            return total if kind == "Sum" else total / (rows.count(column) + 1)
        raise PatternError(
            f"DEFINE {self.variable} AS ...: {of.sql()} cannot be translated"
            + (", because it includes the row itself." if is_own else f": there is no {name}.")
            + " Write the pattern with mr.pattern()."
        )

    def _rows(self, argument: Any, kind: str) -> tuple[MatchedRows, str | None, bool]:
        """The rows of a function, its column, and whether the row itself is one of them."""
        if type(argument).__name__ == "Star":
            return matched(), None, True
        if type(argument).__name__ != "Column":
            raise PatternError(
                f"DEFINE {self.variable} AS ...: {kind.upper()} of {argument.sql()}. It takes a "
                "column; compute others in transform()."
            )
        if not argument.table:
            return matched(), argument.name, True
        variable = _variable(argument.table, self.variables)
        return matched(variable), argument.name, variable == self.variable


def _measure(of: Any, variables: list[str]) -> SparkColumn:
    """A measure: Spark computes it over what it refers to."""
    from sqlglot import exp

    def reference(node: Any) -> SparkColumn | None:
        kind = type(node).__name__
        if kind == "Column":
            variable = _variable(node.table, variables) if node.table else None
            return matched(variable).last(node.name)
        if kind not in ("First", "Last", "Count", *_AGGREGATES):
            return None
        argument = node.this
        if type(argument).__name__ == "Star":
            return matched().count()
        if type(argument).__name__ != "Column" or (
            kind in ("First", "Last") and node.expression is not None
        ):
            raise PatternError(
                f"MEASURES {node.sql()}: a measure is of a column, without an offset. Compute "
                "others in transform()."
            )
        rows = matched(_variable(argument.table, variables) if argument.table else None)
        function = _AGGREGATES.get(kind, kind.lower())
        column: SparkColumn = getattr(rows, function)(argument.name)
        return column

    alone = reference(of)
    if alone is not None:
        return alone

    def replaced(node: Any) -> Any:
        column = reference(node)
        return node if column is None else exp.column(str(node_of(column).sql()))

    return F.expr(of.transform(replaced).sql(_SPARK))
