"""The as-of join: each left row with the newest right row of its key at its event time.

A left row is emitted when the watermark has reached it: then no right row that is as old can come,
so the result does not depend on the order in which rows arrive. Until then it waits, and so do
right rows. In an epoch a shard (1) sets late rows aside, (2) collects the rows of both streams that
the watermark has reached, stored and new ones, (3) goes through them in order of key and time,
(4) keeps the newest right row of each key, and (5) stores the rows that have to wait.

Invariant: the main table has, per key, the newest right row at or before the watermark of the last
epoch. So a left row that is due has its partner among the right rows that are due with it, or else
in the main table: waiting rows are looked at when they are due and not before.

Of right rows with the same key and time, the one that came last counts: that of the latest epoch,
in it of the highest input partition, and there the last. An epoch that runs again finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.arrays import replaced
from millrace.operators.as_of import layout
from millrace.operators.as_of.layout import LEFT_ROWS, RIGHT_ROWS
from millrace.operators.as_of.matching import in_order_of_time, last_before, last_of_runs
from millrace.operators.as_of.spec import AsOfDefinition
from millrace.operators.input import Input
from millrace.operators.join.arrivals import Division, divide
from millrace.operators.join.columns import (
    Columns,
    changed_rows,
    output_batch,
    united,
)
from millrace.operators.join.late import counted, late_rows
from millrace.operators.join.layout import EVENT, KEY_HI, KEY_LO
from millrace.operators.join.ordering import LEAST_TICK_BITS, numbers
from millrace.operators.join.storing import stored_rows
from millrace.operators.join.streams import TwoStreams
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.time_index import TimeIndex

_NEW = np.uint64(1 << 63)
"""New rows have come after all stored ones."""


class AsOfOperator(TwoStreams):
    """Keys, two streams, and how old a right row may be."""

    definition: AsOfDefinition

    runs_without_rows = True
    """Rows are due when the watermark reaches them, and it may do so without rows."""

    def __init__(
        self, name: OperatorName, definition: AsOfDefinition, *, ansi: bool = True
    ) -> None:
        super().__init__(name, definition)
        self.tables = layout.tables(*self.fields, definition.tolerance_us)
        self.check_names()

    @staticmethod
    def from_spec(name: OperatorName, data: dict[str, Any], *, ansi: bool = True) -> AsOfOperator:
        return AsOfOperator(name, AsOfDefinition.from_json(data), ansi=ansi)

    def output_watermark(self, watermark_us: int | None) -> int | None:
        # A row's event time is that of the left row. All up to the watermark have been emitted.
        return watermark_us

    def sweep(self, table: str, moment: Moment) -> Eviction | None:
        return layout.eviction(table, self.definition.tolerance_us, moment)

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Matching(self, replicas, rows, groups, moment).change()


@dataclass(frozen=True)
class _Due:
    """Rows of a stream that the watermark has reached in this epoch, in order of key and time."""

    hi: UInt64Array
    lo: UInt64Array
    time: Int64Array
    columns: list[pa.Array]
    """Those of the key, then the stream's others."""
    stored: int
    """How many of them were stored."""

    def __len__(self) -> int:
        return len(self.hi)


