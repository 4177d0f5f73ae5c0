"""Keys that a user gives, as columns in the types of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace import types
from millrace.errors import StateTypeError, UsageError
from millrace.keygroups.hashing import check_computable
from millrace.processors.convert import to_arrow
from millrace.reading.described import Described


def key_columns(keys: pa.Table | Sequence[Any], described: Described) -> list[pa.Array]:
    """One array per key column."""
    for key in described.keys:
        check_computable(key.name, key.type)
    if isinstance(keys, pa.Table | pa.RecordBatch):
        return [_of_table(keys, described, name) for name in described.key_names]
    rows = [_row(key, described) for key in keys]
    columns = []
    for i, field in enumerate(described.key_schema):
        try:
            columns.append(to_arrow([row[i] for row in rows], field.type, f"key {field.name!r}"))
        except StateTypeError as error:
            raise UsageError(f"{error} The key is {describe(described)}.") from error
    return columns


def _of_table(keys: pa.Table, described: Described, name: str) -> pa.Array:
    if name not in keys.schema.names:
        raise UsageError(
            f"the keys have no column {name!r}; the key of operator {described.name!r} is "
            f"{describe(described)}."
        )
    try:
        return types.conform(keys.column(name), described.main.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"key column {name!r} has type {keys.schema.field(name).type}, which does not fit: "
            f"the key is {describe(described)}. {error}"
        ) from error


def _row(key: Any, described: Described) -> tuple[Any, ...]:
    names = described.key_names
    if isinstance(key, Mapping) and set(key) == set(names):
        return tuple(key[name] for name in names)
    is_struct = pa.types.is_struct(described.key_schema.types[0])
    if len(names) == 1 and (is_struct or not isinstance(key, Mapping)):
        return tuple(key) if isinstance(key, tuple) and len(key) == 1 else (key,)
    if isinstance(key, tuple | list) and len(key) == len(names):
        return tuple(key)
    raise UsageError(
        f"{key!r} is not a key of operator {described.name!r}, whose key is {describe(described)}: "
        "give a tuple or a dict with these."
    )


def describe(described: Described) -> str:
    """The key's columns and types."""
    columns = ", ".join(f"{key.name} {key.type.simpleString()}" for key in described.keys)
    return f"({columns})"
