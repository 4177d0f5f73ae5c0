"""An epoch's rows on their way into a processor: which are for whom, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.operators.input import Input
from millrace.state.sorting import group_starts, sort_order

_NO_TIME = np.iinfo(np.int64).min
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Division:
    """The positions of the rows that are treated alike; broadcast rows are in none of them."""

    initial: Int64Array
    """Rows of the initial state."""
    rows: Int64Array | None
    """Rows to process; None if that is all rows."""
    late: Int64Array


def divide(
    rows: Input, is_broadcast: BoolArray | None = None, is_late: BoolArray | None = None
) -> Division:
    """Divide an epoch's rows; None instead of a mask means that it applies to no row."""
    is_initial = None
    if rows.is_initial is not None:
        is_initial = rows.is_initial.fill_null(False).to_numpy(zero_copy_only=False)
    aside: BoolArray | None = None
    for mask in (is_initial, is_late, is_broadcast):
        if mask is not None and mask.any():
            aside = mask if aside is None else aside | mask
    return Division(
        _NONE if is_initial is None else np.flatnonzero(is_initial),
        None if aside is None else np.flatnonzero(~aside),
        _NONE if is_late is None else np.flatnonzero(is_late),
    )


class Arrivals:
    """Some rows of an input in order of key, then input partition, then arrival."""

    def __init__(self, rows: Input, positions: Int64Array | None) -> None:
        """`positions` says which rows; None: all."""
        self.input = rows
        hi, lo, part = rows.hi, rows.lo, rows.part
        assert part is not None, "a processor's rows come with their input partitions"
        if positions is not None:
            hi, lo, part = hi[positions], lo[positions], part[positions]
        by_part = np.argsort(part, kind="stable")
        order = by_part[sort_order(hi[by_part], lo[by_part])]
        starts = group_starts(hi[order], lo[order])
        heads = order[starts[:-1]]
        self.starts = starts
        self.hi, self.lo = hi[heads], lo[heads]
        if positions is not None:
            order, heads = positions[order], positions[heads]
        self.order = pa.array(order)
        self.first = pa.array(heads)
        self.event_us: list[int | None] | None = None
        """The latest event time of each key's rows; None for a key whose rows have none."""
        if rows.event_us is not None and len(order):
            times = rows.event_us.fill_null(_NO_TIME).to_numpy()[order]
            latest = np.maximum.reduceat(times, starts[:-1]).tolist()
            has_nulls = rows.event_us.null_count > 0
            self.event_us = [None if t == _NO_TIME else t for t in latest] if has_nulls else latest


def unite(
    hi: Sequence[UInt64Array], lo: Sequence[UInt64Array]
) -> tuple[UInt64Array, UInt64Array, Int64Array]:
    """The distinct fingerprints of several lists, sorted, and the number of each one listed."""
    all_hi, all_lo = np.concatenate(hi), np.concatenate(lo)
    order = sort_order(all_hi, all_lo)
    starts = group_starts(all_hi[order], all_lo[order])
    heads = order[starts[:-1]]
    position = np.empty(len(order), np.int64)
    position[order] = np.repeat(np.arange(len(heads)), np.diff(starts))
    return all_hi[heads], all_lo[heads], position
