"""Conditions on earlier rows, compiled to the instructions that `matching` interprets.

A program works on a stack of values, each a whole number or a double, and NULL or not. Texts are
compared by their rank among all texts of the epoch, so they are whole numbers, too; so are times
and truth values. What a condition asks of earlier rows is kept in *registers*, which are brought up
to date when a row is taken: then a condition costs the same however many rows were taken.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import Float64Array, Int64Array
from millrace.errors import PatternError
from millrace.operators.pattern.expressions import (
    ARITHMETIC,
    COALESCE,
    COMPARISONS,
    LOGIC,
    UNARY,
    Call,
    Current,
    Expression,
    Literal,
    Reference,
    references,
)

(
    CURRENT_INT,
    CURRENT_FLOAT,
    EARLIER_INT,
    EARLIER_FLOAT,
    WALK_INT,
    WALK_FLOAT,
    COUNT,
    SUM_INT,
    SUM_FLOAT,
    CONSTANT_INT,
    CONSTANT_FLOAT,
    CONSTANT_TEXT,
    CONSTANT_NULL,
    TO_FLOAT,
    NOT,
    IS_NULL,
    IS_NOT_NULL,
    NEGATIVE_INT,
    NEGATIVE_FLOAT,
    ABS_INT,
    ABS_FLOAT,
    AND,
    OR,
    ADD_INT,
    SUBTRACT_INT,
    MULTIPLY_INT,
    ADD_FLOAT,
    SUBTRACT_FLOAT,
    MULTIPLY_FLOAT,
    DIVIDE,
    EQUAL_INT,
    UNEQUAL_INT,
    LESS_INT,
    AT_MOST_INT,
    MORE_INT,
    AT_LEAST_INT,
    SAME_INT,
    EQUAL_FLOAT,
    UNEQUAL_FLOAT,
    LESS_FLOAT,
    AT_MOST_FLOAT,
    MORE_FLOAT,
    AT_LEAST_FLOAT,
    SAME_FLOAT,
    EITHER,
) = range(45)
"""The instructions. Those of one value come before `AND`, those of two from there on."""

KEEP_FIRST, KEEP_LAST, KEEP_MIN, KEEP_MAX, KEEP_COUNT, KEEP_SUM = range(6)
"""What a register keeps: a row, or a number."""

ANY = -1
"""In place of a variable: all of them."""

MOST_DEPTH = 64
"""Values on the stack at once."""


class ValueKind(enum.Enum):
    """What can be compared with what."""

    TRUTH = "truth value"
    WHOLE = "whole number"
    FLOAT = "double"
    TEXT = "text"
    TIME = "timestamp"
    DATE = "date"
    NULL = "NULL"

    @property
    def is_number(self) -> bool:
        return self in (ValueKind.WHOLE, ValueKind.FLOAT, ValueKind.NULL)


def value_kind(data_type: pa.DataType, column: str) -> ValueKind:
    """What a column's values are; raises if conditions on earlier rows cannot compare them."""
    checks = {
        ValueKind.TRUTH: pa.types.is_boolean,
        ValueKind.WHOLE: pa.types.is_signed_integer,
        ValueKind.FLOAT: pa.types.is_floating,
        ValueKind.TEXT: pa.types.is_string,
        ValueKind.TIME: pa.types.is_timestamp,
        ValueKind.DATE: pa.types.is_date32,
    }
    for kind, check in checks.items():
        if check(data_type):
            return kind
    raise PatternError(
        f"a condition compares {column!r}, of type {data_type}, with that of an earlier row. That "
        "can be done with numbers, texts, truth values, dates and timestamps: cast it, in "
        "transform() or in the condition."
    )


@dataclass(frozen=True)
class Programs:
    """The conditions of all variables, compiled."""

    code: Int64Array
    """A row per instruction: what to do, and up to three numbers."""
    bounds: Int64Array
    """Where the program of each variable begins; one without instructions always holds."""
    floats: Float64Array
    texts: tuple[str, ...]
    """The constants."""
    registers: Int64Array
    """What to keep, of which variable, of which column, the column's place, whether a double."""
    values: tuple[tuple[str, ValueKind], ...]
    """The columns that programs read."""
    has_references: bool

    @property
    def wholes(self) -> list[int]:
        """The numbers of the columns that are no doubles, in their order."""
        return [i for i, (_, kind) in enumerate(self.values) if kind is not ValueKind.FLOAT]

    @property
    def doubles(self) -> list[int]:
        return [i for i, (_, kind) in enumerate(self.values) if kind is ValueKind.FLOAT]


