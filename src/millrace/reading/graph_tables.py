"""The neighbours of vertices as a table: a row per edge and end, with both vertices."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.log.segment import HI, OWNER_HI, OWNER_LO
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed


class NeighbourTable(StateTable):
    """A row per vertex and neighbour. A vertex's rows are found without those of others."""

    def _schema(self) -> pa.Schema:
        return self.description.tables[self.state].schema

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        replica = self.snapshot.replica(self.description, self.state, groups)
        for rows in scan(replica, groups, _needs(columns)):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        replica = followed(self, self.state, keys)
        addresses, _ = replica.entries(*keys)
        return self._made(columns, gathered(replica, addresses, _needs(columns)))

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        if not columns:
            return rows
        return self._batch(columns, [self._column(name, rows) for name in columns])

    def _column(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        """A column of its own, or what a row has of the vertex it belongs to."""
        if name not in SYSTEM:
            return rows.column(name)
        owner = rows.column(OWNER_HI if name in (HI, KEY_GROUP) else OWNER_LO)
        return self._groups(owner.to_numpy()) if name == KEY_GROUP else owner


def _needs(columns: list[str]) -> list[str]:
    """The stored columns that some shown ones are made of."""
    own = [name for name in columns if name not in SYSTEM]
    return own if own and len(own) == len(columns) else [*own, OWNER_HI, OWNER_LO]
