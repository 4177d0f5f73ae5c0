"""Between Arrow columns and Python objects, checked.

Arrow is lenient where a state must not be: it cuts 1.5 to 1 for an integer column, takes bytes for
text, and drops a struct's field that it does not know. `to_arrow` takes what fits the declared type
and nothing else, and says which value did not.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import itertools
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.errors import StateTypeError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_FIRST_US = (dt.datetime.min.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
_UTC_MICROS = pa.timestamp("us", "UTC")


def to_python(array: pa.Array) -> list[Any]:
    """Python objects of an array; maps as dicts, structs as dicts, timestamps in UTC.

    Spark's strings may hold bytes that are no text, and its times go beyond Python's years 1 to
    9999. Such bytes come as lone surrogates (`surrogateescape`), and are written back as the bytes
    they were; such times come as the first or the last that Python has.
    """
    data_type = array.type
    plain = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    if plain and array.null_count == 0:
        listed: list[Any] = array.to_numpy().tolist()
        return listed
    if _is_quick(data_type):
        # Arrow does this without a step of Python per value, but not if maps become dicts.
        try:
            listed = array.to_pylist()
            return listed
        except (UnicodeDecodeError, OverflowError):
            if not pa.types.is_nested(data_type):
                return _out_of_reach(array)
    if pa.types.is_struct(data_type) and data_type.num_fields:
        return _struct_objects(array)
    if pa.types.is_list(data_type):
        return _list_objects(array)
    if pa.types.is_map(data_type):
        return _map_objects(array)
    if data_type == _UTC_MICROS:
        return _utc_times(array)
    try:
        objects: list[Any] = array.to_pylist(maps_as_pydicts="strict")
        return objects
    except OverflowError:
        return _out_of_reach(array)


def _out_of_reach(array: pa.Array) -> list[Any]:
    """Text that is not valid UTF-8, and times that Python cannot represent; see `to_python`."""
    data_type = array.type
    if pa.types.is_string(data_type):
        raw = array.cast(pa.binary()).to_pylist()
        return [None if v is None else v.decode("utf-8", "surrogateescape") for v in raw]
    if pa.types.is_date32(data_type):
        whole, low, high = pa.int32(), _days(dt.date.min), _days(dt.date.max)
    elif data_type in (_UTC_MICROS, pa.timestamp("us")):
        whole, low, high = pa.int64(), _FIRST_US, _LAST_US
    else:
        raise OverflowError(f"a value is out of the range of Python's objects for {data_type}")
    numbers = np.clip(array.cast(whole).fill_null(0).to_numpy(), low, high)
    if data_type == _UTC_MICROS:
        return _with_nulls(array, list(map(from_us, numbers.tolist())))
    return _with_nulls(array, pa.array(numbers, whole).cast(data_type).to_pylist())


def _days(day: dt.date) -> int:
    return (day - _EPOCH.date()).days


@functools.lru_cache(maxsize=256)
def _is_quick(data_type: pa.DataType) -> bool:
    """Whether there is neither a map nor a timestamp in a type."""
    if pa.types.is_map(data_type) or pa.types.is_timestamp(data_type):
        return False
    if not pa.types.is_nested(data_type):
        return True
    return all(_is_quick(data_type.field(i).type) for i in range(data_type.num_fields))


def _utc_times(array: pa.Array) -> list[Any]:
    """Datetimes, without a step of Python per value: several times as fast as Arrow's own."""
    micros = array.cast(pa.int64()).fill_null(0).to_numpy()
    if micros.min(initial=0) == np.iinfo(np.int64).min:
        # NumPy takes it for no duration at all.
        return _out_of_reach(array)
    try:
        return _with_nulls(
            array, list(map(_EPOCH.__add__, micros.view("timedelta64[us]").tolist()))
        )
    except (OverflowError, TypeError):
        # Beyond the year 9999, or too far for a timedelta.
        return _out_of_reach(array)


def _struct_objects(array: pa.StructArray) -> list[Any]:
    """Structs as dicts, field by field: several times as fast as row by row."""
    names = [field.name for field in array.type]
    columns = [to_python(column) for column in array.flatten()]
    objects: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _with_nulls(array, objects)


def _list_objects(array: pa.ListArray) -> list[Any]:
    """Lists, cut out of all their elements."""
    offsets, (elements,) = _cuts(array, array.values)
    objects: list[Any] = [elements[a:b] for a, b in itertools.pairwise(offsets)]
    return _with_nulls(array, objects)


def _map_objects(array: pa.MapArray) -> list[Any]:
    """Maps as dicts, cut out of all their keys and values."""
    offsets, (keys, items) = _cuts(array, array.keys, array.items)
    objects: list[Any] = [
        dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in itertools.pairwise(offsets)
    ]
    if sum(map(len, objects)) != len(keys):
        # A duplicate key, which Arrow refuses with its own message.
        objects = array.to_pylist(maps_as_pydicts="strict")
    return _with_nulls(array, objects)


