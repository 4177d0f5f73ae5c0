"""An operator's main table as a mirror has it: one row per key, and columns of its own for windows.

A window's start is part of the key of its row. Where a table shows only the newest window of each
length, the length is part of the key instead, so that a row stays where it is as time goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import UnsupportedMirrorError
from millrace.operators.operator import MAIN
from millrace.operators.session.layout import SESSION
from millrace.operators.window.layout import WINDOW, WINDOW_LENGTH
from millrace.reading import changes as feeds
from millrace.reading.join_table import JoinTable
from millrace.reading.sessions import SessionTable
from millrace.reading.snapshot import Snapshot
from millrace.reading.tables import main_table
from millrace.reading.tiles import TileTable
from millrace.reading.windows import WindowTable


class MirroredTable:
    """The rows of an operator at a snapshot's epoch."""

    def __init__(self, snapshot: Snapshot, operator: str | None) -> None:
        self._table = main_table(snapshot, snapshot.description(operator))
        table = self._table
        if isinstance(table, JoinTable):
            raise UnsupportedMirrorError(
                f"{table.title} is a join: its state is rows that wait for partners, several of a "
                "key, and a mirror has one row per key. Mirror an operator behind it, such as "
                "latest()."
            )
        self._window = None
        if isinstance(table, WindowTable):
            self._window = WINDOW
        elif isinstance(table, SessionTable):
            self._window = SESSION
        fields: list[pa.Field] = []
        for field in table.schema:
            fields += self._bounds(field) if field.name == self._window else [field]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise UnsupportedMirrorError(
                f"{table.title} has a column that is called as the bounds of its windows in a "
                f"mirror, {self._window}_start or {self._window}_end. Rename the column."
            )
        keys = list(table.keys)
        if isinstance(table, TileTable):
            keys.append(WINDOW_LENGTH)
        elif self._window is not None:
            keys.append(f"{self._window}_start")
        self.keys = tuple(keys)
        # Keys first.
        by_name = {field.name: field for field in fields}
        ordered = [*keys, *(name for name in names if name not in keys)]
        self.schema = pa.schema([by_name[name] for name in ordered])

    @property
    def operator(self) -> str:
        return str(self._table.operator)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return tuple((field.name, str(field.type)) for field in self.schema)

    @property
    def leaves_by_time(self) -> bool:
        """Whether rows or values go when time passes them, and no epoch says so."""
        table = self._table
        evicts = table.description.eviction(MAIN, table.moment) is not None
        return evicts or table.description.expires

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        for batch in self._table.scan(list(self._table.schema.names)):
            yield self._shown(batch)

    def changes(self, since: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Rows that changed after an epoch, as they are now, and the keys of those that went."""
        feed = feeds.changes(self._table, since)
        gone = pc.equal(feed.column(feeds.CHANGE), feeds.DELETE)
        kept = _one(feed.filter(pc.invert(gone)).select(list(self._table.schema.names)))
        return self._shown(kept), _one(feed.filter(gone).select(list(self.keys)))

    def _bounds(self, field: pa.Field) -> list[pa.Field]:
        return [pa.field(f"{field.name}_{part.name}", part.type) for part in field.type]

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._window is not None:
            window = columns.pop(self._window)
            for number, part in enumerate(window.type):
                columns[f"{self._window}_{part.name}"] = window.field(number)
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _one(rows: pa.Table) -> pa.RecordBatch:
    arrays = []
    for column in rows.columns:
        whole = column.combine_chunks()
        arrays.append(
            pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
        )
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
