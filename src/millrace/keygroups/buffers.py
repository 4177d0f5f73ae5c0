"""Values of Arrow arrays as they lie in memory, in the form in which Spark groups them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.arrays import BoolArray, Int32Array


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Numbers, dates and times in their own width; those of NULLs mean nothing."""
    if pa.types.is_boolean(column.type):
        filled = column.fill_null(False) if column.null_count else column
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.uint8)
    if pa.types.is_float32(column.type):
        return _one_zero(values(column, np.float32)).view(np.int32)
    if pa.types.is_float64(column.type):
        return _one_zero(values(column, np.float64)).view(np.int64)
    if pa.types.is_decimal(column.type):
        # Of 16 bytes, the low eight hold a value of up to 18 digits in full.
        return values(column, np.int64, 2)[::2].copy()
    return values(column, np.dtype(f"int{column.type.bit_width}"))


def _one_zero(given: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floating point as Spark groups it: one zero, and one NaN, Java's."""
    given = given + given.dtype.type(0)
    given[np.isnan(given)] = np.nan
    return given


def values(column: pa.Array, dtype: Any, per_value: int = 1) -> npt.NDArray[Any]:
    """The values as they lie in memory; those of NULLs mean nothing."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) * per_value, dtype)
    all_values = np.frombuffer(buffer, dtype)
    return all_values[column.offset * per_value : (column.offset + len(column)) * per_value]


def offsets(column: pa.Array) -> Int32Array:
    """Where each string begins, and where the last one ends."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]


def valid(column: pa.Array) -> BoolArray:
    """Which values are not NULL."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    mask: BoolArray = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def is_wide(data_type: pa.DataType) -> bool:
    """Whether it is a decimal that eight bytes do not hold."""
    return bool(pa.types.is_decimal(data_type)) and data_type.precision > 18
