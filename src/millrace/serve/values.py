"""Keys from JSON, and from text in a URL: the inverse of `reading.json_values`."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa

from millrace.errors import KeyColumnsError, StateTypeError
from millrace.operators.process.convert import to_arrow


def key_from_text(text: str, field: pa.Field) -> pa.Array:
    """A key column's value from a URL; of nested types, it is JSON."""
    if pa.types.is_string(field.type):
        return pa.array([text], field.type)
    if pa.types.is_nested(field.type):
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _misfit(field, text, f"it is not JSON: {error}") from error
        return keys_from_json([given], field)
    value: Any = text
    if pa.types.is_boolean(field.type):
        if text not in ("true", "false"):
            raise _misfit(field, text, "use true or false")
        value = text == "true"
    elif pa.types.is_integer(field.type) or pa.types.is_duration(field.type):
        try:
            value = int(text)
        except ValueError as error:
            raise _misfit(field, text, "it is not a whole number") from error
    return keys_from_json([value], field)


def keys_from_json(values: list[Any], field: pa.Field) -> pa.Array:
    """A key column from JSON values."""
    try:
        return to_arrow([_parsed(v, field.type) for v in values], field.type, field.name)
    except (StateTypeError, ValueError, TypeError, ArithmeticError, binascii.Error) as error:
        wrong = next((v for v in values if _is_wrong(v, field)), values)
        raise _misfit(field, wrong, str(error)) from error


def _is_wrong(value: Any, field: pa.Field) -> bool:
    try:
        to_arrow([_parsed(value, field.type)], field.type, field.name)
    except (StateTypeError, ValueError, TypeError, ArithmeticError, binascii.Error):
        return True
    return False


def _misfit(field: pa.Field, value: Any, why: str) -> KeyColumnsError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return KeyColumnsError(f"key column {field.name!r} is {field.type}, and {shown} is not: {why}.")


def _parsed(value: Any, data_type: pa.DataType) -> Any:
    """The inverse of `to_json`."""
    if value is None:
        return None
    if pa.types.is_floating(data_type):
        return float(value) if isinstance(value, str) else value
    if pa.types.is_decimal(data_type):
        # A JSON number went through a float: its shortest text is what was meant.
        return decimal.Decimal(str(value))
    if pa.types.is_timestamp(data_type):
        return _instant(value, data_type.tz is not None)
    if pa.types.is_date(data_type):
        return dt.date.fromisoformat(value)
    if pa.types.is_time(data_type):
        return dt.time.fromisoformat(value)
    if pa.types.is_duration(data_type):
        return dt.timedelta(microseconds=value)
    if pa.types.is_binary(data_type):
        return base64.b64decode(value, validate=True)
    if pa.types.is_struct(data_type):
        if not isinstance(value, dict):
            raise TypeError("a struct is an object")
        unknown = sorted(set(value) - {f.name for f in data_type})
        if unknown:
            raise TypeError(f"it has no field {unknown[0]!r}")
        return {f.name: _parsed(value.get(f.name), f.type) for f in data_type}
    if pa.types.is_list(data_type):
        if not isinstance(value, list):
            raise TypeError("an array is a list")
        return [_parsed(v, data_type.value_type) for v in value]
    return value


def _instant(value: Any, zoned: bool) -> dt.datetime:
    moment = dt.datetime.fromisoformat(value)
    if not zoned:
        if moment.tzinfo is not None:
            raise ValueError("it has a time zone, and the column has none")
        return moment
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
