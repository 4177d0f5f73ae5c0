"""An epoch's rows of two streams: which are late, which can have partners, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt32Array, UInt64Array
from millrace.operators.arrays import validity
from millrace.operators.input import Input
from millrace.operators.join.ordering import row_places
from millrace.operators.operator import Moment
from millrace.state.sorting import sort_order


@dataclass(frozen=True)
class Arrived:
    """Rows of one stream that can have partners, in order of key and tick, then of input partition
    where that matters, then of arrival."""

    position: Int64Array
    """Where each is in the input."""
    hi: UInt64Array
    """The fingerprint of its key."""
    lo: UInt64Array
    time: Int64Array
    place: UInt64Array
    """The `hi` under which it is stored, if it is."""

    def __len__(self) -> int:
        return len(self.position)

    @property
    def low32(self) -> UInt32Array:
        """What is stored of the key's `hi` beside the place."""
        return self.hi.astype(np.uint32)

    @property
    def looked_for(self) -> tuple[UInt64Array, UInt64Array, Int64Array]:
        return self.hi, self.lo, self.time


@dataclass(frozen=True)
class Division:
    """The rows of one stream, by what becomes of them: positions in the input."""

    partners: Arrived
    alone: Int64Array
    """Rows without event time, or with a NULL in their key: nothing is their partner."""
    late: Int64Array
    without_time: int


def is_right(rows: Input) -> BoolArray:
    """Which rows come from the right stream."""
    assert rows.is_right is not None
    flags: BoolArray = types.conform(rows.is_right, pa.bool_()).to_numpy(zero_copy_only=False)
    return flags


def event_times(rows: Input) -> tuple[Int64Array, BoolArray]:
    """Event times, and which rows have one."""
    times = types.conform(rows.event_us, pa.int64())
    known = validity(times)
    return (times.fill_null(0) if times.null_count else times).to_numpy(), known


def has_key(rows: Input) -> BoolArray:
    """Which rows have no NULL in their key: SQL's NULL equals nothing."""
    whole: BoolArray = np.ones(rows.num_rows, np.bool_)
    for key in rows.keys:
        if key.null_count:
            whole &= validity(types.conform(key, key.type))
    return whole


def divide(rows: Input, moment: Moment, bits: tuple[int, int]) -> tuple[Division, Division]:
    """The rows of the left and of the right stream. `bits` says how long each one's ticks are."""
    right = is_right(rows)
    times, known = event_times(rows)
    # As in Spark, a watermark that is not there yet is 0, and what is at the watermark is late.
    late = known & (times <= (moment.late_us or 0))
    partners = known & has_key(rows) & ~late
    alone = ~partners & ~late
    return tuple(  # type: ignore[return-value]
        Division(
            arrived(rows, rows.by_part(np.flatnonzero(partners & side)), times, tick_bits),
            np.flatnonzero(alone & side),
            np.flatnonzero(late & side),
            int((~known & side).sum()),
        )
        for side, tick_bits in zip((~right, right), bits, strict=True)
    )


def arrived(rows: Input, position: Int64Array, times: Int64Array, bits: int) -> Arrived:
    """Rows at some positions; those of one place stay in the order of the positions."""
    hi, lo, time = rows.hi[position], rows.lo[position], times[position]
    place = row_places(hi, time, bits)
    # By place alone: the sort is stable.
    order = sort_order(place, np.zeros(len(place), np.uint64))
    return Arrived(position[order], hi[order], lo[order], time[order], place[order])
