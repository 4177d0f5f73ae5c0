"""Early results: which rows of state are due in an epoch, and when they are due next.

A row of state has the processing time at which it is due, `EARLY_DUE`, or NULL if nothing has
changed since it was emitted. Epochs share the times out between them: a row is due in the epoch
whose processing time is the first to reach it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.operators.arrays import whole_numbers
from millrace.operators.operator import Moment
from millrace.operators.window.emission import Emission
from millrace.operators.window.layout import EARLY_DUE
from millrace.state.replica import Replica
from millrace.state.time_index import TimeIndex


def due_before(
    replica: Replica, addresses: UInt64Array, moment: Moment
) -> tuple[Int64Array, BoolArray]:
    """When some rows were due before the epoch changed them, and whether that is in this epoch."""
    before, known = whole_numbers(replica.gather(addresses, [EARLY_DUE])[0])
    return before, known & (before > moment.since_us) & (before <= moment.processing_us)


def due_after(
    emission: Emission, moment: Moment, before: Int64Array, is_due: BoolArray
) -> pa.Array:
    """When rows that the epoch changes are due after it."""
    next_due = np.full(len(is_due), emission.next_due(moment.processing_us))
    if moment.more:
        # What is due stays so until all rows of the epoch are there.
        return pa.array(np.where(is_due, before, next_due))
    # What is emitted now, with all changes, is not due again until it changes.
    return pa.array(next_due, mask=is_due)


def stored_due(
    emission: Emission, replica: Replica, groups: Int64Array, moment: Moment
) -> UInt64Array:
    """Addresses of all rows that are due in this epoch, whether it changes them or not."""
    index = TimeIndex(replica, EARLY_DUE, emission.period_us)
    return index.between(groups, moment.since_us + 1, moment.processing_us)
