"""Arrow's lists as flat values and lengths, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import Int64Array
from millrace.errors import MalformedError


def list_type(element: pa.DataType) -> pa.DataType:
    """Lists without NULLs in them, as Spark's `collect_list` gives."""
    return pa.list_(pa.field("element", element, nullable=False))


def list_parts(array: pa.Array) -> tuple[pa.Array, Int64Array]:
    """All elements, and how many each list has; a NULL has none."""
    lengths = pc.list_value_length(array).cast(pa.int64())
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    return array.flatten(), lengths.to_numpy(zero_copy_only=False)


def same_lists(array: pa.Array, other: pa.Array) -> tuple[pa.Array, pa.Array, Int64Array]:
    """The elements of two columns of lists that belong together, and how many each list has."""
    values, lengths = list_parts(array)
    others, other_lengths = list_parts(other)
    if not np.array_equal(lengths, other_lengths):
        raise MalformedError("two lists in state that belong together have different lengths")
    return values, others, lengths


def make_lists(values: pa.Array, lengths: Int64Array, data_type: pa.DataType) -> pa.Array:
    """Lists of consecutive elements."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return lists_at(values, offsets, data_type)


def lists_at(values: pa.Array, offsets: Int64Array, data_type: pa.DataType) -> pa.Array:
    """Lists between offsets."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, data_type)
