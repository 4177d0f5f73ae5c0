"""What a processor emits: rows or columns, to its output and to its side outputs.

A side output is declared in the class and emitted to while a key is processed. Its rows belong to
the epoch as those of the main output do: an epoch that runs again emits the same, and one that
fails emits nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array
from millrace.ddl import parse_schema
from millrace.errors import StateAccessError, StateTypeError, UsageError
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.process.convert import as_array, to_arrow
from millrace.operators.process.cursor import Cursor

LATE = "late rows"
"""The side output with the rows that were too late. No attribute can have this name."""


class SideOutput:
    """An output beside the main one: `alerts = mr.SideOutput("user string, why string")`."""

    def __init__(self, schema: str | T.StructType) -> None:
        self.schema = parse_schema(schema)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def emit(self, row: Any) -> None:
        """Send a row; a BatchProcessor sends an Arrow table or a dict of columns."""
        _refuse(self.name)


def _refuse(name: str) -> NoReturn:
    raise StateAccessError(
        f"side output {name!r} was used outside of process() and on_timer(). What is emitted "
        "belongs to an epoch: emit only while it is processed."
    )


def side_outputs(processor: object) -> dict[str, SideOutput]:
    """A processor's side outputs by name, base classes first."""
    cls = type(processor)
    for name, value in vars(processor).items():
        if isinstance(value, SideOutput):
            raise UsageError(
                f"{cls.__name__}: {name!r} is declared on the instance. Declare side outputs in "
                f"the class body: class {cls.__name__}: {name} = mr.SideOutput(...)."
            )
    found: dict[str, SideOutput] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, SideOutput):
                found[name] = value
            else:
                found.pop(name, None)
    return found


def side_schemas(
    processor: object, fields: Sequence[Column], event_time: str | None
) -> dict[str, T.StructType]:
    """All outputs beside the main one: those declared, and the late rows if there can be any."""
    schemas = {name: side.schema for name, side in side_outputs(processor).items()}
    if event_time is not None:
        schemas[LATE] = T.StructType([T.StructField(f.name, f.type) for f in fields])
    return schemas


def late_rows(rows: Input, positions: Int64Array, fields: Sequence[Column]) -> pa.RecordBatch:
    """The late rows among some rows, unchanged."""
    late = pa.array(positions)
    arrays = [
        types.conform(column, types.arrow_type(f.type, f.name)).take(late)
        for column, f in zip(rows.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])


class RowOutlet:
    """Takes the rows of one side output, and remembers whose they are."""

    __slots__ = ("_cursor", "_is_open", "_name", "owners", "rows")

    def __init__(self, name: str, cursor: Cursor) -> None:
        self._name = name
        self._cursor = cursor
        self._is_open = True
        self.rows: list[Any] = []
        self.owners: list[int] = []

    def emit(self, row: Any) -> None:
        if not self._is_open:
            _refuse(self._name)
        self.rows.append(row)
        self.owners.append(self._cursor.i)

    def close(self) -> None:
        self._is_open = False


class BatchOutlet:
    """Takes the batches of one side output."""

    def __init__(self, name: str, schema: T.StructType, operator_name: str) -> None:
        self._name = name
        self._schema = schema
        self._what = f"operator {operator_name!r}: side output {name!r}"
        self._is_open = True
        self._batches: list[pa.RecordBatch] = []

    def emit(self, columns: Any) -> None:
        if not self._is_open:
            _refuse(self._name)
        self._batches.append(column_batch(columns, self._schema, self._what))

    def close(self) -> pa.RecordBatch:
        """All that was emitted."""
        self._is_open = False
        if not self._batches:
            return column_batch(None, self._schema, self._what)
        return pa.concat_batches(self._batches)


def row_batch(
    rows: Sequence[Any], schema: T.StructType, misfit: Callable[[int, str], StateTypeError]
) -> pa.RecordBatch:
    """Rows as a batch; `misfit` makes the error for the row at a position, from a reason."""
    fields = schema.fields
    if set(map(type, rows)) - {tuple} or set(map(len, rows)) - {len(fields)}:
        for position, row in enumerate(rows):
            if not isinstance(row, tuple | list) or len(row) != len(fields):
                raise misfit(position, f"it should be a tuple of {len(fields)} values")
    arrays = []
    for i, field in enumerate(fields):
        # One column after the other: zip(*rows) would make an iterator per row.
        column = list(map(operator.itemgetter(i), rows))
        arrow = types.arrow_type(field.dataType, f"output column {field.name!r}")
        try:
            arrays.append(to_arrow(column, arrow, f"output column {field.name!r}"))
        except StateTypeError as error:
            if error.position is None:
                raise
            raise misfit(error.position, str(error)) from error
    return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])


def column_batch(columns: Any, schema: T.StructType, what: str) -> pa.RecordBatch:
    """An Arrow table, a dict of columns or None as a batch of exactly this schema."""
    fields = schema.fields
    given: Mapping[str, Any]
    if columns is None:
        given = {f.name: [] for f in fields}
    elif isinstance(columns, pa.Table | pa.RecordBatch):
        given = {name: columns.column(name) for name in columns.schema.names}
    elif isinstance(columns, Mapping):
        given = columns
    else:
        raise StateTypeError(
            f"{what} was given as {type(columns).__name__}; it should be an Arrow table, a dict of "
            "columns, or None."
        )
    missing = [f.name for f in fields if f.name not in given]
    if missing:
        raise StateTypeError(
            f"{what} has no column {missing[0]!r}; the schema is {schema.simpleString()}."
        )
    arrays = [
        as_array(given[f.name], types.arrow_type(f.dataType, f.name), f"{what}: column {f.name!r}")
        for f in fields
    ]
    if len({len(array) for array in arrays}) > 1:
        sizes = {f.name: len(a) for f, a in zip(fields, arrays, strict=True)}
        raise StateTypeError(f"{what} has columns of different lengths: {sizes}.")
    return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])
