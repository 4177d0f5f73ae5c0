"""Tables with several rows per key: each row has the fingerprint of the key it belongs to.

`EvictedTable` leaves out the rows that the watermark has passed: they may still be stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.log.segment import HI, OWNER_HI, OWNER_LO
from millrace.operators.operator import ResultColumn
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed


class OwnedTable(StateTable):
    """Rows that belong to keys."""

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
        raise NotImplementedError

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Some shown columns of stored rows."""
        raise NotImplementedError


class EvictedTable(OwnedTable):
    """Rows that belong to keys and go when the watermark passes them."""

    def _results(self) -> Sequence[ResultColumn]:
        """The columns that it shows."""
        raise NotImplementedError

    def _schema(self) -> pa.Schema:
        self._shown = {shown.name: shown for shown in self._results()}
        eviction = self.description.eviction(self.state, self.moment)
        assert eviction is not None
        self._eviction = eviction
        return pa.schema([pa.field(shown.name, shown.type) for shown in self._shown.values()])

    def _needs(self, columns: list[str]) -> list[str]:
        needs = dict.fromkeys([self._eviction.column])
        for name in columns:
            stored = self._shown[name].needs if name in self._shown else (OWNER_HI, OWNER_LO)
            needs |= dict.fromkeys(stored)
        return list(needs)

    def _over(self, rows: pa.RecordBatch) -> BoolArray:
        """Which rows the watermark has passed."""
        return self._eviction.over(rows.column(self._eviction.column))

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        over = self._over(rows)
        if over.any():
            rows = rows.filter(pa.array(~over))
        if not columns:
            return rows
        return self._batch(columns, [self._column(name, rows) for name in columns])

    def _column(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        if name not in SYSTEM:
            shown = self._shown[name]
            return shown.make([rows.column(need) for need in shown.needs])
        # The fingerprint that others see is that of the key.
        owner = rows.column(OWNER_HI if name in (HI, KEY_GROUP) else OWNER_LO)
        return self._groups(owner.to_numpy()) if name == KEY_GROUP else owner