def _cuts(array: pa.Array, *children: pa.Array) -> tuple[list[int], list[list[Any]]]:
    """Where each list begins, and the elements of all of them; an array may be a slice of one."""
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    cut: list[int] = (offsets - first).tolist()
    return cut, [to_python(child.slice(first, count)) for child in children]


def _with_nulls(array: pa.Array, objects: list[Any]) -> list[Any]:
    if not array.null_count:
        return objects
    valid = array.is_valid().to_pylist()
    return [value if ok else None for value, ok in zip(objects, valid, strict=True)]


def _struct_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    """Complete dicts as an array, field by field; None if they are not, or something is wrong."""
    if not data_type.num_fields or set(map(type, values)) - {dict, type(None)}:
        return None
    mask = None
    if None in values:
        nothing = {field.name: None for field in data_type}
        mask = pa.array([value is None for value in values])
        values = [nothing if value is None else value for value in values]
    if set(map(len, values)) - {data_type.num_fields}:
        return None
    try:
        columns = [
            to_arrow(list(map(operator.itemgetter(field.name), values)), field.type, field.name)
            for field in data_type
        ]
    except (KeyError, StateTypeError):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(data_type), mask=mask)


def _list_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    """Lists as an array of all their elements; None if something is not a list, or wrong."""
    if set(map(type, values)) - {list, type(None)}:
        return None
    try:
        flat = list(itertools.chain.from_iterable(value or () for value in values))
        elements = to_arrow(flat, data_type.value_type, "an element")
    except StateTypeError:
        return None
    offsets, mask = _offsets(values)
    return pa.ListArray.from_arrays(offsets, elements, type=data_type, mask=mask)


def _map_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    """Dicts as an array of all their keys and values; None if a key is None or does not fit."""
    if set(map(type, values)) - {dict, type(None)}:
        return None
    try:
        keys = list(itertools.chain.from_iterable(value or () for value in values))
        if None in keys:
            return None
        items = list(itertools.chain.from_iterable((value or {}).values() for value in values))
        key_array = to_arrow(keys, data_type.key_type, "a key")
        item_array = to_arrow(items, data_type.item_type, "a value")
    except StateTypeError:
        return None
    offsets, mask = _offsets(values)
    return pa.MapArray.from_arrays(offsets, key_array, item_array, type=data_type, mask=mask)


def _offsets(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
    mask = pa.array([value is None for value in values]) if None in values else None
    return pa.array(ends, pa.int32()), mask


def to_arrow(values: Sequence[Any], data_type: pa.DataType, what: str) -> pa.Array:
    """An array of values; raises `StateTypeError` naming the first that does not fit."""
    nested = None
    if pa.types.is_struct(data_type):
        nested = _struct_array(values, data_type)
    elif pa.types.is_list(data_type):
        nested = _list_array(values, data_type)
    elif pa.types.is_map(data_type):
        nested = _map_array(values, data_type)
    if nested is not None:
        return nested
    try:
        exact, _ = expected_types(data_type)
        if exact is None or not exact.issuperset(map(type, values)):
            for value in values:
                check_value(value, data_type)
        return pa.array(values, data_type)
    except UnicodeEncodeError as error:
        raw = _raw_text(values)
        if raw is None:
            raise _refused(values, data_type, what, error) from error
        return raw
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _refused(values, data_type, what, error) from error


def _raw_text(values: Sequence[Any]) -> pa.Array | None:
    """Strings whose lone surrogates stand for bytes; None if some stand for nothing."""
    try:
        raw = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
    except (UnicodeEncodeError, AttributeError):
        # Not text at all: a nested value with such a string in it.
        return None
    array = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)


def _refused(
    values: Sequence[Any], data_type: pa.DataType, what: str, error: Exception
) -> StateTypeError:
    """The error for the first value that does not fit."""
    for position, value in enumerate(values):
        reason = _misfit(value, data_type)
        if reason is not None:
            refused = StateTypeError(
                f"{what} is declared as {data_type}, and {value!r} does not fit: {reason}."
            )
            refused.position = position
            return refused
    return StateTypeError(f"{what} is declared as {data_type}: {error}.")


