"""How the values of one column are gathered from many chunks.

There is a reader per column, and per level of a nested one. It knows where each chunk has the
buffers of its column, and builds an Arrow array for any list of addresses with one kernel call per
buffer, however many chunks are touched.

Invariant: chunks start at offset 0 of their buffers, and their owner keeps them alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.arrays import (
    BoolArray,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt64Array,
)
from millrace.errors import UnsupportedTypeError
from millrace.jit import WORD, kernel, load_like, load_u8, load_u32, load_u64
from millrace.state.addresses import Addresses

_OFFSET_BYTES = np.uint64(4)


class Pointers:
    """A growing array of pointers to buffers, one per chunk; 0 where there is no buffer."""

    def __init__(self) -> None:
        self.array: UInt64Array = np.zeros(16, np.uint64)

    def set(self, chunk: int, buffer: pa.Buffer | None) -> None:
        self.set_pointer(chunk, buffer.address if buffer is not None and buffer.size else 0)

    def set_pointer(self, chunk: int, pointer: int) -> None:
        if chunk >= len(self.array):
            grown = np.zeros(max(chunk + 1, 2 * len(self.array)), np.uint64)
            grown[: len(self.array)] = self.array
            self.array = grown
        self.array[chunk] = pointer


class ColumnGatherer:
    """Gathers one column, or one level of a nested one."""

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self.validity = Pointers()
        self.present = Pointers()

    def set(self, chunk: int, array: pa.Array | None) -> None:
        buffers = array.buffers() if array is not None else [None]
        has_nulls = array is not None and array.null_count > 0
        self.validity.set(chunk, buffers[0] if has_nulls else None)
        self.present.set_pointer(chunk, 0 if array is None else 1)
        self._set(chunk, array, buffers)

    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        raise NotImplementedError

    def gather(self, at: Addresses) -> pa.Array:
        """The values at some addresses; NULL where there is no row."""
        valid = _gather_validity(self.present.array, self.validity.array, at.chunk, at.row)
        return self._gather(at, valid)

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        raise NotImplementedError


class Fixed(ColumnGatherer):
    """Values of 1, 2, 4, 8 or 16 bytes."""

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.values = Pointers()
        self.width = data_type.bit_width // 8

    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        self.values.set(chunk, buffers[1] if array is not None else None)

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        n = len(at)
        if self.width == 16:
            wide = np.zeros(2 * n, np.uint64)
            _gather_16(self.values.array, at.chunk, at.row, valid, wide)
            data = pa.py_buffer(wide)
        else:
            out = np.zeros(n, f"u{self.width}")
            _gather_fixed(self.values.array, at.chunk, at.row, valid, out)
            data = pa.py_buffer(out)
        return pa.Array.from_buffers(self.type, n, [_bitmap(valid), data])


class _Bits(Fixed):
    """Booleans, eight in a byte."""

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        out = _gather_bits(self.values.array, at.chunk, at.row, valid)
        return pa.array(out, mask=None if valid.all() else ~valid)


class _Binary(ColumnGatherer):
    """Strings and binaries with 32-bit offsets."""

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.offsets = Pointers()
        self.values = Pointers()

    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        self.offsets.set(chunk, buffers[1] if array is not None else None)
        self.values.set(chunk, buffers[2] if array is not None else None)

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        starts, offsets = _gather_offsets(self.offsets.array, at.chunk, at.row, valid)
        total = int(offsets[-1])
        if total > np.iinfo(np.int32).max:
            raise UnsupportedTypeError(
                f"one shard would touch {total} bytes of strings in one column in one epoch; the "
                "limit is 2 GiB. Raise the parallelism or make the trigger's batches smaller."
            )
        data = np.empty(total, np.uint8)
        _copy_bytes(self.values.array, at.chunk, starts, offsets, data)
        buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(self.type, len(at), buffers)


class _Nested(ColumnGatherer):
    """Lists and maps: offsets into a child column of the same chunk."""

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.offsets = Pointers()
        if pa.types.is_map(data_type):
            fields = [
                pa.field("key", data_type.key_type, nullable=False),
                data_type.item_field.with_name("value"),
            ]
            self.child = gatherer_of(pa.struct(fields))
        else:
            self.child = gatherer_of(data_type.value_type)

    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        self.offsets.set(chunk, buffers[1] if array is not None else None)
        if array is None:
            self.child.set(chunk, None)
        elif pa.types.is_map(self.type):
            entries = pa.StructArray.from_arrays(
                [array.keys, array.items], fields=list(self.child.type)
            )
            self.child.set(chunk, entries)
        else:
            self.child.set(chunk, array.values)

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        starts, offsets = _gather_offsets(self.offsets.array, at.chunk, at.row, valid)
        chunk, row = _expand(at.chunk, starts, offsets)
        child = self.child.gather(Addresses(chunk, row))
        offset_buffer = pa.py_buffer(offsets.astype(np.int32))
        return pa.Array.from_buffers(
            self.type, len(at), [_bitmap(valid), offset_buffer], children=[child]
        )


class _Struct(ColumnGatherer):
    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.children = [gatherer_of(field.type) for field in data_type]

    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        for i, child in enumerate(self.children):
            child.set(chunk, array.field(i) if array is not None else None)

    def _gather(self, at: Addresses, valid: BoolArray) -> pa.Array:
        children = [child.gather(at) for child in self.children]
        return pa.Array.from_buffers(self.type, len(at), [_bitmap(valid)], children=children)


class _Null(ColumnGatherer):
    def _set(self, chunk: int, array: pa.Array | None, buffers: Sequence[pa.Buffer | None]) -> None:
        pass

    def gather(self, at: Addresses) -> pa.Array:
        return pa.nulls(len(at))


def gatherer_of(data_type: pa.DataType) -> ColumnGatherer:
    """What gathers a column of some type."""
    if pa.types.is_boolean(data_type):
        return _Bits(data_type)
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return _Binary(data_type)
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        return _Nested(data_type)
    if pa.types.is_struct(data_type):
        return _Struct(data_type)
    if pa.types.is_null(data_type):
        return _Null(data_type)
    if pa.types.is_primitive(data_type) or pa.types.is_decimal128(data_type):
        return Fixed(data_type)
    raise UnsupportedTypeError(f"the Arrow type {data_type} cannot be kept in state.")


def _bitmap(valid: BoolArray) -> pa.Buffer | None:
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


@kernel
def _bit(bitmap: np.uint64, row: np.uint64) -> bool:
    byte = load_u8(bitmap + (row >> np.uint64(3)))
    return bool((byte >> (row & np.uint64(7))) & np.uint64(1) != 0)


@kernel
def _gather_validity(
    present: UInt64Array, validity: UInt64Array, chunk: Int32Array, row: Int64Array
) -> BoolArray:
    n = len(chunk)
    out = np.empty(n, np.bool_)
    for i in range(n):
        c = chunk[i]
        bits = validity[c]
        if bits == 0:
            out[i] = present[c] != 0
        else:
            out[i] = _bit(bits, np.uint64(row[i]))
    return out


@kernel
def _gather_fixed(
    values: UInt64Array,
    chunk: Int32Array,
    row: Int64Array,
    valid: BoolArray,
    out: npt.NDArray[np.unsignedinteger[Any]],
) -> None:
    zero = out.dtype.type(0)
    width = np.uint64(out.itemsize)
    for i in range(len(chunk)):
        if valid[i]:
            out[i] = load_like(values[chunk[i]] + np.uint64(row[i]) * width, zero)


@kernel
def _gather_16(
    values: UInt64Array, chunk: Int32Array, row: Int64Array, valid: BoolArray, out: UInt64Array
) -> None:
    for i in range(len(chunk)):
        if valid[i]:
            address = values[chunk[i]] + np.uint64(row[i] * 16)
            out[2 * i] = load_u64(address)
            out[2 * i + 1] = load_u64(address + WORD)


@kernel
def _gather_bits(
    values: UInt64Array, chunk: Int32Array, row: Int64Array, valid: BoolArray
) -> BoolArray:
    out = np.zeros(len(chunk), np.bool_)
    for i in range(len(chunk)):
        if valid[i]:
            out[i] = _bit(values[chunk[i]], np.uint64(row[i]))
    return out


@kernel
def _gather_offsets(
    pointers: UInt64Array, chunk: Int32Array, row: Int64Array, valid: BoolArray
) -> tuple[Int64Array, Int64Array]:
    """Where each value begins in its chunk, and the offsets of the gathered values."""
    n = len(chunk)
    starts = np.zeros(n, np.int64)
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = 0
    for i in range(n):
        length = np.int64(0)
        if valid[i]:
            address = pointers[chunk[i]] + np.uint64(row[i]) * _OFFSET_BYTES
            starts[i] = np.int64(load_u32(address))
            length = np.int64(load_u32(address + _OFFSET_BYTES)) - starts[i]
        offsets[i + 1] = offsets[i] + length
    return starts, offsets


@kernel
def _copy_bytes(
    values: UInt64Array, chunk: Int32Array, starts: Int64Array, offsets: Int64Array, out: UInt8Array
) -> None:
    for i in range(len(chunk)):
        address = values[chunk[i]] + np.uint64(starts[i])
        at = offsets[i]
        for j in range(offsets[i + 1] - at):
            out[at + j] = load_u8(address + np.uint64(j))


@kernel
def _expand(
    chunk: Int32Array, starts: Int64Array, offsets: Int64Array
) -> tuple[Int32Array, Int64Array]:
    """The child rows of lists: all rows of the first, then of the second, and so on."""
    total = offsets[-1]
    out_chunk = np.empty(total, np.int32)
    out_row = np.empty(total, np.int64)
    for i in range(len(chunk)):
        for j in range(offsets[i + 1] - offsets[i]):
            out_chunk[offsets[i] + j] = chunk[i]
            out_row[offsets[i] + j] = starts[i] + j
    return out_chunk, out_row
