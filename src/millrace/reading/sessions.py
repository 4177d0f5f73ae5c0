"""The state of a session operator as a table: a row per key and session that is not over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.log.segment import HI, LO, OWNER_HI, OWNER_LO
from millrace.operators.operator import MAIN, ResultColumn
from millrace.operators.session.layout import END
from millrace.operators.window.layout import WINDOW_TYPE
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed
from millrace.reading.windows import micros

SESSION_START = "session_start"
"""The last column of a key to look up."""


class SessionTable(StateTable):
    """A row per key and session that is not over."""

    def _schema(self) -> pa.Schema:
        self._shown: dict[str, ResultColumn] = {
            shown.name: shown for shown in self.description.shown(self.moment)
        }
        self._eviction = self.description.eviction(MAIN, self.moment)
        return pa.schema([pa.field(shown.name, shown.type) for shown in self._shown.values()])

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up: its own, and the session's start."""
        return pa.schema([*self.description.key_schema, (SESSION_START, WINDOW_TYPE[0].type)])

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        replica = self.snapshot.replica(self.description, MAIN, groups)
        for rows in scan(replica, groups, self._needs(columns)):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        replica = followed(self, MAIN, keys)
        addresses, _ = replica.entries(*keys)
        return self._made(columns, gathered(replica, addresses, self._needs(columns)))

    def look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of some sessions, in their order, and which of them there are."""
        from millrace.operators.window.fingerprints import at_times

        *key, start = keys
        starts, known = micros(start)
        hi, lo = self.fingerprints(key)
        replica = followed(self, MAIN, (hi, lo))
        addresses = replica.find(*at_times(hi, lo, starts))
        addresses[~known] = 0
        found: BoolArray = addresses != 0
        over = self._over(gathered(replica, addresses[found], [END]))
        found[np.flatnonzero(found)[over]] = False
        names = [name for name in columns if name != SESSION_START]
        rows = self._made(names, gathered(replica, addresses[found], self._needs(names)))
        where = pa.array(np.cumsum(found) - 1, mask=~found)
        taken = dict(zip(names, (column.take(where) for column in rows.columns), strict=False))
        return [start if name == SESSION_START else taken[name] for name in columns], found

    def _over(self, rows: pa.RecordBatch) -> BoolArray:
        assert self._eviction is not None
        return self._eviction.over(rows.column(END))

    def _needs(self, columns: list[str]) -> list[str]:
        """The stored columns that some shown ones are made of."""
        needs = dict.fromkeys([END])
        for name in columns:
            stored = self._shown[name].needs if name in self._shown else (OWNER_HI, OWNER_LO)
            needs |= dict.fromkeys(stored)
        return list(needs)

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
        if name == KEY_GROUP:
            return self._groups(rows.column(OWNER_HI).to_numpy())
        return rows.column({HI: OWNER_HI, LO: OWNER_LO}[name])
