"""What a session operator keeps, and what a reader shows of it. Pure Arrow.

There is one table, with a row per key and open session: the key's columns, the session's start and
end, and the columns of the aggregates. Rows belong to their key (`TableLayout.owned`), because the
sessions of a key are looked for without knowing when they began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.layout import kept_of
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.operators.window.emission import EARLY
from millrace.operators.window.layout import EARLY_DUE, WINDOW_TYPE
from millrace.state.eviction import Eviction

KIND = "session"

SESSION = "session_window"
"""The column with a session's start and end, as Spark calls it."""

START, END = "session.start", "session.end"
"""A session's bounds in microseconds; it ends a gap after its last row."""

_TIME = pa.timestamp("us", "UTC")


def state_fields(emit: Mapping[str, Any]) -> tuple[list[pa.Field], list[pa.Field]]:
    """The operator's own columns: those before the aggregates' and those after."""
    early = [pa.field(EARLY_DUE, pa.int64())] if emit["mode"] == EARLY else []
    return [pa.field(START, pa.int64()), pa.field(END, pa.int64())], early


def table_layout(
    keys: Sequence[pa.Field], states: Sequence[pa.Field], emit: Mapping[str, Any]
) -> TableLayout:
    """The one table."""
    before, after = state_fields(emit)
    return TableLayout(pa.schema([*keys, *before, *states, *after]), owned=True, evicts=True)


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The table of a session operator, and its results."""
    results = [ResultColumn(key.name, key.type, (key.name,)) for key in keys]
    results.append(ResultColumn(SESSION, WINDOW_TYPE, (START, END), _shown))
    states: list[pa.Field] = []
    for name, kept in kept_of(spec):
        states += kept.fields
        needs = tuple(field.name for field in kept.fields)
        results.append(ResultColumn(name, kept.type, needs, kept.result))
    tables = {MAIN: table_layout(keys, states, spec["emit"])}
    return StateLayout(tables, lambda moment: results, lambda table, moment: eviction(moment))


def eviction(moment: Moment) -> Eviction:
    """The sessions that are over at a moment."""
    return Eviction(END, (moment.watermark_us or 0) + 1)


def _shown(state: Sequence[pa.Array]) -> pa.Array:
    return session_column(*(times.fill_null(0).to_numpy(zero_copy_only=False) for times in state))


def session_column(starts: Int64Array, ends: Int64Array) -> pa.Array:
    """The column `session_window` for sessions with these bounds."""
    parts = [pa.array(us).view(_TIME) for us in (starts, ends)]
    return pa.StructArray.from_arrays(parts, fields=list(WINDOW_TYPE))
