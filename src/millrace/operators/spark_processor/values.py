"""A state's values, the way Spark takes and gives them.

Spark sends a value to its JVM by pickle and back: a tuple of the schema's fields goes in, and what
comes out may differ. A number of the wrong kind becomes NULL, a small integer type wraps around,
anything becomes text in a string field, a nested struct comes back as a `Row`, and a timestamp as a
naive datetime in the time zone of the Python process. A class that works with Spark has met all of
this, so it is repeated here, value by value.

Stored values are what Millrace stores anywhere: structs as dicts, timestamps in UTC.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as T

from millrace.errors import StateTypeError
from millrace.operators.process.convert import from_us

Convert = Callable[[Any], Any]

_PLAIN: dict[type[T.DataType], type] = {
    T.LongType: int,
    T.DoubleType: float,
    T.StringType: str,
    T.BooleanType: bool,
    T.BinaryType: bytes,
}
"""Types whose values need no conversion if they are exactly of this class."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}


class Shape:
    """A state's schema: how its values are stored, and how they are shown."""

    def __init__(self, schema: T.StructType) -> None:
        self.schema = schema
        self.names = schema.names
        self._row = Row(*self.names)
        plain = [_PLAIN.get(type(field.dataType)) for field in schema.fields]
        self._plain = None if None in plain else tuple(plain)
        self._longs = [i for i, kind in enumerate(plain) if kind is int]
        self._storing = [_storing(field.dataType) for field in schema.fields]
        showing = [_showing(field.dataType) for field in schema.fields]
        self._showing = None if not any(showing) else [s or _itself for s in showing]

    def store(self, value: Any) -> dict[str, Any]:
        """What is kept of a value that a processor gave."""
        if type(value) is not tuple:
            value = tuple(value)
        if tuple(map(type, value)) == self._plain:
            for i in self._longs:
                if not _LEAST <= value[i] <= _MOST:
                    break
            else:
                return dict(zip(self.names, value, strict=True))
        if len(value) != len(self.names):
            raise StateTypeError(
                f"{value!r} has {len(value)} fields, and the state's schema "
                f"{self.schema.simpleString()} has {len(self.names)}."
            )
        parts = zip(self.names, self._storing, value, strict=True)
        return {name: storing(part) for name, storing, part in parts}

    def show(self, stored: dict[str, Any]) -> tuple[Any, ...]:
        """A stored value as a processor sees it."""
        if self._showing is None:
            return tuple(stored.values())
        parts = zip(self._showing, stored.values(), strict=True)
        return tuple([show(part) for show, part in parts])

    def show_row(self, stored: dict[str, Any]) -> Row:
        """The same with names."""
        return self._row(*self.show(stored))


def nullable(data_type: T.DataType) -> Any:
    """The same type with all parts nullable: a value of the wrong kind becomes NULL."""
    if isinstance(data_type, T.StructType):
        fields = [T.StructField(f.name, nullable(f.dataType), True) for f in data_type.fields]
        return T.StructType(fields)
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(nullable(data_type.elementType), True)
    if isinstance(data_type, T.MapType):
        return T.MapType(nullable(data_type.keyType), nullable(data_type.valueType), True)
    return data_type


def show_key(data_type: T.DataType) -> Convert:
    """A key column as Spark gives it to `handleExpiredTimer`."""
    return _showing(data_type) or _itself


def _itself(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """NumPy scalars and pandas times as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    for method in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _storing(data_type: T.DataType) -> Convert:
    convert = _converter(data_type)

    def store(value: Any) -> Any:
        value = _plain(value)
        return None if value is None else convert(value)

    return store


def _converter(data_type: T.DataType) -> Convert:
    bits = _BITS.get(type(data_type))
    if bits is not None:
        return lambda v: _wrapped(v, bits) if type(v) is int else None
    if isinstance(data_type, T.FloatType):
        return lambda v: _single(v) if type(v) is float else None
    if isinstance(data_type, T.DoubleType):
        return lambda v: v if type(v) is float else None
    if isinstance(data_type, T.BooleanType):
        return lambda v: v if type(v) is bool else None
    if isinstance(data_type, T.StringType):
        return _text
    if isinstance(data_type, T.BinaryType):
        return _binary
    if isinstance(data_type, T.DecimalType):
        return _decimal(data_type)
    if isinstance(data_type, T.DateType):
        return lambda v: dt.date.fromordinal(v.toordinal())
    if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        to_internal: Any = data_type.toInternal
        if isinstance(data_type, T.TimestampType):
            return lambda v: from_us(to_internal(v))
        return lambda v: from_us(to_internal(v)).replace(tzinfo=None)
    return _nested_converter(data_type)


def _nested_converter(data_type: T.DataType) -> Convert:
    if isinstance(data_type, T.ArrayType):
        element = _storing(data_type.elementType)
        return lambda v: list(map(element, v)) if isinstance(v, list | tuple) else None
    if isinstance(data_type, T.MapType):
        key, item = _storing(data_type.keyType), _storing(data_type.valueType)
        return lambda v: {key(k): item(i) for k, i in v.items()} if isinstance(v, dict) else None
    if isinstance(data_type, T.StructType):
        shape, names = Shape(data_type), data_type.names

        def store(value: Any) -> Any:
            if isinstance(value, dict):
                value = tuple([value.get(name) for name in names])
            elif not isinstance(value, list | tuple):
                value = tuple([vars(value).get(name) for name in names])
            return shape.store(value)

        return store
    return _itself


def _wrapped(value: int, bits: int) -> int | None:
    if not _LEAST <= value <= _MOST:
        return None
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _single(value: float) -> float:
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    # What Java's toString() makes of the simple ones.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _binary(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _decimal(data_type: T.DecimalType) -> Convert:
    unit = decimal.Decimal(1).scaleb(-data_type.scale)
    context = decimal.Context(prec=data_type.precision, rounding=decimal.ROUND_HALF_UP)

    def store(value: Any) -> decimal.Decimal | None:
        if not isinstance(value, decimal.Decimal):
            return None
        try:
            return value.quantize(unit, context=context)
        except decimal.InvalidOperation as error:
            raise StateTypeError(f"{value} does not fit {data_type.simpleString()}.") from error

    return store


def _showing(data_type: T.DataType) -> Convert | None:
    """How to show a stored value; None if it is shown unchanged."""
    if isinstance(data_type, T.TimestampType):
        return lambda v: None if v is None else v.astimezone().replace(tzinfo=None)
    if isinstance(data_type, T.ArrayType):
        element = _showing(data_type.elementType)
        # A copy: changing it in place must not change the state.
        return lambda v: None if v is None else list(v if element is None else map(element, v))
    if isinstance(data_type, T.MapType):
        key = _showing(data_type.keyType) or _itself
        item = _showing(data_type.valueType) or _itself
        return lambda v: None if v is None else {key(k): item(i) for k, i in v.items()}
    if isinstance(data_type, T.StructType):
        shape = Shape(data_type)
        return lambda v: None if v is None else shape.show_row(v)
    return None
