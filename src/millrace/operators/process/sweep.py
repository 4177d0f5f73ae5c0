"""Which rows have expired, so that a merge can leave them out.

An entry expires at its own time. A key's main row has expired when nothing of it is left: Values
that expired or were never set, collections that are empty or whose last entry has expired, and no
timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray
from millrace.operators.operator import MAIN, Moment
from millrace.operators.process.kinds import KINDS, Place
from millrace.operators.process.layout import EXPIRES, TIMER_TABLES
from millrace.operators.process.spec import StateSpecs

if TYPE_CHECKING:
    from millrace.state.writing import Sweep


def sweep_of(table: str, states: StateSpecs, moment: Moment) -> Sweep | None:
    """A function that marks expired rows of a table; None if nothing in it expires."""
    if table == MAIN:
        if not any(spec.get("ttl") for spec in states):
            return None
        return lambda rows: _main_expired(rows, states, moment)
    spec = next((spec for spec in states if spec["name"] == table), None)
    now = moment.of(spec["ttl"][1]) if spec is not None and spec.get("ttl") else None
    return None if now is None else lambda rows: _expired(rows, EXPIRES, now)


def _expired(rows: pa.RecordBatch, column: str, now: int) -> BoolArray:
    expires = rows.column(column).fill_null(np.iinfo(np.int64).max).to_numpy()
    over: BoolArray = expires <= now
    return over


def _main_expired(rows: pa.RecordBatch, states: StateSpecs, moment: Moment) -> BoolArray:
    over = np.ones(rows.num_rows, np.bool_)
    for spec in states:
        name, place = spec["name"], KINDS[spec["kind"]].place
        if place is Place.SHARED:
            continue
        if place is Place.TIMERS:
            over &= _is_zero(rows, f"{TIMER_TABLES[KINDS[spec['kind']].time]}.size")
            continue
        if place is Place.MAIN:
            empty = ~rows.column(name).is_valid().to_numpy(zero_copy_only=False)
        elif place is Place.POSITIONS:
            start = rows.column(f"{name}.start").fill_null(0).to_numpy()
            empty = rows.column(f"{name}.end").fill_null(0).to_numpy() <= start
        else:
            empty = _is_zero(rows, f"{name}.size")
        now = moment.of(spec["ttl"][1]) if spec.get("ttl") else None
        if now is not None:
            empty |= _expired(rows, f"{name}.{EXPIRES}", now)
        over &= empty
    return over


def _is_zero(rows: pa.RecordBatch, column: str) -> BoolArray:
    zero: BoolArray = rows.column(column).fill_null(0).to_numpy() == 0
    return zero
