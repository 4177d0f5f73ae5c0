"""Write a whole state at once, as the first epoch of a new location.

State may have the numbers of epochs in it, as the fingerprints of a join's rows do. So a state that
comes from another location keeps the number of its epoch, and those that follow are new there, too.

Invariant: the result is a location that a query could have written. Every key group has one base
and nothing else, and a query that starts on it continues from there. The manifest is written last;
before that, the location has no epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace import clock
from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import ForeignLocationError
from millrace.ids import Epoch, OperatorName, TableName, table_name
from millrace.keygroups import Assignment, check_key_groups, group_shift
from millrace.keygroups.assignment import check_parallelism
from millrace.keygroups.scheme import Scheme
from millrace.log import Journal, OperatorCommit, SegmentEntry, Trail, open_store
from millrace.log.layout import SPARK
from millrace.log.segment import (
    DELETED,
    HI,
    LO,
    OWNER_FIELDS,
    SYSTEM_FIELDS,
    SectionData,
    encode_segment,
    segment_path,
)
from millrace.operators.operator import TableLayout
from millrace.reading.description import Description
from millrace.state.columns import words
from millrace.state.sorting import count_groups, sort_order

SEGMENT_ROWS = 1 << 20
"""About how many rows go into a segment."""

FIRST = Epoch(1)


@dataclass(frozen=True)
class OperatorState:
    """A whole operator: its spec, and its tables with their fingerprints, in any order.

    Columns that a table does not have are ignored, and fingerprints may be signed.
    """

    spec: dict[str, Any]
    tables: Mapping[str, pa.Table]


@dataclass(frozen=True)
class Reached:
    """How far a state is: the last batch in it, and its times."""

    batch_id: int | None = None
    watermark_ms: int | None = None
    processing_ms: int = 0
    watermarks: Mapping[OperatorName, int] = dataclasses.field(default_factory=dict)
    """Of each operator that has its own, in microseconds."""


class StateWriter:
    """Fills a new location table by table, then commits."""

    def __init__(
        self,
        location: str,
        key_groups: int,
        shards: int,
        scheme: Scheme,
        epoch: Epoch = FIRST,
    ) -> None:
        """`scheme` is that of the fingerprints that will be written, `epoch` that of the state."""
        store = open_store(location)
        check_key_groups(key_groups)
        check_parallelism(shards, key_groups)
        self._journal = Journal.create(store, key_groups, scheme)
        identity = self._journal.identity
        given = identity.key_groups, identity.scheme
        if self._journal.head() or given != (key_groups, scheme):
            raise ForeignLocationError(
                f"{store.url} is already a location, at epoch {self._journal.head()}. State "
                "can only be imported into a new location: choose an empty directory."
            )
        self._assignment = Assignment.even(key_groups, shards)
        self._shift = np.uint64(group_shift(key_groups))
        self._key_groups = key_groups
        self.epoch = epoch
        self._commits: dict[TableName, OperatorCommit] = {}
        self._specs: dict[OperatorName, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return self._journal.store.url

    def operator(self, name: OperatorName, state: OperatorState) -> int:
        """Write an operator's tables; returns their rows."""
        self._specs[name] = state.spec
        layouts = Description(name, state.spec).tables
        rows = 0
        for table, given in state.tables.items():
            content = _fitted(given, layouts[table])
            entries = tuple(self._segments(table_name(name, table), content))
            commit = OperatorCommit(self._assignment, entries, content.num_rows)
            self._commits[table_name(name, table)] = commit
            rows += content.num_rows
        return rows

    def _segments(self, name: TableName, content: pa.Table) -> Iterable[SegmentEntry]:
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
        name: TableName,
        number: int,
        part: pa.Table,
        covers: Int64Array,
        counts: Int64Array,
    ) -> SegmentEntry:
        batches = part.combine_chunks().to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=part.schema)
        full = covers[counts[covers] > 0]
        section = SectionData(Epoch(0), self.epoch, covers, full, counts[full], rows)
        path = segment_path(name, self.epoch, number, clock.fresh_id()[:12])
        buffer, entry = encode_segment(path, self.epoch, [section])
        self._journal.store.put(path, memoryview(buffer))
        return entry

    def put_offsets(self, files: Mapping[str, bytes]) -> None:
        """Write the files of Spark's checkpoint that the query continues from."""
        for path, data in sorted(files.items()):
            self._journal.store.put(f"{SPARK}/{path}", data)

    def commit(self, reached: Reached) -> None:
        """Make what was written the location's first epoch."""
        self._journal.commit(
            Trail(self._key_groups, Epoch(self.epoch - 1)),
            run=clock.fresh_id(),
            batch_id=reached.batch_id,
            watermark_ms=reached.watermark_ms,
            processing_ms=reached.processing_ms,
            operators=self._commits,
            specs=self._specs,
            full=True,
            watermarks=dict(reached.watermarks),
        )


def stored_schema(layout: TableLayout) -> pa.Schema:
    """All columns in which a table is kept."""
    return pa.schema([*SYSTEM_FIELDS, *(OWNER_FIELDS if layout.owned else ()), *layout.schema])


def signed(kind: pa.DataType) -> pa.DataType:
    """The type that holds unsigned numbers in another's signed ones of 64 bits; other types as
    they are."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(signed(kind.value_type)))
    return pa.int64() if pa.types.is_unsigned_integer(kind) else kind


def _fitted(given: pa.Table, layout: TableLayout) -> pa.Table:
    """A table in exactly the columns and types in which it is kept."""
    schema = stored_schema(layout)
    columns = []
    for field in schema:
        if field.name == DELETED:
            columns.append(pa.array(np.zeros(given.num_rows, np.bool_)))
            continue
        column = given.column(field.name)
        if column.type != field.type:
            # Signed numbers are the bits of unsigned ones.
            column = column.cast(field.type, safe=signed(field.type) == field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _column(content: pa.Table, name: str) -> UInt64Array:
    chunks = [words(batch, name) for batch in content.select([name]).to_batches()]
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint64)
