"""The columns of a table, spread over numbered chunks.

A chunk is a record batch that came from a segment's page: its arrays start at offset 0 and its
buffers are mapped, not copied. Rows are named by *addresses* (see `addresses`). A chunk that lacks
a column, because it was written before the column was added, gives NULLs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import UInt64Array
from millrace.state.addresses import unpack
from millrace.state.gathering import Fixed, gatherer_of

_SERIALS = itertools.count(1)
"""No two chunks of a process have the same, whichever replica they belong to."""


def words(batch: pa.RecordBatch, name: str) -> UInt64Array:
    """A column of words, as a view of the page."""
    column = batch.column(name)
    words: UInt64Array = np.frombuffer(column.buffers()[1], np.uint64)
    return words[column.offset : column.offset + len(column)]


class ColumnStore:
    """Chunks of one schema. Chunk numbers are reused after `release`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._gatherers = {field.name: gatherer_of(field.type) for field in schema}
        self._chunks: dict[int, pa.RecordBatch] = {}
        self._serials: dict[int, int] = {}
        self._widened: dict[int, dict[str, pa.Array]] = {}
        self._free: list[int] = []
        self._next = 1
        for gatherer in self._gatherers.values():
            gatherer.set(0, None)

    def add(self, batch: pa.RecordBatch) -> int:
        """Register a page and return its chunk number."""
        chunk = self._free.pop() if self._free else self._next
        self._next = max(self._next, chunk + 1)
        names = set(batch.schema.names)
        for name, gatherer in self._gatherers.items():
            column = None
            if name in names:
                column = batch.column(name)
                if column.type != gatherer.type:
                    column = column.cast(gatherer.type)
                    self._widened.setdefault(chunk, {})[name] = column
            gatherer.set(chunk, column)
        self._chunks[chunk] = batch
        self._serials[chunk] = next(_SERIALS)
        return chunk

    def release(self, chunk: int) -> None:
        for gatherer in self._gatherers.values():
            gatherer.set(chunk, None)
        del self._chunks[chunk]
        self._widened.pop(chunk, None)
        self._free.append(chunk)

    def chunks(self) -> dict[tuple[int, int], pa.RecordBatch]:
        """All chunks by number and serial number; only numbers are used again."""
        return {(c, self._serials[c]): batch for c, batch in self._chunks.items()}

    def chunk(self, chunk: int) -> pa.RecordBatch:
        return self._chunks[chunk]

    def column(self, chunk: int, name: str) -> pa.Array:
        """A whole column of a chunk, without a copy; NULLs if it was written without it."""
        widened = self._widened.get(chunk, {}).get(name)
        if widened is not None:
            return widened
        batch = self._chunks[chunk]
        if name in batch.schema.names:
            return batch.column(name)
        return pa.nulls(batch.num_rows, self.schema.field(name).type)

    def values(self, name: str) -> UInt64Array:
        """Per chunk, a pointer to a fixed-width column's values."""
        gatherer = self._gatherers[name]
        assert isinstance(gatherer, Fixed)
        return gatherer.values.array

    def gather(self, packed: UInt64Array, names: Sequence[str]) -> list[pa.Array]:
        """One array per column; NULL where the address is 0."""
        at = unpack(packed)
        return [self._gatherers[name].gather(at) for name in names]

    @property
    def mapped_bytes(self) -> int:
        return sum(batch.get_total_buffer_size() for batch in self._chunks.values())
