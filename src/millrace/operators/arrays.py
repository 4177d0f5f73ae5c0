"""Arrow arrays as NumPy views, and back, and arrays with some values replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, Float64Array, Int64Array, UInt64Array


def validity(array: pa.Array) -> BoolArray:
    """True where there is a value."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    flags: BoolArray = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def fixed(array: pa.Array, dtype: npt.DTypeLike, width: int = 1) -> npt.NDArray[np.generic]:
    """The value buffer of an array of fixed width; what is under a NULL means nothing."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * width, dtype)
    values = np.frombuffer(buffer, dtype)
    return values[array.offset * width : (array.offset + len(array)) * width]


def int64s(array: pa.Array) -> Int64Array:
    """Integers, dates, times and booleans as int64."""
    data_type = array.type
    if pa.types.is_boolean(data_type):
        array = array.cast(pa.int8())
    dtype = f"i{array.type.bit_width // 8}"
    return fixed(array, dtype).astype(np.int64, copy=False)


def float64s(array: pa.Array) -> Float64Array:
    dtype = f"f{array.type.bit_width // 8}"
    return fixed(array, dtype).astype(np.float64, copy=False)


def decimal_words(array: pa.Array) -> UInt64Array:
    """Two words per decimal: low, high."""
    return fixed(array, np.uint64, 2)  # type: ignore[return-value]


def build(values: npt.NDArray[np.generic], valid: BoolArray, data_type: pa.DataType) -> pa.Array:
    """An Arrow array over a value buffer."""
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        data_type, len(valid), [bitmap, pa.py_buffer(np.ascontiguousarray(values))]
    )


def replaced(array: pa.Array, where: BoolArray | Int64Array, by: pa.Array) -> pa.Array:
    """An array with some of its values replaced, given by a mask or their positions."""
    if len(by) == len(array):
        return by
    source = np.arange(len(array))
    source[where] = len(array) + np.arange(len(by))
    return pa.concat_arrays([array, by]).take(pa.array(source))


def taken(array: pa.Array, positions: pa.Array) -> pa.Array:
    """The values at some positions; a single value in its own place is not copied, as in real time
    many rows come alone."""
    return array if len(positions) == len(array) == 1 else array.take(positions)


def whole_numbers(column: Any) -> tuple[Int64Array, BoolArray]:
    """Whole numbers of an array in one piece or in chunks, 0 for NULL; and which are not NULL."""
    array = types.conform(column, pa.int64())
    valid = validity(array)
    return (array.fill_null(0) if array.null_count else array).to_numpy(), valid


def flags(values: BoolArray) -> pa.Array:
    return pa.array(values, pa.bool_())
