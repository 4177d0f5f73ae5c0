"""The initial state: rows of a batch table that a processor's states begin with.

They travel with the first epoch's rows, so they are applied once, whatever happens: until the first
manifest they are part of a batch that runs again, and after it the first epoch is over.
A processor that says nothing about them gets each column in the state of its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import types as T

from millrace.errors import InitialStateError, UnknownColumnError
from millrace.operators.operator import Column
from millrace.operators.process.declarations import (
    Declaration,
    List,
    Map,
    Pickled,
    Set,
    StateDeclaration,
    Value,
)
from millrace.operators.process.handles import ListHandle, MapHandle, SetHandle

_ADVICE = "Or write on_initial_state() in the processor, which may use the columns in any way."


def initial_columns(
    schema: T.StructType, keys: Sequence[Column], declared: Mapping[str, Declaration] | None
) -> tuple[Column, ...]:
    """The columns of an initial state; raises if they do not fit.

    `declared` are the states that columns go to; None if the processor has its own
    on_initial_state().
    """
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InitialStateError(f"initial_state= has two columns {twice!r}. Rename one.")
    for key in keys:
        if key.name not in names:
            raise UnknownColumnError(
                f"initial_state= has no column {key.name!r}, which is part of the key. Its columns "
                f"are {', '.join(names)}."
            )
        given = schema[key.name].dataType
        if given != key.type:
            raise InitialStateError(
                f"initial_state=: the key column {key.name!r} is {given.simpleString()}, and in "
                f"the stream it is {key.type.simpleString()}. Cast one of them."
            )
    columns = tuple(Column(f.name, f.dataType) for f in schema.fields)
    if declared is not None:
        key_names = {key.name for key in keys}
        for column in columns:
            if column.name not in key_names:
                _check_column(column, declared)
    return columns


def _check_column(column: Column, declared: Mapping[str, Declaration]) -> None:
    declaration = declared.get(column.name)
    if declaration is None:
        raise InitialStateError(
            f"initial_state= has a column {column.name!r}, and there is no state of that name; the "
            f"processor declares {', '.join(map(repr, declared)) or 'none'}. Drop or rename the "
            f"column. {_ADVICE}"
        )
    wanted = _column_type(declaration)
    if wanted is None or column.name.startswith("_"):
        raise InitialStateError(
            f"initial_state= has a column {column.name!r}, but a {declaration.kind} cannot be "
            f"filled from a column. Drop it. {_ADVICE}"
        )
    if wanted.simpleString() != column.type.simpleString():
        raise InitialStateError(
            f"initial_state=: column {column.name!r} is {column.type.simpleString()}, and the "
            f"{declaration.kind} state of that name needs {wanted.simpleString()}. Cast it. "
            f"{_ADVICE}"
        )


def _column_type(declaration: Declaration) -> T.DataType | None:
    """The type of a column that can fill a state; None if none can."""
    if not isinstance(declaration, StateDeclaration) or isinstance(declaration, Pickled):
        return None
    if isinstance(declaration, Value):
        return declaration.type
    if isinstance(declaration, List | Set):
        return T.ArrayType(declaration.type)
    if isinstance(declaration, Map):
        return T.MapType(declaration.key_type, declaration.value_type)
    return None


def check_single(rows: int, key: Any) -> None:
    """Raise unless a key has one row: two could not both become its state."""
    if rows > 1:
        raise InitialStateError(
            f"initial_state= has {rows} rows for key {key!r}, and its columns go to the states of "
            f"their names. Give one row per key. {_ADVICE}"
        )


def fill(processor: Any, key: Any, rows: Any) -> None:
    """Put every column that is not part of the key into the state of its name."""
    check_single(len(rows), key)
    (row,) = rows
    for name, value in zip(row._fields, row, strict=True):
        if value is None or name in key._fields or name.startswith("_"):
            continue
        state = getattr(processor, name)
        if isinstance(state, MapHandle):
            state.update(value)
        elif isinstance(state, ListHandle):
            state.extend(value)
        elif isinstance(state, SetHandle):
            for member in value:
                state.add(member)
        else:
            state.set(value)
