"""A state table as DuckDB scans it: only the columns and key groups that a query needs are read.

DuckDB passes a dataset the columns it wants and the predicates it leaves to the dataset. They
decide, in this order: the one row to look up, if they give the whole key; the key groups to read,
if they restrict `_key_group`; and the filter of the rows that were read.

Known rough edge: the fields of an Arrow expression can be found only in its text. A column whose
name occurs there may be read although the expression does not use it, never the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from millrace.arrays import Int64Array
from millrace.errors import MillraceError
from millrace.reading.state_table import KEY_GROUP, StateTable

TOGETHER = 8
"""How many pages are filtered together."""


class StateDataset(ds.Dataset):  # type: ignore[misc]
    """A table, with its key group as the first column: DuckDB counts rows by the first one."""

    def __init__(self, table: Callable[[], StateTable]) -> None:
        # Does not call Arrow's own constructor: the rows come from the table at the reader's epoch.
        self._table = table
        self._schema = pa.schema([table().field(KEY_GROUP), *table().schema])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any
    ) -> Scan:
        """What DuckDB calls for each scan."""
        return Scan(self._table(), list(columns or self._schema.names), filter)


class Scan:
    """One scan of one table."""

    def __init__(self, table: StateTable, columns: list[str], where: ds.Expression | None) -> None:
        self._table = table
        self._columns = columns
        self._where = where
        self.projected_schema = pa.schema([table.field(name) for name in columns])

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._remembered())

    def _remembered(self) -> Iterator[pa.RecordBatch]:
        """The batches; DuckDB passes on no more than the text of an error."""
        try:
            yield from self._batches()
        except MillraceError as error:
            self._table.snapshot.failure = error
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._where is None:
            yield from _locked(self._table, self._table.scan(self._columns))
            return
        used = [n for n in (*self._table.schema.names, KEY_GROUP) if _mentions(self._where, n)]
        names = list(dict.fromkeys([*self._columns, *used]))
        key = _key(self._table, self._where)
        if key is not None:
            with self._table.snapshot.lock:
                found = [self._table.find(names, self._table.fingerprints(key))]
            yield from self._filtered(found)
            return
        groups = None
        if KEY_GROUP in used:
            groups = _groups(self._table, self._where)
        waiting: list[pa.RecordBatch] = []
        for batch in _locked(self._table, self._table.scan(names, groups)):
            waiting.append(batch)
            if len(waiting) == TOGETHER:
                yield from self._filtered(waiting)
                waiting = []
        yield from self._filtered(waiting)

    def _filtered(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        if not batches:
            return []
        rows = pa.Table.from_batches(batches).filter(self._where).select(self._columns)
        filtered: list[pa.RecordBatch] = rows.cast(self.projected_schema).to_batches()
        return filtered


def _locked(table: StateTable, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches, each made while no other thread of DuckDB reads the same replicas."""
    while True:
        with table.snapshot.lock:
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _mentions(where: ds.Expression, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(where)) is not None


def _key(table: StateTable, where: ds.Expression) -> list[pa.Array] | None:
    """The one key that can fulfil a predicate, if it names the whole key."""
    if not table.can_find or not table.keys or "FieldRef" in str(where):
        # Arrow does not tell columns from fields of structs.
        return None
    known = ds.get_partition_keys(where)
    if not all(name in known for name in table.keys):
        return None
    schema = table.description.key_schema
    try:
        return [pa.array([known[field.name]], field.type) for field in schema]
    except (pa.ArrowException, TypeError, ValueError):
        # DuckDB compares in another type: no single key is known.
        return None


def _groups(table: StateTable, where: ds.Expression) -> Int64Array:
    """The key groups that a predicate does not rule out."""
    form = ds.IpcFileFormat()
    nowhere = fs.LocalFileSystem()
    field = ds.field(KEY_GROUP)
    parts = [
        form.make_fragment(str(group), nowhere, partition_expression=field == group)
        for group in table.snapshot.every.tolist()
    ]
    # No file is opened: Arrow only compares the predicate with what is known of each fragment.
    schema = pa.schema([*table.schema, table.field(KEY_GROUP)])
    every = ds.FileSystemDataset(parts, schema, form, nowhere)
    names = [f.path for f in every.get_fragments(filter=where)]
    return np.asarray(sorted(map(int, names)), np.int64)
