"""Keys of a map's entries and members of a set, as Python objects and back.

Invariant: two keys are the same row of the table exactly when the objects that stand for them are
equal, so that a collection behaves alike whether an entry was just set or was read back.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millrace.errors import StateTypeError
from millrace.operators.process.convert import check_value, expected_types

Freeze = Callable[[Any], Any]


def key_freezer(data_type: pa.DataType, what: str) -> Freeze:
    """A function that gives the one hashable object that stands for an entry's key.

    Keys that are equal in the table are equal as objects: 1 and 1.0 in a map of doubles, a naive
    datetime and the same in UTC, any two NaNs. A key that does not fit the type is refused.
    """
    exact, _ = expected_types(data_type)
    convert = _freezer(data_type)

    def freeze(key: Any) -> Any:
        if key is None:
            return None
        try:
            check_value(key, data_type)
            return convert(key)
        except (TypeError, ValueError, OverflowError) as error:
            raise StateTypeError(
                f"a key of {what} is declared as {data_type}, and {key!r} does not fit: {error}."
            ) from error

    if not _is_its_own_key(data_type):
        return freeze
    (python_type,) = (exact or frozenset()) & {int, str, bytes, bool}

    def freeze_plain(key: Any) -> Any:
        return key if type(key) is python_type else freeze(key)

    return freeze_plain


def _is_its_own_key(data_type: pa.DataType) -> bool:
    """Whether Arrow's Python object of a key is what stands for it already."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_boolean(data_type)
    )


_NAN = float("nan")


def _freezer(data_type: pa.DataType) -> Freeze:
    if pa.types.is_struct(data_type):
        return _freeze_struct(data_type)
    if pa.types.is_list(data_type):
        element = _nullable(_freezer(data_type.value_type))
        return lambda value: tuple(map(element, value))
    if pa.types.is_floating(data_type):
        width = struct.Struct("<d" if data_type == pa.float64() else "<f")
        # A dict finds a NaN only by identity, and takes -0.0 and 0.0 for the same.
        return lambda v: _NAN if v != v else width.unpack(width.pack(v))[0] + 0.0
    if pa.types.is_timestamp(data_type):
        return _freeze_timestamp if data_type.tz is not None else _freeze_naive
    if pa.types.is_decimal(data_type):
        return decimal.Decimal
    if pa.types.is_boolean(data_type):
        return bool
    if pa.types.is_integer(data_type):
        return int
    if pa.types.is_binary(data_type):
        return bytes
    if pa.types.is_string(data_type):
        return str
    return lambda value: value


def _nullable(freeze: Freeze) -> Freeze:
    return lambda value: None if value is None else freeze(value)


def _freeze_struct(data_type: pa.DataType) -> Freeze:
    parts = [(field.name, _nullable(_freezer(field.type))) for field in data_type]

    def freeze(value: Any) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return tuple(part(v) for (_, part), v in zip(parts, value, strict=True))
        return tuple(part(value.get(name)) for name, part in parts)

    return freeze


def _freeze_timestamp(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value


def _freeze_naive(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is not None:
        raise TypeError("it has a time zone")
    return value


def key_thawer(data_type: pa.DataType) -> Freeze | None:
    """Turns what stands for a key back into what a user gave: a struct into a dict, an array into a
    list. None for types whose keys stand for themselves."""
    if pa.types.is_struct(data_type):
        parts = [(field.name, key_thawer(field.type)) for field in data_type]
        return lambda key: (
            None
            if key is None
            else {
                name: v if thaw is None else thaw(v)
                for (name, thaw), v in zip(parts, key, strict=True)
            }
        )
    if pa.types.is_list(data_type):
        thaw = key_thawer(data_type.value_type)
        return lambda key: None if key is None else list(key if thaw is None else map(thaw, key))
    return None


def freeze_loaded(keys: list[Any], data_type: pa.DataType, freeze: Freeze) -> list[Any]:
    """What stands for keys that were read from a table."""
    settled = not (pa.types.is_nested(data_type) or pa.types.is_floating(data_type))
    return keys if settled else [freeze(key) for key in keys]
