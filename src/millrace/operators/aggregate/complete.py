"""The keyed aggregate that emits all keys in every epoch: Spark's complete mode.

State, spec and arithmetic are those of `AggregateOperator`; a location can go from one to the other
between starts. Every shard runs in every epoch, because what did not change is emitted, too.

Known rough edge: an epoch costs as much as the whole state is large, as it does in Spark.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.operator import AggregateOperator, code_of
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.state.columns import words
from millrace.state.replica import Replica


class CompleteAggregateOperator(AggregateOperator):
    """Keys and aggregates; emits all of them."""

    @property
    def runs_without_rows(self) -> bool:
        return True

    def code(self) -> bytes:
        return code_of(self)

    def no_rows(self) -> Input:
        nothing = np.empty(0, np.uint64)
        return Input(nothing, nothing, ())

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        replica = replicas[MAIN]
        if rows.num_rows:
            change = super().apply(replicas, rows, groups, moment)
            changed, shown = change.tables[MAIN], [change.output]
        else:
            changed = TableChange(pa.RecordBatch.from_pylist([], schema=replica.schema), 0)
            shown = []
        if moment.more:
            # The last rows of the epoch bring everything.
            return Change({MAIN: changed}, self._shown(replica, np.empty(0, np.uint64)))
        shown.append(self._shown(replica, self._others(replica, changed, groups)))
        return Change({MAIN: changed}, pa.concat_batches(shown))

    def _others(self, replica: Replica, changed: TableChange, groups: Int64Array) -> UInt64Array:
        """Addresses of the rows that the epoch did not change."""
        parts = [np.empty(0, np.uint64), *(replica.rows(int(group)) for group in groups)]
        stored: UInt64Array = np.concatenate(parts)
        touched = replica.find(words(changed.rows, HI), words(changed.rows, LO))
        return stored[~np.isin(stored, touched)] if len(touched) else stored

    def _shown(self, replica: Replica, addresses: UInt64Array) -> pa.RecordBatch:
        keys = replica.gather(addresses, [key.name for key in self.keys])
        state = replica.gather(addresses, [field.name for field in self._reducers.fields])
        return self._emitted(keys, state)
