"""An epoch's rows on their way into a processor: their columns, their order, and late ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace import types
from millrace.log.segment import HI, LO
from millrace.operators.aggregate import PART, Key
from millrace.operators.operator import Moment
from millrace.state.sorting import group_starts, sort_order

EVENT = "_event"
"""The event time of a row, in microseconds."""

IS_INITIAL = "_initial"
"""Whether a row is one of the initial state. Only the first epoch's rows have this column."""

_NO_TIME = np.iinfo(np.int64).min
UInt64Array = npt.NDArray[np.uint64]


class Arrived:
    """Rows in order of key, then input partition, then arrival."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        hi, lo = _words(rows.column(HI)), _words(rows.column(LO))
        part = np.argsort(rows.column(PART).to_numpy(), kind="stable")
        order = part[sort_order(hi[part], lo[part])]
        starts = group_starts(hi[order], lo[order])
        self.order = pa.array(order)
        self.starts = starts
        heads = order[starts[:-1]]
        self.hi, self.lo = hi[heads], lo[heads]
        self.first = pa.array(heads)
        self.event_us: list[int | None] | None = None
        """The latest event time of each key's rows; None for a key whose rows have none."""
        if EVENT in rows.column_names and len(order):
            times = rows.column(EVENT).fill_null(_NO_TIME).to_numpy()[order]
            latest = np.maximum.reduceat(times, starts[:-1]).tolist()
            has_nulls = rows.column(EVENT).null_count > 0
            self.event_us = [None if t == _NO_TIME else t for t in latest] if has_nulls else latest


def unite(
    hi: Sequence[UInt64Array], lo: Sequence[UInt64Array]
) -> tuple[UInt64Array, UInt64Array, npt.NDArray[np.int64]]:
    """The distinct fingerprints of several lists, sorted, and the number of each one listed."""
    all_hi, all_lo = np.concatenate(hi), np.concatenate(lo)
    order = sort_order(all_hi, all_lo)
    starts = group_starts(all_hi[order], all_lo[order])
    heads = order[starts[:-1]]
    position = np.empty(len(order), np.int64)
    position[order] = np.repeat(np.arange(len(heads)), np.diff(starts))
    return all_hi[heads], all_lo[heads], position


def split_initial(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of the initial state, and the rest."""
    if IS_INITIAL not in rows.column_names:
        return rows.slice(0, 0), rows
    is_initial = rows.column(IS_INITIAL)
    return rows.filter(is_initial), rows.filter(pc.invert(is_initial))


def split_late(rows: pa.Table, moment: Moment, event_time: str | None) -> tuple[pa.Table, pa.Table]:
    """Rows that are not older than the watermark, and those that are. No event time is not late."""
    if event_time is None or moment.watermark_us is None or not rows.num_rows:
        return rows, rows.slice(0, 0)
    fresh = pc.fill_null(pc.greater_equal(rows.column(EVENT), moment.watermark_us), True)
    return rows.filter(fresh), rows.filter(pc.invert(fresh))


def empty_rows(
    keys: Sequence[Key],
    fields: Sequence[Key],
    event_time: str | None,
    more: Sequence[pa.Field] = (),
) -> pa.Table:
    """No rows, with the columns that rows have."""
    schema = [pa.field(HI, pa.int64()), pa.field(LO, pa.int64()), pa.field(PART, pa.int32())]
    for prefix, described in (("_k", keys), ("_c", fields)):
        schema += [
            pa.field(f"{prefix}{i}", types.arrow_type(column.type, column.name))
            for i, column in enumerate(described)
        ]
    if event_time is not None:
        schema.append(pa.field(EVENT, pa.int64()))
    return pa.schema([*schema, *more]).empty_table()


def state_specs(declared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the location keeps of a processor's declarations, in their order."""
    specs = []
    for name, declaration in declared.items():
        spec = {"name": name, **declaration.spec()}
        if "types" in spec:
            ttl = declaration.ttl_us
            spec["ttl"] = None if ttl is None else [ttl, declaration.ttl_time]
        specs.append(spec)
    return specs


def _words(column: pa.ChunkedArray) -> UInt64Array:
    return np.asarray(column.to_numpy()).view(np.uint64)
