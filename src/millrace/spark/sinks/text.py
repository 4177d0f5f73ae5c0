"""Arrow columns as text, for targets that do not take Arrow.

Invariant: a NULL stays a NULL. A number, a decimal or a time as text is the same value when it is
read back. Arrays, structs and maps become JSON; binary values in it are hexadecimal, and a map is
an object if its keys are strings, else an array of pairs.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyarrow import types as pt


def is_nested(data_type: pa.DataType) -> bool:
    """Whether values of a type become JSON."""
    return bool(pt.is_nested(data_type))


def json_column(column: pa.Array) -> pa.Array:
    """Nested values as JSON."""
    plain = (_plain(value, column.type) for value in column.to_pylist())
    return pa.array([None if v is None else json.dumps(v) for v in plain], pa.string())


def _plain(value: Any, data_type: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_map(data_type):
        keys, items = data_type.key_type, data_type.item_type
        pairs = [(_plain(k, keys), _plain(v, items)) for k, v in value]
        return dict(pairs) if pt.is_string(keys) else [list(pair) for pair in pairs]
    if pt.is_struct(data_type):
        return {field.name: _plain(value[field.name], field.type) for field in data_type}
    if is_nested(data_type):
        return [_plain(each, data_type.value_type) for each in value]
    if pt.is_boolean(data_type) or pt.is_integer(data_type):
        return value
    if pt.is_floating(data_type):
        # JSON has no words for these.
        return value if value == value and abs(value) != float("inf") else str(value)
    if pt.is_binary(data_type):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def hex_column(column: pa.Array, prefix: str = "") -> pa.Array:
    """Binary values in hexadecimal."""
    return pa.array([None if v is None else prefix + v.hex() for v in column.to_pylist()])
