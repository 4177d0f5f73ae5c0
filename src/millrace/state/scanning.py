"""Reading whole key groups of a replica, a page at a time and only the columns that are wanted.

A page of the base in which nothing has changed is handed out as it is mapped. Where rows were
superseded, the wanted columns are copied without them, a page at a time; rows beside the base are
gathered. The order of rows depends on what was merged when: readers must not rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.state.addresses import ROW_MASK
from millrace.state.replica import Replica

ROWS = 32768
"""Rows beside the base are handed out in batches of about this many."""

AHEAD = 16
"""Key groups that are made ready together."""


def scan(replica: Replica, groups: Int64Array, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some key groups; the replica must have followed them."""
    schema = pa.schema([replica.schema.field(name) for name in names])
    beside: list[UInt64Array] = []
    waiting = 0
    for part in _spans(replica, groups, names):
        gone: list[UInt64Array] = []
        for group in part.groups:
            superseded, changed = replica.changed(group)
            gone.append(superseded)
            beside.append(changed)
            waiting += len(changed)
        if part.rows:
            arrays = [
                replica.column(part.chunk, name).slice(part.first, part.rows) for name in names
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            dead = np.concatenate(gone)
            if len(dead):
                counts = np.ones(part.rows, np.bool_)
                counts[(dead & ROW_MASK).astype(np.int64) - part.first] = False
                batch = batch.filter(pa.array(counts))
            if batch.num_rows:
                yield batch
        if waiting >= ROWS:
            yield gathered(replica, np.concatenate(beside), names)
            beside, waiting = [], 0
    if waiting:
        yield gathered(replica, np.concatenate(beside), names)


def gathered(replica: Replica, addresses: UInt64Array, names: Sequence[str]) -> pa.RecordBatch:
    """Rows at some addresses."""
    schema = pa.schema([replica.schema.field(name) for name in names])
    return pa.RecordBatch.from_arrays(replica.gather(addresses, list(names)), schema=schema)


class _Span:
    """Neighbouring key groups whose base rows follow each other in one page."""

    def __init__(self, group: int, chunk: int, first: int, rows: int) -> None:
        self.groups = [group]
        self.chunk = chunk
        self.first = first
        self.rows = rows

    def takes(self, chunk: int, first: int, rows: int) -> bool:
        return rows == 0 or (chunk == self.chunk and first == self.first + self.rows)


def _spans(replica: Replica, groups: Int64Array, names: Sequence[str]) -> Iterator[_Span]:
    part: _Span | None = None
    for number, group in enumerate(groups.tolist()):
        if number % AHEAD == 0:
            # Not all at once: the first rows are there before the last page is looked at.
            replica.touch(groups[number : number + AHEAD])
            replica.load(groups[number : number + AHEAD], names)
        chunk, first, rows = replica.base_slice(group)
        if part is not None and part.rows and part.takes(chunk, first, rows):
            part.groups.append(group)
            part.rows += rows
            continue
        if part is not None:
            yield part
        part = _Span(group, chunk, first, rows)
    if part is not None:
        yield part