class _Matching:
    """What one shard does in one epoch."""

    def __init__(
        self,
        operator: AsOfOperator,
        replicas: dict[str, Replica],
        rows: Input,
        groups: Int64Array,
        moment: Moment,
    ) -> None:
        assert rows.part is not None
        self._operator = operator
        self._replicas = replicas
        self._groups = groups
        self._moment = moment
        watermark = moment.watermark_us or 0
        self._late = min(moment.late_us or 0, watermark)
        # Until all rows of the epoch are there, nothing is due.
        self._until = self._late if moment.more else watermark
        self._divided = divide(rows, moment, (LEAST_TICK_BITS, LEAST_TICK_BITS))
        self._keys = Columns(rows.keys, operator.key_types)
        self._left = Columns(rows.columns, operator.left_types)
        self._right = Columns(rows.right, operator.right_types)

    def change(self) -> Change:
        operator, divided = self._operator, self._divided
        left = self._due(LEFT_ROWS, divided[0], self._left, self._names(operator.left_names))
        right = self._due(RIGHT_ROWS, divided[1], self._right, self._names(operator.right_names))
        pieces = [piece for piece in (self._alone(), self._matched(left, right)) if len(piece[0])]
        tables = {
            MAIN: self._newest(right),
            LEFT_ROWS: self._waiting(LEFT_ROWS, divided[0], self._left, left.stored),
            RIGHT_ROWS: self._waiting(RIGHT_ROWS, divided[1], self._right, right.stored),
        }
        return Change(
            tables,
            output_batch(pieces, operator.output_schema),
            counted(divided, sum(change.evicted for change in tables.values())),
            late_rows(operator.side_schemas, divided, self._keys, (self._left, self._right)),
        )

    def _names(self, names: list[str]) -> list[str]:
        return [*self._operator.key_names, *names]

    def _due(self, table: str, divided: Division, columns: Columns, names: list[str]) -> _Due:
        """The rows of a stream that the watermark has reached in this epoch."""
        replica = self._replicas[table]
        found = TimeIndex(replica, EVENT).added_between(self._groups, self._late + 1, self._until)
        new = divided.partners
        now = np.flatnonzero(new.time <= self._until)
        place, row, time, lo, low32 = (
            column.to_numpy() for column in replica.gather(found, [HI, LO, EVENT, KEY_LO, KEY_HI])
        )
        stored_hi = (place >> np.uint64(32) << np.uint64(32)) | low32.astype(np.uint64)
        positions = new.position[now]
        hi = np.concatenate([stored_hi, new.hi[now]])
        lo = np.concatenate([lo, new.lo[now]])
        time = np.concatenate([time, new.time[now]])
        number = np.concatenate([numbers(row), _NEW | now.astype(np.uint64)])
        order = in_order_of_time(hi, lo, time, number)
        pieces = [
            replica.gather(found, names),
            [*self._keys.take(positions), *columns.take(positions)],
        ]
        at = pa.array(order)
        arrays = [array.take(at) for array in united(pieces)]
        return _Due(hi[order], lo[order], time[order], arrays, len(found))

    def _alone(self) -> list[pa.Array]:
        """Left rows that nothing is the partner of: they need not wait."""
        alone = self._divided[0].alone
        right = [pa.nulls(len(alone), kind) for kind in self._operator.right_types]
        return [*self._keys.take(alone), *self._left.take(alone), *right]

    def _matched(self, left: _Due, right: _Due) -> list[pa.Array]:
        """The left rows that are due, with their partners."""
        tolerance = self._operator.definition.tolerance_us
        main = self._replicas[MAIN]
        names = self._operator.right_names
        at = last_before((left.hi, left.lo, left.time), (right.hi, right.lo, right.time))
        among_due = at >= 0
        addresses = np.zeros(len(left), np.uint64)
        rest = np.flatnonzero(~among_due)
        addresses[rest] = main.find(left.hi[rest], left.lo[rest])
        if tolerance is not None:
            found = np.flatnonzero(addresses)
            times = main.gather(addresses[found], [EVENT])[0].to_numpy()
            addresses[found[times < left.time[found] - tolerance]] = 0
            near = right.time[at[among_due]] >= left.time[among_due] - tolerance
            among_due[np.flatnonzero(among_due)[~near]] = False
        keys = len(self._operator.keys)
        partners = pa.array(at[among_due])
        columns = [
            replaced(stored, among_due, due.take(partners))
            for stored, due in zip(main.gather(addresses, names), right.columns[keys:], strict=True)
        ]
        return [*left.columns, *columns]

    def _newest(self, right: _Due) -> TableChange:
        """The main table's changes: the newest due row of each key."""
        main = self._replicas[MAIN]
        tolerance = self._operator.definition.tolerance_us
        last = last_of_runs(right.hi, right.lo)
        least = np.iinfo(np.int64).min
        limit = before = least
        if tolerance is not None:
            limit, before = (us + 1 - tolerance for us in (self._until, self._late))
            last = last[right.time[last] >= limit]
        hi, lo = right.hi[last], right.lo[last]
        addresses = main.find(hi, lo)
        found = addresses[addresses != 0]
        # A row that was over may still be stored or not.
        there = found[main.gather(found, [EVENT])[0].to_numpy() >= before]
        evicted = 0
        if tolerance is not None:
            over = TimeIndex(main, EVENT).between(self._groups, before, limit - 1)
            evicted = int((~np.isin(over, there)).sum())
        at = pa.array(last)
        arrays = [*(column.take(at) for column in right.columns), pa.array(right.time[last])]
        changed = changed_rows(main, hi, lo, arrays)
        return TableChange(changed, len(last) - len(there), evicted=evicted)

    def _waiting(
        self, table: str, divided: Division, columns: Columns, evicted: int
    ) -> TableChange:
        """The new rows that the watermark has not reached."""
        new = divided.partners
        kept = np.flatnonzero(new.time > self._until)
        arrays = [*self._keys.take(new.position), *columns.take(new.position)]
        replica = self._replicas[table]
        return stored_rows(replica, new, kept, self._moment, arrays, evicted=evicted)
