"""What Linear Road answers, as rows of whole numbers, and how two sets of answers are compared.

| type | answer | columns beside `time` and `vid` |
| --- | --- | --- |
| 0 | the toll of the segment that a car has entered | `lav`, `toll` |
| 1 | an accident ahead | `xway`, `dir`, `seg` of the accident |
| 2 | an account's balance | `qid`, `balance`, `since`, the time of the last charge |
| 3 | what a car paid on a day | `qid`, `toll` |

Other columns are 0. The time of emission is left out: it is measured, not computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array

TOLL, ALERT, BALANCE, EXPENDITURE = range(4)
COLUMNS = (
    "type", "time", "vid", "qid", "xway", "dir", "seg", "lav", "toll", "balance", "since",
)  # fmt: skip


def sorted_rows(rows: Int64Array) -> Int64Array:
    """A row per answer, in order of all columns."""
    return rows[np.lexsort(rows.T[::-1])]


def of_tables(tables: Iterable[pa.Table]) -> Int64Array:
    """The answers in some tables."""
    found = [
        np.column_stack([table.column(name).to_numpy().astype(np.int64) for name in COLUMNS])
        for table in tables
    ]
    return sorted_rows(np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *found]))


def difference(found: Int64Array, wanted: Int64Array) -> str | None:
    """What sorted answers have too much and lack; None if they are equal, row by row."""
    if np.array_equal(found, wanted):
        return None
    parts = [f"{len(found):,} answers, and the oracle has {len(wanted):,}"]
    for what, some, others in (("it has", found, wanted), ("it lacks", wanted, found)):
        only = _only_in(some, others)
        if only is not None:
            parts.append(f"{what} {dict(zip(COLUMNS, only, strict=True))}")
    return "; ".join(parts)


def _only_in(some: Int64Array, others: Int64Array) -> list[int] | None:
    """The first row of some that others do not have as often."""
    rows, which = np.unique(np.concatenate([some, others]), axis=0, return_inverse=True)
    which = which.ravel()
    counts = np.bincount(which[: len(some)], minlength=len(rows))
    missing = np.flatnonzero(counts > np.bincount(which[len(some) :], minlength=len(rows)))
    return rows[missing[0]].tolist() if len(missing) else None
