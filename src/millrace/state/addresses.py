"""Addresses: one word that names a row of a replica.

    address = chunk << 40 | row          (bit 63 marks a deleted row; 0 is no row)

Chunk 0 is always empty, so that an address of 0 can stand for no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrays import Int32Array, Int64Array, UInt64Array

ROW_BITS = 40
ROW_MASK = np.uint64((1 << ROW_BITS) - 1)
DELETED_BIT = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class Addresses:
    """Chunk and row of each address."""

    chunk: Int32Array
    row: Int64Array

    def __len__(self) -> int:
        return len(self.chunk)


def chunks_of(packed: UInt64Array) -> Int64Array:
    """The chunk of each address."""
    return ((packed & ~DELETED_BIT) >> np.uint64(ROW_BITS)).astype(np.int64)


def unpack(packed: UInt64Array) -> Addresses:
    return Addresses(chunks_of(packed).astype(np.int32), (packed & ROW_MASK).astype(np.int64))


def address_of(chunk: int, row: int) -> np.uint64:
    """The address of a row; those of the rows after it in the chunk follow."""
    return np.uint64(chunk << ROW_BITS | row)
