"""Whether two tables hold the same rows, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOLERANCE = 1e-9
"""Relative. Sums of doubles depend on the order of addition; everything else must be identical."""


def differences(
    found: pa.Table, expected: pa.Table, keys: Sequence[str], inexact: Sequence[str]
) -> list[str]:
    """What differs, in words; empty if nothing does."""
    if found.column_names != expected.column_names:
        return [f"the columns are {found.column_names}, not {expected.column_names}"]
    if found.num_rows != expected.num_rows:
        return [f"there are {found.num_rows:,} keys, not {expected.num_rows:,}"]
    order = [(key, "ascending") for key in keys]
    found = found.sort_by(order)
    expected = expected.sort_by(order)
    result = []
    for name in found.column_names:
        ours, theirs = found.column(name), expected.column(name)
        if theirs.type != ours.type:
            theirs = theirs.cast(ours.type)
        wrong = _wrong(ours, theirs, name in inexact)
        if len(wrong):
            at = int(wrong[0])
            key = ", ".join(repr(expected.column(k)[at].as_py()) for k in keys)
            result.append(
                f"{name} differs for {len(wrong):,} keys: for ({key}) it is {ours[at].as_py()!r}, "
                f"not {theirs[at].as_py()!r}"
            )
    return result


def _wrong(
    ours: pa.ChunkedArray, theirs: pa.ChunkedArray, inexact: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    null_differs = pc.xor(ours.is_null(), theirs.is_null()).to_numpy()
    if inexact:
        a, b = ours.to_numpy(), theirs.to_numpy()
        differs = ~np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        differs = pc.fill_null(pc.not_equal(ours, theirs), False).to_numpy()
    return np.flatnonzero(null_differs | differs)
