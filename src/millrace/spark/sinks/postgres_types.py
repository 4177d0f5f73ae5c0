"""Which PostgreSQL type a column of the output has, and which others would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from millrace.errors import SinkError

NAME_BYTES = 63
"""PostgreSQL cuts longer names off without a word."""

_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.time64("ns"): "time without time zone",
    pa.duration("us"): "interval",
    pa.null(): "text",
}

_WIDER = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying", "json", "jsonb", "uuid"},
    "jsonb": {"json", "text"},
}
"""Type -> others that hold all of its values, or that check them."""

COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod),
           attnotnull AND NOT atthasdef AND attidentity = ''
    FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""
"""Name, type, and whether a row must bring a value."""


def name_of(data_type: pa.DataType) -> str:
    """The type of a column that Millrace creates."""
    if pt.is_decimal(data_type):
        return f"numeric({data_type.precision},{data_type.scale})"
    return _PLAIN.get(data_type, "jsonb")


def check_names(place: str, schema: pa.Schema) -> None:
    """Raise if PostgreSQL cannot have columns of these names."""
    for name in schema.names:
        if len(name.encode()) > NAME_BYTES:
            raise SinkError(
                f"{place} cannot have a column {name!r}: PostgreSQL's names have at most "
                f"{NAME_BYTES} bytes. Rename it with transform()."
            )


def differences(schema: pa.Schema, found: Sequence[tuple[Any, ...]]) -> list[str]:
    """What of a table does not go with the output, for people."""
    there = {name: kind for name, kind, _ in found}
    said = []
    for field in schema:
        wanted = name_of(field.type)
        if field.name not in there:
            said.append(f"column {field.name!r} ({wanted}) is missing in the table")
        elif not _holds(there[field.name], wanted):
            said.append(
                f"column {field.name!r} is {there[field.name]} in the table, {wanted} in the output"
            )
    for name, _, required in found:
        if required and name not in schema.names:
            said.append(f"column {name!r} of the table is NOT NULL and not in the output")
    return said


def _holds(kind: str, wanted: str) -> bool:
    if kind == wanted or kind in _WIDER.get(wanted, ()):
        return True
    if wanted.startswith("numeric"):
        return kind == "numeric"
    return wanted == "text" and kind.startswith("character varying")
