"""Conditions on a row and on the rows taken before it, as a small language.

    Call(">", (Current("amount"), Reference("last", "small", "amount")))

What depends on the current row alone is computed by Spark and arrives as a column; what is left are
comparisons and sums with earlier rows. Conditions have SQL's three values: one that is NULL does
not hold. A `Reference` never includes the current row.

In a program it is written with operators: `column("amount") > earlier("small").last("amount")`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace.errors import PatternError

FUNCTIONS = ("first", "last", "min", "max", "sum", "mean", "count")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
ARITHMETIC = ("+", "-", "*", "/")
COALESCE = "coalesce"
"""The first of two values, or the second if it is NULL."""
LOGIC = ("and", "or")
UNARY = ("not", "is null", "is not null", "negative", "abs")


class Expression:
    """A value that is computed of a row and of the rows taken before it."""

    def __and__(self, other: object) -> Expression:
        return Call("and", (self, of(other)))

    def __or__(self, other: object) -> Expression:
        return Call("or", (self, of(other)))

    def __invert__(self) -> Expression:
        return Call("not", (self,))

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Call("=", (self, of(other)))

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return Call("<>", (self, of(other)))

    def __lt__(self, other: object) -> Expression:
        return Call("<", (self, of(other)))

    def __le__(self, other: object) -> Expression:
        return Call("<=", (self, of(other)))

    def __gt__(self, other: object) -> Expression:
        return Call(">", (self, of(other)))

    def __ge__(self, other: object) -> Expression:
        return Call(">=", (self, of(other)))

    def __add__(self, other: object) -> Expression:
        return Call("+", (self, of(other)))

    def __sub__(self, other: object) -> Expression:
        return Call("-", (self, of(other)))

    def __mul__(self, other: object) -> Expression:
        return Call("*", (self, of(other)))

    def __truediv__(self, other: object) -> Expression:
        return Call("/", (self, of(other)))

    __hash__ = object.__hash__

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Current(Expression):
    """A column of the current row."""

    column: str

    def to_json(self) -> dict[str, Any]:
        return {"current": self.column}


@dataclass(frozen=True, eq=False)
class Reference(Expression):
    """Something of the rows that were taken before: of a variable, or of all of them."""

    function: str
    variable: str | None
    column: str | None
    """None for a count of rows."""
    back: int = 0
    """For `last`: how many rows before the last one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "variable": self.variable,
            "column": self.column,
            "back": self.back,
        }


@dataclass(frozen=True, eq=False)
class Literal(Expression):
    """A constant: a number, a text, a truth value, or None."""

    value: bool | int | float | str | None

    def to_json(self) -> dict[str, Any]:
        return {"literal": self.value}


@dataclass(frozen=True, eq=False)
class Call(Expression):
    """An operation on other expressions."""

    operation: str
    arguments: tuple[Expression, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "arguments": [argument.to_json() for argument in self.arguments],
        }


def from_json(data: dict[str, Any]) -> Expression:
    if data.get("current") is not None:
        return Current(data["current"])
    if data.get("operation") is not None:
        return Call(data["operation"], tuple(from_json(a) for a in data["arguments"]))
    if data.get("function") is not None:
        return Reference(data["function"], data["variable"], data["column"], data["back"])
    return Literal(data["literal"])


def of(value: object) -> Expression:
    """A value of a program as an expression."""
    if isinstance(value, Expression):
        return value
    if value is None or isinstance(value, bool | int | float | str):
        return Literal(value)
    if isinstance(value, dt.datetime | dt.date):
        raise PatternError(f"{value!r}: compare times in where() of a Spark column.")
    raise PatternError(f"{value!r} is no number, text or truth value that rows can be compared to.")


def references(expression: Expression) -> Iterator[Reference]:
    """All references in an expression."""
    if isinstance(expression, Reference):
        yield expression
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from references(argument)


def columns(expression: Expression) -> Iterator[str]:
    """The names of the columns that an expression reads, of whichever rows."""
    if isinstance(expression, Current | Reference):
        if expression.column is not None:
            yield expression.column
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from columns(argument)


def column(name: str) -> Expression:
    """A column of the current row."""
    return Current(name)


def earlier(variable: str | None = None) -> Earlier:
    """The rows of a variable, or of all, that were taken before the current one."""
    return Earlier(variable)


def previous(name: str) -> Expression:
    """A column of the row that was taken last."""
    return Reference("last", None, name)


@dataclass(frozen=True)
class Earlier:
    """Rows that were taken before: what can be asked of them."""

    variable: str | None

    def first(self, name: str) -> Expression:
        return Reference("first", self.variable, name)

    def last(self, name: str, back: int = 0) -> Expression:
        return Reference("last", self.variable, name, back)

    def min(self, name: str) -> Expression:
        return Reference("min", self.variable, name)

    def max(self, name: str) -> Expression:
        return Reference("max", self.variable, name)

    def sum(self, name: str) -> Expression:
        return Reference("sum", self.variable, name)

    def mean(self, name: str) -> Expression:
        return Reference("mean", self.variable, name)

    def count(self, name: str | None = None) -> Expression:
        return Reference("count", self.variable, name)

    def list(self, name: str) -> Expression:
        """All values. Of a match, not in conditions."""
        return Reference("list", self.variable, name)
