"""Changed rows of a table that has several rows per key, each at a time or number of its own.

Sessions and partial matches are kept that way. A row's fingerprint follows from that of its key and
from where it starts, so a deletion needs no more than those two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.log.segment import OWNER_HI, OWNER_LO
from millrace.operators.window.fingerprints import at_times
from millrace.state.replica import Replica
from millrace.state.sorting import sort_order


def changed_rows(
    replica: Replica,
    start: str,
    owners: tuple[UInt64Array, UInt64Array],
    starts: Int64Array,
    columns: Sequence[pa.Array],
    deleted: UInt64Array,
) -> pa.RecordBatch:
    """New rows of some keys, and deletions of rows by address, in order of their fingerprints.

    `start` is the column with the starts; `columns` are all of the new rows' own.
    """
    gone_hi, gone_lo, gone_starts = (
        column.to_numpy() for column in replica.gather(deleted, [OWNER_HI, OWNER_LO, start])
    )
    owner_hi = np.concatenate((owners[0], gone_hi))
    owner_lo = np.concatenate((owners[1], gone_lo))
    hi, lo = at_times(owner_hi, owner_lo, np.concatenate((starts, gone_starts)))
    order = sort_order(hi, lo)
    if len(deleted):
        columns = [pa.concat_arrays([c, pa.nulls(len(deleted), c.type)]) for c in columns]
    chosen = pa.array(order)
    arrays = [
        pa.array(hi[order]),
        pa.array(lo[order]),
        pa.array(order >= len(starts)),
        pa.array(owner_hi[order]),
        pa.array(owner_lo[order]),
        *(column.take(chosen) for column in columns),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=replica.schema)
