"""What a page must be before kernels follow it: sorted rows of the key groups it is said to hold.

Kernels find a key group's tables by the top bits of a fingerprint, and rows by halving: a row of
another key group, or one out of order, would be looked for in memory that is not there, or not be
found. A page is looked at once, when it is mapped; a pass over the fingerprints takes less than the
checksum does.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import MalformedError
from millrace.jit import kernel
from millrace.log.segment import (
    DELETED,
    HI,
    LO,
    OWNER_FIELDS,
    OWNER_HI,
    SYSTEM_FIELDS,
    GroupIndex,
    Section,
)
from millrace.state.columns import words


def check_page(
    batch: pa.RecordBatch, section: Section, index: GroupIndex, page: int, shift: int, owned: bool
) -> None:
    """Raise unless a page of a section has the rows that the index says, in their order."""
    for field in (*SYSTEM_FIELDS, *(OWNER_FIELDS if owned else ())):
        at = batch.schema.get_field_index(field.name)
        if at < 0 or batch.schema.field(at).type != field.type or batch.column(at).null_count:
            raise MalformedError(f"page {page} has no column {field.name!r} of {field.type}")
    mine = index.pages == page
    hi, lo = words(batch, HI), words(batch, LO)
    owner = words(batch, OWNER_HI) if owned else hi
    row = _misplaced(hi, lo, owner, index.groups[mine], index.rows[mine], np.uint64(shift))
    if row >= 0:
        raise MalformedError(f"row {row} of page {page} is not where its fingerprint belongs")
    if section.is_base and batch.column(DELETED).true_count:
        raise MalformedError(f"page {page} of a base has rows that are marked as deleted")


@kernel
def _misplaced(
    hi: UInt64Array,
    lo: UInt64Array,
    owner: UInt64Array,
    groups: Int64Array,
    rows: Int64Array,
    shift: np.uint64,
) -> int:
    """The first row that is of another key group, or not after the one before; -1 if none is."""
    row = 0
    for i in range(len(groups)):
        group = np.uint64(groups[i])
        for _ in range(rows[i]):
            if hi[row] >> shift != group or owner[row] >> shift != group:
                return row
            if row > 0 and (
                hi[row - 1] > hi[row] or (hi[row - 1] == hi[row] and lo[row - 1] >= lo[row])
            ):
                return row
            row += 1
    return -1
