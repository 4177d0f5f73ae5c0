"""Turn the keys that a user gives into columns of the state's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace import types
from millrace.errors import StateTypeError, UsageError
from millrace.keygroups.keys import check_computable
from millrace.operators.process.convert import to_arrow
from millrace.reading.description import Description


def key_columns(
    keys: pa.Table | Sequence[Any],
    description: Description,
    schema: pa.Schema,
    optional: frozenset[str] = frozenset(),
) -> list[pa.Array]:
    """One array per column of a key to look up, which `schema` has; the optional ones are last."""
    for key in description.keys:
        check_computable(key.name, key.type)
    if isinstance(keys, pa.Table | pa.RecordBatch):
        return [
            pa.nulls(keys.num_rows, field.type)
            if field.name in optional and field.name not in keys.schema.names
            else _of_table(keys, description, field)
            for field in schema
        ]
    rows = [_row(key, description, schema, optional) for key in keys]
    columns = []
    for i, field in enumerate(schema):
        try:
            columns.append(to_arrow([row[i] for row in rows], field.type, f"key {field.name!r}"))
        except StateTypeError as error:
            raise UsageError(f"{error} The key is {describe(description)}.") from error
    return columns


def _of_table(keys: pa.Table, description: Description, field: pa.Field) -> pa.Array:
    name = field.name
    if name not in keys.schema.names:
        raise UsageError(
            f"the keys have no column {name!r}; the key of operator {description.name!r} is "
            f"{describe(description)}."
        )
    try:
        return types.conform(keys.column(name), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"key column {name!r} has type {keys.schema.field(name).type}, which does not fit: "
            f"the key is {describe(description)}. {error}"
        ) from error


def _row(
    key: Any, description: Description, schema: pa.Schema, optional: frozenset[str]
) -> tuple[Any, ...]:
    names = schema.names
    if isinstance(key, Mapping) and set(names) - optional <= set(key) <= set(names):
        return tuple(key.get(name) for name in names)
    is_struct = pa.types.is_struct(schema.types[0])
    if len(names) == 1 and (is_struct or not isinstance(key, Mapping)):
        return tuple(key) if isinstance(key, tuple) and len(key) == 1 else (key,)
    if isinstance(key, tuple | list) and len(names) - len(optional) <= len(key) <= len(names):
        return (*key, *(None for _ in names[len(key) :]))
    raise UsageError(
        f"{key!r} is not a key of operator {description.name!r}, whose key is "
        f"{describe(description)}: give a tuple or a dict with {', '.join(names)}."
    )


def describe(description: Description) -> str:
    """The key's columns and types."""
    return f"({', '.join(map(str, description.keys))})"
