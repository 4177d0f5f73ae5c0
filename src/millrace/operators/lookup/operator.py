"""The lookup: each left row, at once, with the newest right row of its key.

The state is a row per key: the newest right row that has come, by its event time if the right
stream has one, else by arrival. Within an epoch, rows of a higher input partition have arrived
later, in whatever order they are sent. A left row sees what has come up to its own epoch, that
included. It does not wait: what comes later has no effect on it. So rows are not late here, and the
left stream's watermark goes on unchanged.

Known rough edge: where the rows of an epoch are applied in several steps, a left row sees the right
rows of its own step and of those before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.operators.arrays import replaced
from millrace.operators.as_of.matching import in_order_of_time, last_of_runs
from millrace.operators.input import Input
from millrace.operators.join.arrivals import has_key, is_right
from millrace.operators.join.columns import Columns, changed_rows, output_batch
from millrace.operators.join.layout import INNER
from millrace.operators.join.streams import TwoStreams
from millrace.operators.lookup import layout
from millrace.operators.lookup.layout import EVENT
from millrace.operators.lookup.spec import LookupDefinition
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.operators.window.assembling import positions
from millrace.state.replica import Replica

_NO_TIME = np.iinfo(np.int64).min
"""Older than any."""


class LookupOperator(TwoStreams):
    """Keys, two streams, and whether rows without a partner are emitted."""

    definition: LookupDefinition

    runs_without_rows = False

    def __init__(
        self, name: OperatorName, definition: LookupDefinition, *, ansi: bool = True
    ) -> None:
        super().__init__(name, definition, has_late=False)
        keys, _, right = self.fields
        self.tables = layout.tables(keys, right)
        self.check_names()

    @staticmethod
    def from_spec(name: OperatorName, data: dict[str, Any], *, ansi: bool = True) -> LookupOperator:
        return LookupOperator(name, LookupDefinition.from_json(data), ansi=ansi)

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return watermark_us

    def sweep(self, table: str, moment: Moment) -> None:
        return None

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Looking(self, replicas[MAIN], rows).change()


class _Looking:
    """What one shard does in one epoch."""

    def __init__(self, operator: LookupOperator, replica: Replica, rows: Input) -> None:
        assert rows.part is not None
        self._operator = operator
        self._replica = replica
        self._rows = rows
        self._keys = Columns(rows.keys, operator.key_types)
        self._right = Columns(rows.right, operator.right_types)
        self._is_right = is_right(rows)
        self._has_key = has_key(rows)
        self._times = self._event_times()

    def _event_times(self) -> pa.Array:
        if self._rows.event_us is None:
            return pa.nulls(self._rows.num_rows, pa.int64())
        return types.conform(self._rows.event_us, pa.int64())

    def change(self) -> Change:
        newest = self._newest()
        hi, lo = self._rows.hi[newest], self._rows.lo[newest]
        addresses = self._replica.find(hi, lo)
        wins = self._wins(newest, addresses)
        newest, hi, lo, addresses = newest[wins], hi[wins], lo[wins], addresses[wins]
        arrays = [
            *self._keys.take(newest),
            *self._right.take(newest),
            self._times.take(pa.array(newest)),
        ]
        changed = changed_rows(self._replica, hi, lo, arrays)
        output = self._output(newest, hi, lo)
        return Change({MAIN: TableChange(changed, int((addresses == 0).sum()))}, output)

    def _newest(self) -> Int64Array:
        """The newest right row of each key that comes, in order of fingerprint."""
        came = self._rows.by_part(np.flatnonzero(self._is_right & self._has_key))
        hi, lo = self._rows.hi[came], self._rows.lo[came]
        times = self._times.take(pa.array(came)).fill_null(_NO_TIME).to_numpy()
        order = in_order_of_time(hi, lo, times, np.arange(len(came), dtype=np.uint64))
        return came[order[last_of_runs(hi[order], lo[order])]]

    def _wins(self, newest: Int64Array, addresses: UInt64Array) -> BoolArray:
        """Which of these rows are not older than the one that is stored."""
        stored = self._replica.gather(addresses, [EVENT])[0].fill_null(_NO_TIME).to_numpy()
        times = self._times.take(pa.array(newest)).fill_null(_NO_TIME).to_numpy()
        not_older: BoolArray = (addresses == 0) | (times >= stored)
        return not_older

    def _output(self, newest: Int64Array, hi: UInt64Array, lo: UInt64Array) -> pa.RecordBatch:
        """The left rows, each with its partner."""
        operator, rows = self._operator, self._rows
        left = np.flatnonzero(~self._is_right)
        at = positions(rows.hi[left], rows.lo[left], hi, lo)
        at[~self._has_key[left]] = -1
        came = at >= 0
        addresses = np.zeros(len(left), np.uint64)
        rest = np.flatnonzero(~came & self._has_key[left])
        addresses[rest] = self._replica.find(rows.hi[left[rest]], rows.lo[left[rest]])
        if operator.definition.how == INNER:
            has_one = came | (addresses != 0)
            left, at, came, addresses = (a[has_one] for a in (left, at, came, addresses))
        stored = self._replica.gather(addresses, operator.right_names)
        new = self._right.take(newest[at[came]])
        right = [replaced(s, came, n) for s, n in zip(stored, new, strict=True)]
        columns = Columns(rows.columns, operator.left_types).take(left)
        pieces = [[*self._keys.take(left), *columns, *right]] if len(left) else []
        return output_batch(pieces, operator.output_schema)