def compile_conditions(
    conditions: Mapping[str, Expression | None],
    variables: tuple[str, ...],
    types: Mapping[str, pa.DataType],
) -> Programs:
    """The programs of conditions, which may be of any of `variables`.

    `types` are those of the columns that there are.
    """
    compiler = _Compiler(variables, types)
    bounds = [0]
    has_references = False
    for variable in variables:
        condition = conditions.get(variable)
        if condition is not None:
            has_references |= any(True for _ in references(condition))
            compiler.condition(variable, condition)
        bounds.append(len(compiler.code))
    code: Int64Array = np.asarray(compiler.code, np.int64).reshape(-1, 4)
    registers: Int64Array = np.asarray(list(compiler.registers), np.int64).reshape(-1, 5)
    return Programs(
        code,
        np.asarray(bounds, np.int64),
        np.asarray(compiler.floats, np.float64),
        tuple(compiler.texts),
        registers,
        tuple(compiler.values.items()),
        has_references,
    )


class _Compiler:
    def __init__(self, variables: tuple[str, ...], types: Mapping[str, pa.DataType]) -> None:
        self.code: list[tuple[int, int, int, int]] = []
        self.floats: list[float] = []
        self.texts: list[str] = []
        self.registers: dict[tuple[int, int, int, int, int], int] = {}
        self.values: dict[str, ValueKind] = {}
        self._places: dict[str, int] = {}
        self._variables = variables
        self._types = types
        self._depth = 0

    def condition(self, variable: str, condition: Expression) -> None:
        kind = self._expression(condition)
        if kind not in (ValueKind.TRUTH, ValueKind.NULL):
            raise PatternError(
                f"the condition of {variable!r} is a {kind.value}, and must be true or false."
            )
        self._depth -= 1
        assert self._depth == 0

    def _emit(self, code: int, a: int = 0, b: int = 0, c: int = 0, *, deeper: int = 0) -> None:
        self.code.append((code, a, b, c))
        self._depth += deeper
        if self._depth > MOST_DEPTH:
            raise PatternError("a condition on earlier rows is nested too deeply. Simplify it.")

    def _value(self, name: str) -> tuple[int, int, ValueKind]:
        """A column: its number, its place among those of its sort, and what it is."""
        if name not in self._types:
            raise PatternError(
                f"a condition reads the column {name!r}, which there is not. The columns are "
                f"{', '.join(self._types)}."
            )
        if name not in self.values:
            kind = value_kind(self._types[name], name)
            same = [
                (k is ValueKind.FLOAT) == (kind is ValueKind.FLOAT) for k in self.values.values()
            ]
            self._places[name] = sum(same)
            self.values[name] = kind
        number = list(self.values).index(name)
        return number, self._places[name], self.values[name]

    def _expression(self, expression: Expression) -> ValueKind:
        if isinstance(expression, Literal):
            return self._literal(expression)
        if isinstance(expression, Current):
            number, place, kind = self._value(expression.column)
            code = CURRENT_FLOAT if kind is ValueKind.FLOAT else CURRENT_INT
            self._emit(code, place, number, deeper=1)
            return kind
        if isinstance(expression, Reference):
            return self._reference(expression)
        assert isinstance(expression, Call)
        return self._call(expression)

    def _literal(self, literal: Literal) -> ValueKind:
        value = literal.value
        if value is None:
            self._emit(CONSTANT_NULL, deeper=1)
            return ValueKind.NULL
        if isinstance(value, str):
            self.texts.append(value)
            self._emit(CONSTANT_TEXT, len(self.texts) - 1, deeper=1)
            return ValueKind.TEXT
        if isinstance(value, float):
            self.floats.append(value)
            self._emit(CONSTANT_FLOAT, len(self.floats) - 1, deeper=1)
            return ValueKind.FLOAT
        if not -(2**63) <= value < 2**63:
            raise PatternError(f"a condition has the number {value}, which has over 64 bits.")
        self._emit(CONSTANT_INT, int(value), deeper=1)
        return ValueKind.TRUTH if isinstance(value, bool) else ValueKind.WHOLE

    def _register(self, keep: int, variable: int, column: str | None = None) -> int:
        number = place = -1
        is_float = False
        if column is not None:
            number, place, kind = self._value(column)
            is_float = kind is ValueKind.FLOAT
        key = (keep, variable, number, place, int(is_float))
        return self.registers.setdefault(key, len(self.registers))

    def _reference(self, reference: Reference) -> ValueKind:
        variable = ANY
        if reference.variable is not None:
            if reference.variable not in self._variables:
                raise PatternError(
                    f"a condition refers to {reference.variable!r}, which the pattern has not. It "
                    f"has {', '.join(map(repr, self._variables))}."
                )
            variable = self._variables.index(reference.variable)
        if reference.function == "count":
            self._emit(COUNT, self._register(KEEP_COUNT, variable, reference.column), deeper=1)
            return ValueKind.WHOLE
        assert reference.column is not None
        number, place, kind = self._value(reference.column)
        is_float = kind is ValueKind.FLOAT
        if reference.function in ("sum", "mean"):
            if not kind.is_number:
                raise PatternError(
                    f"{reference.function}({reference.column!r}): it is a {kind.value}, and only "
                    "numbers can be added."
                )
            total = self._register(KEEP_SUM, variable, reference.column)
            count = self._register(KEEP_COUNT, variable, reference.column)
            self._emit(SUM_FLOAT if is_float else SUM_INT, total, count, deeper=1)
            if reference.function == "sum":
                return kind
            self._to_float(kind)
            self._emit(COUNT, count, deeper=1)
            self._emit(TO_FLOAT)
            self._emit(DIVIDE, deeper=-1)
            return ValueKind.FLOAT
        if reference.back:
            code = WALK_FLOAT if is_float else WALK_INT
            self._emit(code, variable, place | number << 32, reference.back, deeper=1)
            return kind
        keeps = {"first": KEEP_FIRST, "last": KEEP_LAST, "min": KEEP_MIN, "max": KEEP_MAX}
        if reference.function not in keeps:
            raise PatternError(f"there is no function {reference.function!r} of earlier rows.")
        keep = keeps[reference.function]
        # Which row was first or last does not depend on a column.
        of = reference.column if keep in (KEEP_MIN, KEEP_MAX) else None
        code = EARLIER_FLOAT if is_float else EARLIER_INT
        self._emit(code, self._register(keep, variable, of), place, number, deeper=1)
        return kind

    def _to_float(self, kind: ValueKind) -> None:
        if kind is ValueKind.WHOLE:
            self._emit(TO_FLOAT)

    def _call(self, call: Call) -> ValueKind:
        operation = call.operation
        if operation in UNARY:
            return self._unary(operation, self._expression(call.arguments[0]))
        left, right = call.arguments
        if operation in LOGIC:
            for side in (left, right):
                kind = self._expression(side)
                if kind not in (ValueKind.TRUTH, ValueKind.NULL):
                    raise PatternError(
                        f"{operation!r} of a {kind.value}, which is not a condition."
                    )
            self._emit(AND if operation == "and" else OR, deeper=-1)
            return ValueKind.TRUTH
        if operation not in (*COMPARISONS, *ARITHMETIC, COALESCE):
            raise PatternError(f"conditions on earlier rows cannot have {operation!r}.")
        kind = self._both(operation, left, right)
        is_float = kind is ValueKind.FLOAT
        if operation == COALESCE:
            self._emit(EITHER, deeper=-1)
            return kind
        if operation in ARITHMETIC:
            at = ARITHMETIC.index(operation)
            if operation == "/":
                self._emit(DIVIDE, deeper=-1)
                return ValueKind.FLOAT
            self._emit((ADD_FLOAT if is_float else ADD_INT) + at, deeper=-1)
            return kind
        at = COMPARISONS.index(operation)
        self._emit((EQUAL_FLOAT if is_float else EQUAL_INT) + at, deeper=-1)
        return ValueKind.TRUTH

    def _unary(self, operation: str, kind: ValueKind) -> ValueKind:
        if operation == "not":
            self._emit(NOT)
            return ValueKind.TRUTH
        if operation in ("is null", "is not null"):
            self._emit(IS_NULL if operation == "is null" else IS_NOT_NULL)
            return ValueKind.TRUTH
        if not kind.is_number:
            raise PatternError(f"{operation!r} of a {kind.value}, which is not a number.")
        is_float = kind is ValueKind.FLOAT
        if operation == "abs":
            self._emit(ABS_FLOAT if is_float else ABS_INT)
        else:
            self._emit(NEGATIVE_FLOAT if is_float else NEGATIVE_INT)
        return kind

    def _both(self, operation: str, left: Expression, right: Expression) -> ValueKind:
        """Two values, as doubles if one of them is one or if they are divided."""
        begin, depth = len(self.code), self._depth
        first = self._expression(left)
        second = self._expression(right)
        both = {first, second} - {ValueKind.NULL}
        arithmetic = operation in ARITHMETIC
        if not both:
            return ValueKind.WHOLE
        numbers = both <= {ValueKind.WHOLE, ValueKind.FLOAT}
        if (arithmetic and not numbers) or not (numbers or len(both) == 1):
            raise PatternError(
                f"a condition has {operation!r} of a {first.value} and a {second.value}, which "
                "do not go together. Cast one of them."
            )
        if not numbers or (both == {ValueKind.WHOLE} and operation != "/"):
            return both.pop()
        # Again, now that it is known that whole numbers have to be converted.
        del self.code[begin:]
        self._depth = depth
        for side, kind in ((left, first), (right, second)):
            self._expression(side)
            self._to_float(kind)
        return ValueKind.FLOAT
