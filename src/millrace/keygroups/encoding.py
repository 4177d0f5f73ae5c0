"""The encoding of keys: bytes that are equal exactly when Spark groups the keys together.

A key is the encodings of its columns, one after the other:

    number, date, time, float   0 for NULL; else 1 and the value, little-endian, in its own width
    string, binary              the number of bytes plus one, 0 for NULL, and then the bytes
    array                       the number of elements plus one, 0 for NULL, and then the elements
    struct                      0 for NULL; else 1 and then the fields

Numbers of bytes and elements are LEB128. Invariant: for one list of types, keys that differ have
encodings that differ, and none is the beginning of another. That follows part by part: each part
says by itself where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt8Array
from millrace.jit import kernel
from millrace.keygroups import buffers

ABSENT, NULL, VALUE = np.uint8(0), np.uint8(1), np.uint8(2)
"""A part of a row: in a struct that is NULL, NULL itself, or a value."""

Encoded = tuple[UInt8Array, Int64Array]
"""Bytes of all rows, and where each row's begin."""


@dataclass(frozen=True)
class _Fixed:
    """A part whose values have the same number of bytes; a struct's own part has none."""

    state: UInt8Array
    values: UInt8Array
    """A row each."""

    def measure(self, sizes: Int64Array) -> None:
        _measure_fixed(sizes, self.state, self.values.shape[1])

    def write(self, out: UInt8Array, at: Int64Array) -> None:
        _write_fixed(out, at, self.state, self.values)


@dataclass(frozen=True)
class _Counted:
    """A part that says first how many bytes, or elements, it has."""

    state: UInt8Array
    counts: Int64Array
    starts: Int64Array
    ends: Int64Array
    data: UInt8Array

    def measure(self, sizes: Int64Array) -> None:
        _measure_counted(sizes, self.state, self.counts, self.starts, self.ends)

    def write(self, out: UInt8Array, at: Int64Array) -> None:
        _write_counted(out, at, self.state, self.counts, self.starts, self.ends, self.data)


def encoded(columns: Sequence[pa.Array]) -> Encoded:
    """The encoding of each key, given as columns in the Arrow types of the state."""
    rows = len(columns[0])
    parts: list[_Fixed | _Counted] = []
    for column in columns:
        _collect(column, np.ones(rows, np.bool_), parts)
    sizes = np.zeros(rows + 1, np.int64)
    for part in parts:
        part.measure(sizes[1:])
    starts = np.cumsum(sizes)
    out = np.empty(int(starts[-1]), np.uint8)
    at = starts[:-1].copy()
    for part in parts:
        part.write(out, at)
    return out, starts


def _collect(column: pa.Array, present: BoolArray, parts: list[_Fixed | _Counted]) -> None:
    """The parts of a column, in order."""
    valid = buffers.valid(column)
    state = np.where(present, np.where(valid, VALUE, NULL), ABSENT)
    data_type = column.type
    if pa.types.is_struct(data_type):
        parts.append(_Fixed(state, np.empty((len(column), 0), np.uint8)))
        for child in column.flatten():
            _collect(child, present & valid, parts)
    elif pa.types.is_list(data_type):
        offsets = np.asarray(column.offsets, np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        data, starts = encoded([column.values.slice(first, last - first)])
        begins = offsets - first
        parts.append(
            _Counted(state, np.diff(offsets), starts[begins[:-1]], starts[begins[1:]], data)
        )
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        begins = buffers.offsets(column).astype(np.int64)
        buffer = column.buffers()[2]
        data = np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
        parts.append(_Counted(state, np.diff(begins), begins[:-1], begins[1:], data))
    elif buffers.is_wide(data_type):
        parts.append(_Fixed(state, _bytes(buffers.values(column, np.int64, 2), 16)))
    else:
        values = buffers.numbers(column)
        parts.append(_Fixed(state, _bytes(values, values.itemsize)))


def _bytes(values: npt.NDArray[Any], width: int) -> UInt8Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


@kernel
def _measure_fixed(sizes: Int64Array, state: UInt8Array, width: int) -> None:
    for i in range(len(sizes)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] == VALUE:
            sizes[i] += 1 + width


@kernel
def _write_fixed(out: UInt8Array, at: Int64Array, state: UInt8Array, values: UInt8Array) -> None:
    width = values.shape[1]
    for i in range(len(at)):
        if state[i] == NULL:
            out[at[i]] = 0
            at[i] += 1
        elif state[i] == VALUE:
            out[at[i]] = 1
            for j in range(width):
                out[at[i] + 1 + j] = values[i, j]
            at[i] += 1 + width


@kernel
def _measure_counted(
    sizes: Int64Array, state: UInt8Array, counts: Int64Array, starts: Int64Array, ends: Int64Array
) -> None:
    for i in range(len(sizes)):
        if state[i] == NULL:
            sizes[i] += 1
        elif state[i] == VALUE:
            left = counts[i] + 1
            while left > 127:
                sizes[i] += 1
                left >>= 7
            sizes[i] += 1 + ends[i] - starts[i]


@kernel
def _write_counted(
    out: UInt8Array,
    at: Int64Array,
    state: UInt8Array,
    counts: Int64Array,
    starts: Int64Array,
    ends: Int64Array,
    data: UInt8Array,
) -> None:
    for i in range(len(at)):
        if state[i] == ABSENT:
            continue
        to = at[i]
        left = np.int64(0)
        if state[i] == VALUE:
            left = counts[i] + 1
        while left > 127:
            out[to] = (left & 127) | 128
            to += 1
            left >>= 7
        out[to] = left
        to += 1
        if state[i] == VALUE:
            for j in range(starts[i], ends[i]):
                out[to] = data[j]
                to += 1
        at[i] = to
