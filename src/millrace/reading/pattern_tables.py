"""A pattern's partial matches as a table, and the rows that they hold as another.

Both have rows that belong to keys, and leave out those that the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.log.segment import HI, OWNER_HI, OWNER_LO
from millrace.operators.join.layout import EVENT
from millrace.operators.operator import ResultColumn
from millrace.operators.pattern.layout import NUMBER, shown_partials
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed


class _OwnedTable(StateTable):
    """Rows that belong to keys and go when the watermark passes them."""

    def _results(self) -> list[ResultColumn]:
        raise NotImplementedError

    def _schema(self) -> pa.Schema:
        self._shown = {shown.name: shown for shown in self._results()}
        eviction = self.description.eviction(self.state, self.moment)
        assert eviction is not None
        self._eviction = eviction
        return pa.schema([pa.field(shown.name, shown.type) for shown in self._shown.values()])

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        replica = self.snapshot.replica(self.description, self.state, groups)
        for rows in scan(replica, groups, self._needs(columns)):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        replica = followed(self, self.state, keys)
        addresses, _ = replica.entries(*keys)
        return self._made(columns, gathered(replica, addresses, self._needs(columns)))

    def _needs(self, columns: list[str]) -> list[str]:
        """The stored columns that some shown ones are made of."""
        needs = dict.fromkeys([self._eviction.column])
        for name in columns:
            stored = self._shown[name].needs if name in self._shown else (OWNER_HI, OWNER_LO)
            needs |= dict.fromkeys(stored)
        return list(needs)

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        over = self._eviction.over(rows.column(self._eviction.column))
        if over.any():
            rows = rows.filter(pa.array(~over))
        if not columns:
            return rows
        return self._batch(columns, [self._column(name, rows) for name in columns])

    def _column(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        if name not in SYSTEM:
            shown = self._shown[name]
            return shown.make([rows.column(need) for need in shown.needs])
        owner = rows.column(OWNER_LO if name not in (HI, KEY_GROUP) else OWNER_HI)
        return self._groups(owner.to_numpy()) if name == KEY_GROUP else owner


class PartialMatches(_OwnedTable):
    """A row per start of a match that is not settled: since when, and what it waits for."""

    def _results(self) -> list[ResultColumn]:
        return shown_partials(list(self.description.key_schema), self.description.spec)


class MatchedRows(_OwnedTable):
    """A row per row that a partial match has taken, or took not long ago."""

    def _results(self) -> list[ResultColumn]:
        stored = self.description.tables[self.state].schema
        return [
            ResultColumn(field.name, field.type, (field.name,))
            for field in stored
            if field.name not in (EVENT, NUMBER)
        ]
