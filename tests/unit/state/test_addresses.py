"""Addresses: packed and unpacked."""

from __future__ import annotations

import numpy as np

from millrace.state.addresses import DELETED_BIT, ROW_BITS, ROW_MASK, address_of, chunks_of, unpack

LAST_ROW = (1 << 40) - 1
LAST_CHUNK = (1 << 23) - 1


def test_the_layout_is_40_bits_of_row_below_the_chunk_below_the_deleted_bit() -> None:
    assert ROW_BITS == 40
    assert int(ROW_MASK) == LAST_ROW
    assert int(DELETED_BIT) == 1 << 63
    assert int(address_of(3, 5)) == (3 << 40) + 5
    assert int(address_of(LAST_CHUNK, LAST_ROW)) == (1 << 63) - 1


def test_unpacking_ignores_the_deleted_bit() -> None:
    pairs = [(0, 0), (1, 0), (1, 7), (2, LAST_ROW), (LAST_CHUNK, LAST_ROW)]
    packed = np.asarray([address_of(*pair) for pair in pairs], np.uint64)
    for addresses in (packed, packed | DELETED_BIT):
        at = unpack(addresses)
        assert list(zip(at.chunk.tolist(), at.row.tolist(), strict=True)) == pairs
        assert chunks_of(addresses).tolist() == [chunk for chunk, _ in pairs]
        assert (at.chunk.dtype, at.row.dtype) == (np.int32, np.int64)
        assert len(at) == 5
