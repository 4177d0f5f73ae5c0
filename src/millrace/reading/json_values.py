"""Rows as JSON.

What JSON lacks becomes text, as Spark's own JSON has it: decimals with all their digits, times in
ISO 8601, binary as base64, and NaN and the infinities by their names. Maps with text for keys are
objects; other maps are lists of pairs.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millrace.operators.process.convert import to_python

Convert = Callable[[Any], Any]


@functools.lru_cache(maxsize=1024)
def to_json(data_type: pa.DataType) -> Convert | None:
    """What turns a value into one that JSON has; None if nothing needs to be done."""
    if pa.types.is_floating(data_type):
        return _number
    if pa.types.is_decimal(data_type):
        return str
    if pa.types.is_timestamp(data_type):
        return _moment
    if pa.types.is_date(data_type) or pa.types.is_time(data_type):
        return lambda value: value.isoformat()
    if pa.types.is_duration(data_type):
        return lambda value: value // dt.timedelta(microseconds=1)
    if pa.types.is_binary(data_type):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_struct(data_type):
        fields = [(f.name, _optional(to_json(f.type))) for f in data_type]
        return lambda value: {name: convert(value[name]) for name, convert in fields}
    if pa.types.is_map(data_type):
        return _map(data_type)
    if pa.types.is_list(data_type):
        element = to_json(data_type.value_type)
        if element is None:
            return None
        each = _optional(element)
        return lambda value: [each(e) for e in value]
    return None


def _map(data_type: pa.DataType) -> Convert:
    key = _optional(to_json(data_type.key_type))
    item = _optional(to_json(data_type.item_type))
    if pa.types.is_string(data_type.key_type):
        return lambda value: {k: item(v) for k, v in value}
    return lambda value: [[key(k), item(v)] for k, v in value]


def _optional(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _moment(value: dt.datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def rows_to_json(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as JSON objects."""
    try:
        listed: list[dict[str, Any]] = rows.to_pylist()
    except (UnicodeDecodeError, OverflowError, ValueError):
        # Spark has text that is no UTF-8 and years that Python lacks: see `to_python`.
        columns = [_pairs(to_python(column), column.type) for column in rows.columns]
        names = rows.schema.names
        listed = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for field in rows.schema:
        convert = to_json(field.type)
        if convert is not None:
            for row in listed:
                if row[field.name] is not None:
                    row[field.name] = convert(row[field.name])
    return listed


def _pairs(values: list[Any], data_type: pa.DataType) -> list[Any]:
    """Objects of `to_python` with maps as Arrow lists them: as pairs."""
    if pa.types.is_map(data_type):
        key, item = data_type.key_type, data_type.item_type
        return [
            None
            if value is None
            else list(
                zip(_pairs(list(value), key), _pairs(list(value.values()), item), strict=True)
            )
            for value in values
        ]
    if pa.types.is_list(data_type):
        inner = data_type.value_type
        return [None if value is None else _pairs(value, inner) for value in values]
    if pa.types.is_struct(data_type):
        return [
            None
            if value is None
            else {f.name: _pairs([value[f.name]], f.type)[0] for f in data_type}
            for value in values
        ]
    return values
