"""A pattern operator's spec: what a location keeps of it, and what a worker needs to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from millrace.errors import PatternError
from millrace.operators.operator import Column
from millrace.operators.pattern import expressions, tree
from millrace.operators.pattern.expressions import Expression
from millrace.operators.pattern.layout import KIND
from millrace.operators.pattern.matcher import After

FUNCTIONS = ("first", "last", "min", "max", "sum", "mean", "count", "list")
"""What a match can say of the rows of a variable."""


@dataclass(frozen=True)
class Measure:
    """A column that a match has: a function of the rows of a variable, or of all of its rows."""

    name: str
    function: str
    variable: str | None
    column: str | None

    def result_type(self, column: T.DataType | None) -> T.DataType:
        """The type of the column, given that of what it is computed from."""
        if self.function == "count":
            return T.LongType()
        assert column is not None
        if self.function == "list":
            return T.ArrayType(column, True)
        if self.function not in ("sum", "mean"):
            return column
        whole = isinstance(column, T.ByteType | T.ShortType | T.IntegerType | T.LongType)
        if not whole and not isinstance(column, T.FloatType | T.DoubleType):
            raise PatternError(
                f"{self.function}({self.column!r}) of a match: the column is of type "
                f"{column.simpleString()}, and whole numbers and doubles can be added. Cast it."
            )
        return T.LongType() if whole and self.function == "sum" else T.DoubleType()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "variable": self.variable,
            "column": self.column,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Measure:
        return Measure(data["name"], data["function"], data["variable"], data["column"])


@dataclass(frozen=True)
class PatternDefinition:
    """What is looked for, in which rows, and what is said of what is found."""

    keys: tuple[Column, ...]
    columns: tuple[Column, ...]
    """The columns that conditions on earlier rows and measures read, beside the key's."""
    pattern: tree.Sequence
    bits: tuple[str, ...]
    """The variables with a condition that Spark computes, in the order of their bits."""
    conditions: tuple[tuple[str, Expression], ...]
    """Conditions on earlier rows, by variable."""
    within_us: int
    after: After
    measures: tuple[Measure, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [key.to_json() for key in self.keys],
            "columns": [column.to_json() for column in self.columns],
            "pattern": self.pattern.to_json(),
            "bits": list(self.bits),
            "conditions": {name: condition.to_json() for name, condition in self.conditions},
            "within": self.within_us,
            "after": self.after.to_json(),
            "measures": [measure.to_json() for measure in self.measures],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> PatternDefinition:
        return PatternDefinition(
            tuple(Column.from_json(key) for key in data["keys"]),
            tuple(Column.from_json(column) for column in data["columns"]),
            tree.Sequence.from_json(data["pattern"]),
            tuple(data["bits"]),
            tuple((n, expressions.from_json(c)) for n, c in data["conditions"].items()),
            data["within"],
            After.from_json(data["after"]),
            tuple(Measure.from_json(measure) for measure in data["measures"]),
        )
