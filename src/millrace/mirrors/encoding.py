"""Keys and rows as bytes, for stores that know no columns; also what identifies a row in others.

A key is a compact JSON list of the values of its columns, and a row is a JSON object of its other
columns; both as UTF-8, with the conventions of `reading.json_values`:

    ["kitchen","oven"]      {"n":2,"total":270.0}

Invariant: two rows of a state have different keys. Text that is no UTF-8 is escaped, and a key with
a time beyond the years that JSON's texts have is refused, because it would be cut off.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MirrorTargetError
from millrace.reading.json_values import rows_to_json

_FIRST, _LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)


def text_of(value: Any) -> bytes:
    """Compact JSON."""
    shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return shown.encode()
    except UnicodeEncodeError:
        # Bytes that are no text, as lone surrogates.
        return json.dumps(value, separators=(",", ":")).encode()


def key_of(*values: Any) -> bytes:
    """The key of a row from values as JSON has them: `key_of("kitchen", "oven")`."""
    return text_of(list(values))


def keys_of(rows: pa.RecordBatch, keys: Sequence[str]) -> list[bytes]:
    """The keys of some rows."""
    for name in keys:
        _check_times(rows.column(name), name)
    if len(keys) == 1 and rows.column(keys[0]).null_count == 0:
        column = rows.column(keys[0])
        if pa.types.is_integer(column.type):
            return [b"[%d]" % value for value in column.to_pylist()]
    return [text_of(list(row.values())) for row in rows_to_json(rows.select(list(keys)))]


def values_of(rows: pa.RecordBatch, values: Sequence[str]) -> list[bytes]:
    """The other columns of some rows."""
    if not values:
        return [b"{}"] * rows.num_rows
    return [text_of(row) for row in rows_to_json(rows.select(list(values)))]


def _check_times(column: pa.Array, name: str) -> None:
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type)):
        return
    plain = column.cast(pa.timestamp("us")) if column.null_count < len(column) else None
    if plain is None:
        return
    bounds = [pa.scalar(bound, pa.timestamp("us")) for bound in (_FIRST, _LAST)]
    outside = pc.or_(pc.less(plain, bounds[0]), pc.greater(plain, bounds[1]))
    if pc.any(outside).as_py():
        raise MirrorTargetError(
            f"key column {name!r} has a time outside of the years 1 to 9999, which a mirror's keys "
            "cannot hold. Leave such rows out of the stream, or key by another column."
        )
