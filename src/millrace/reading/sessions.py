"""The state of a session operator as a table: a row per key and session that is not over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray
from millrace.operators.operator import MAIN, ResultColumn
from millrace.operators.session.layout import END
from millrace.operators.window.layout import WINDOW_TYPE
from millrace.reading.owned_table import EvictedTable
from millrace.reading.replicas import gathered
from millrace.reading.state_table import followed
from millrace.reading.windows import micros

SESSION_START = "session_start"
"""The last column of a key to look up."""


class SessionTable(EvictedTable):
    """A row per key and session that is not over."""

    def _results(self) -> Sequence[ResultColumn]:
        return self.description.shown(self.moment)

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up: its own, and the session's start."""
        return pa.schema([*self.description.key_schema, (SESSION_START, WINDOW_TYPE[0].type)])

    def _look_up(
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
