"""Writing a whole state at once, as the first epoch of a new location.

Invariant: the location that results is one that a query could have written. Every key group has one
base, and there is nothing else; a query that starts on it goes on from there. Until the manifest is
there, which is the last thing to be written, the location has no epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace import clock
from millrace.errors import ForeignLocationError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal, OperatorCommit, SegmentEntry, open_store
from millrace.log.segment import HI, LO, SectionData, encode_segment, segment_path
from millrace.operators.operator import table_name
from millrace.state.replica import words
from millrace.state.sorting import count_groups, sort_order

SEGMENT_ROWS = 1 << 20
"""About so many rows go into a segment."""

FIRST = Epoch(1)


@dataclass(frozen=True)
class OperatorState:
    """All of an operator: what it is, and its tables with system columns, in any order."""

    spec: dict[str, Any]
    tables: Mapping[str, pa.Table]


class StateWriter:
    """Fills a new location table by table, then commits."""

    def __init__(self, location: str, key_groups: int, shards: int = 1) -> None:
        store = open_store(location)
        self._journal = Journal.create(store, key_groups)
        if self._journal.head() or self._journal.identity.key_groups != key_groups:
            raise ForeignLocationError(
                f"{store.url} is a location already, at epoch {self._journal.head()}. State is "
                "moved into a new location only: choose an empty directory."
            )
        self._assignment = Assignment.even(key_groups, min(shards, key_groups))
        self._shift = np.uint64(64 - (key_groups.bit_length() - 1))
        self._key_groups = key_groups
        self._commits: dict[OperatorName, OperatorCommit] = {}
        self._specs: dict[OperatorName, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return self._journal.store.url

    def operator(self, name: OperatorName, state: OperatorState) -> int:
        """Write an operator's tables; returns their rows."""
        self._specs[name] = state.spec
        rows = 0
        for table, content in state.tables.items():
            entries = tuple(self._segments(table_name(name, table), content))
            commit = OperatorCommit(self._assignment, entries, content.num_rows)
            self._commits[table_name(name, table)] = commit
            rows += content.num_rows
        return rows

    def _segments(self, name: OperatorName, content: pa.Table) -> Iterable[SegmentEntry]:
        hi, lo = _column(content, HI), _column(content, LO)
        order = sort_order(hi, lo)
        counts = count_groups(hi, self._shift, self._key_groups)
        ends = np.cumsum(counts)
        first, number = 0, 0
        while first < self._key_groups:
            before = int(ends[first] - counts[first])
            last = int(np.searchsorted(ends, before + SEGMENT_ROWS, "right"))
            last = min(max(last, first + 1), self._key_groups)
            part = content.take(pa.array(order[before : int(ends[last - 1])]))
            yield self._segment(name, number, part, np.arange(first, last), counts)
            first, number = last, number + 1

    def _segment(
        self,
        name: OperatorName,
        number: int,
        part: pa.Table,
        covers: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> SegmentEntry:
        batches = part.combine_chunks().to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=part.schema)
        full = covers[counts[covers] > 0]
        section = SectionData(Epoch(0), FIRST, covers, full, counts[full], rows)
        path = segment_path(name, FIRST, number, clock.fresh_id()[:12])
        buffer, entry = encode_segment(path, FIRST, [section])
        self._journal.store.put(path, memoryview(buffer))
        return entry

    def commit(self, batch_id: int | None = None, watermark_ms: int | None = None) -> None:
        """Make what was written the location's first epoch."""
        self._journal.commit(
            self._journal.trail(Epoch(0)),
            run=clock.fresh_id(),
            batch_id=batch_id,
            watermark_ms=watermark_ms,
            operators=self._commits,
            specs=self._specs,
            full=True,
        )


def _column(content: pa.Table, name: str) -> npt.NDArray[np.uint64]:
    chunks = [words(batch, name) for batch in content.select([name]).to_batches()]
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint64)
