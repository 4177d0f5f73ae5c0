"""Rows that wait in state, as they came."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.join.arrivals import Arrived
from millrace.operators.join.columns import changed_rows, taken
from millrace.operators.join.ordering import numbered
from millrace.operators.operator import Moment, TableChange
from millrace.state.replica import Replica


def stored_rows(
    replica: Replica,
    new: Arrived,
    kept: Int64Array,
    moment: Moment,
    columns: Sequence[pa.Array],
    flags: Sequence[pa.Array] = (),
    evicted: int = 0,
) -> TableChange:
    """Some new rows as rows of a table of `row_table`'s layout.

    `columns`, the key's and the stream's others, are in the order of the new rows; `flags` in that
    of those that are kept.
    """
    lo, order = numbered(new.place[kept], moment.epoch, replica.laid_over)
    at = kept[order]
    arrays = taken(columns, at)
    arrays += [pa.array(new.time[at]), pa.array(new.lo[at]), pa.array(new.low32[at])]
    arrays += taken(flags, order)
    changed = changed_rows(replica, new.place[at], lo[order], arrays)
    return TableChange(changed, len(at), evicted=evicted)
