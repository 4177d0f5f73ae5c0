"""Rows that wait in state, as they came."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.join.addresses import numbered
from millrace.operators.join.arrivals import Arrived
from millrace.operators.join.columns import Columns, changed_rows
from millrace.operators.operator import Moment, TableChange
from millrace.state.replica import Replica


def stored_rows(
    replica: Replica,
    new: Arrived,
    kept: Int64Array,
    moment: Moment,
    columns: Sequence[Columns],
    flags: Sequence[pa.Array] = (),
    evicted: int = 0,
) -> TableChange:
    """Some new rows as rows of a table of `row_table`'s layout. `flags` are in the rows' order."""
    lo, order = numbered(new.place[kept], moment.epoch, replica.laid_over)
    at = kept[order]
    arrays = [array for of in columns for array in of.take(new.position[at])]
    arrays += [pa.array(new.time[at]), pa.array(new.lo[at]), pa.array(new.low32[at])]
    arrays += [flag.take(pa.array(order)) for flag in flags]
    changed = changed_rows(replica, new.place[at], lo[order], arrays)
    return TableChange(changed, len(at), evicted=evicted)