def as_array(values: Any, data_type: pa.DataType, what: str) -> pa.Array:
    """A column of exactly this type; takes other widths of a number, but no other kind of value."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = pa.array(values)
    elif not isinstance(values, pa.Array | pa.ChunkedArray):
        if not isinstance(values, list | tuple):
            values = list(values)
        return to_arrow(values, data_type, what)
    try:
        if not _is_same_kind(values.type, data_type):
            raise TypeError(f"it was given as {values.type}")
        return types.conform(values, data_type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise StateTypeError(f"{what} is declared as {data_type}: {error}.") from error


def _is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = (
        lambda t: pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t),
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_boolean,
        pa.types.is_nested,
    )
    return pa.types.is_null(given) or any(kind(given) and kind(wanted) for kind in kinds)


def _misfit(value: Any, data_type: pa.DataType) -> str | None:
    try:
        check_value(value, data_type)
        if not (isinstance(value, str) and _raw_text([value]) is not None):
            pa.array([value], data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return str(error).rstrip(".")
    return None


def check_value(value: Any, data_type: pa.DataType) -> None:
    """Raise TypeError for what Arrow would take but change."""
    if value is None:
        return
    if pa.types.is_nested(data_type):
        _check_nested(value, data_type)
        return
    _, allowed = expected_types(data_type)
    if isinstance(value, allowed) and not _is_other(value, data_type):
        return
    raise TypeError(f"it is of type {type(value).__name__}, not {allowed[0].__name__}")


def _is_other(value: Any, data_type: pa.DataType) -> bool:
    """Subclasses that are not meant: True is an int, and a datetime is a date."""
    if isinstance(value, bool):
        return not pa.types.is_boolean(data_type)
    return isinstance(value, dt.datetime) and pa.types.is_date(data_type)


def _check_nested(value: Any, data_type: pa.DataType) -> None:
    if pa.types.is_map(data_type):
        if not isinstance(value, Mapping):
            raise TypeError(f"it is of type {type(value).__name__}, not dict")
        for key, item in value.items():
            check_value(key, data_type.key_type)
            check_value(item, data_type.item_type)
    elif pa.types.is_struct(data_type):
        if isinstance(value, Mapping):
            unknown = value.keys() - {field.name for field in data_type}
            if unknown:
                raise TypeError(f"it has no field {min(unknown, key=str)!r}")
            for field in data_type:
                check_value(value.get(field.name), field.type)
        elif isinstance(value, tuple) and len(value) == data_type.num_fields:
            for part, field in zip(value, data_type, strict=True):
                check_value(part, field.type)
        else:
            raise TypeError(
                f"a struct is given as a dict, or as a tuple of {data_type.num_fields} values"
            )
    else:
        if not isinstance(value, list | tuple | np.ndarray):
            raise TypeError(f"it is of type {type(value).__name__}, not list")
        for element in value:
            check_value(element, data_type.value_type)


@functools.lru_cache(maxsize=256)
def expected_types(data_type: pa.DataType) -> tuple[frozenset[type] | None, tuple[type, ...]]:
    """Types that need no further look, and classes that are taken; None for nested types."""
    if pa.types.is_integer(data_type):
        allowed: tuple[type, ...] = (int, np.integer)
    elif pa.types.is_floating(data_type):
        allowed = (float, int, np.floating, np.integer)
    elif pa.types.is_boolean(data_type):
        allowed = (bool, np.bool_)
    elif pa.types.is_string(data_type):
        allowed = (str,)
    elif pa.types.is_binary(data_type):
        allowed = (bytes, bytearray, memoryview)
    elif pa.types.is_decimal(data_type):
        allowed = (decimal.Decimal, int)
    elif pa.types.is_timestamp(data_type):
        allowed = (dt.datetime,)
    elif pa.types.is_date(data_type):
        allowed = (dt.date,)
    elif pa.types.is_nested(data_type):
        return None, ()
    else:
        allowed = (object,)
    return frozenset({*allowed, type(None)}), allowed


def to_us(moment: dt.datetime | int) -> int:
    """Microseconds since 1970 of a datetime; a naive one is taken as UTC."""
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return (moment - _EPOCH) // _MICROSECOND
    raise TypeError(f"a time must be a datetime, not {type(moment).__name__}")


def from_us(micros: int) -> dt.datetime:
    # By position: a keyword costs a third of the time, and this is called for every key.
    try:
        return _EPOCH + dt.timedelta(0, 0, micros)
    except OverflowError:
        return _EPOCH + dt.timedelta(0, 0, min(max(micros, _FIRST_US), _LAST_US))


def encode_key(value: Any) -> bytes:
    """Bytes that are equal exactly when two entry keys of one type are."""
    kind = type(value)
    if kind is str:
        return b"s" + str(value).encode("utf-8", "surrogatepass")
    if kind is int:
        return b"i%d" % value
    if kind is bytes:
        return b"b" + bytes(value)
    return _encode_rare(value)


def _encode_rare(value: Any) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        if value != value:
            return b"dnan"
        return b"d" + struct.pack("<d", value + 0.0)
    if isinstance(value, decimal.Decimal):
        return b"m" + _plain_decimal(value)
    if isinstance(value, dt.datetime):
        return b"T%d" % to_us(value)
    if isinstance(value, dt.date):
        return b"D" + value.isoformat().encode()
    if isinstance(value, dict):
        parts = [encode_key(k) + encode_key(v) for k, v in sorted(value.items())]
    elif isinstance(value, list | tuple):
        parts = [encode_key(v) for v in value]
    else:
        raise TypeError(f"{value!r} cannot be the key of an entry")
    return b"(" + b"".join(b"%d:" % len(part) + part for part in parts) + b")"


def _plain_decimal(value: decimal.Decimal) -> bytes:
    """Digits and exponent without trailing zeros; `normalize` would round to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    bare = text.rstrip("0")
    if not bare or not isinstance(exponent, int):
        return b"0" if not text else str(value).encode()
    return b"%d %b %d" % (sign, bare.encode(), exponent + len(text) - len(bare))
