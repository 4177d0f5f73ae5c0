"""Columns of bytes as kernels read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int32Array, Int64Array, UInt8Array
from millrace.errors import AggregateOverflowError, MalformedError
from millrace.jit import kernel
from millrace.operators.arrays import validity

Blobs = tuple[Int32Array, UInt8Array, BoolArray]
"""Offsets, bytes, and which values are not NULL."""

LARGEST = 2**31 - 1
"""The bytes that one column of a shard can have."""


@kernel
def number(data: UInt8Array, at: int, size: int) -> np.uint64:
    """A number of some bytes, low ones first."""
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return found


@kernel
def signed(value: np.unsignedinteger[Any]) -> int:
    """A number that can be mixed with others: in a kernel, unsigned + signed is a float."""
    return np.int64(value)  # type: ignore[return-value]


def blobs(array: pa.Array) -> Blobs:
    """The bytes of a column."""
    _, offsets, data = array.buffers()
    cuts = (
        np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        if len(array)
        else np.zeros(1, np.int32)
    )
    return cuts, np.frombuffer(data or b"", np.uint8), validity(array)


def column(offsets: Int64Array, data: UInt8Array) -> pa.Array:
    """A column of bytes, none of them NULL."""
    if offsets[-1] > LARGEST:
        raise AggregateOverflowError(
            f"the sketches that one shard changed in one epoch have {offsets[-1]} bytes; a column "
            "holds 2 GiB. Use more shards, smaller sketches (lg_k), or smaller batches."
        )
    return pa.Array.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
    )


def malformed(what: str, found: bytes) -> MalformedError:
    return MalformedError(f"state has {found[:16]!r} where {what} should be")


def by_library(read: Callable[[bytes], Any], found: bytes) -> Any:
    """A sketch as the library reads it."""
    try:
        return read(found)
    except (IndexError, MemoryError, RuntimeError, ValueError) as error:
        raise malformed("a sketch", found) from error
