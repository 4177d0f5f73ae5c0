"""What a window operator keeps, and what a reader shows of it. Pure Arrow.

There is one table, with a row per key and pane: the key's columns, the start of the pane, and the
columns of the aggregates. A reader shows windows that are not over. Where windows do not overlap, a
pane is a window, and rows are shown one by one; else `reading` puts the panes of each window
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.layout import kept_of
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.operators.window.emission import EARLY
from millrace.operators.window.panes import Windows, in_words
from millrace.state.eviction import Eviction

KIND = "window"

WINDOW = "window"
"""The column with a window's start and end, as Spark calls it."""

WINDOW_LENGTH = "window_length"
"""Of windows of several lengths, the column that tells a window's, in words such as `1 hour`."""

PANE = "window.pane"
"""The start of a row's pane, in microseconds."""

_TIME = pa.timestamp("us", "UTC")
WINDOW_TYPE = pa.struct([pa.field("start", _TIME), pa.field("end", _TIME)])

EARLY_DUE = "window.early"
"""When the last change of a row is due as an early result, in microseconds of processing time."""


def state_fields(emit: Mapping[str, Any]) -> tuple[list[pa.Field], list[pa.Field]]:
    """The operator's own columns: those before the aggregates' and those after."""
    early = [pa.field(EARLY_DUE, pa.int64())] if emit["mode"] == EARLY else []
    return [pa.field(PANE, pa.int64())], early


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The table of a window operator, and its results."""
    windows = Windows.from_json(spec["window"])
    before, after = state_fields(spec["emit"])
    fields = [*keys, *before]
    results = [ResultColumn(key.name, key.type, (key.name,)) for key in keys]
    results.append(
        ResultColumn(
            WINDOW,
            WINDOW_TYPE,
            (PANE,),
            lambda state: window_column(_starts(state[0]) + windows.size_us, windows),
        )
    )
    for name, kept in kept_of(spec):
        fields += kept.fields
        needs = tuple(field.name for field in kept.fields)
        results.append(ResultColumn(name, kept.type, needs, kept.result))
    tables = {MAIN: TableLayout(pa.schema([*fields, *after]), evicts=True)}
    return StateLayout(
        tables, lambda moment: results, lambda table, moment: eviction(windows, moment)
    )


def eviction(windows: Windows, moment: Moment) -> Eviction:
    """The panes that are over at a moment."""
    return Eviction(PANE, windows.over_before(moment.watermark_us or 0))


def window_column(ends: Int64Array, windows: Windows) -> pa.Array:
    """The column `window` for windows that end at these times."""
    return struct_column(ends - windows.size_us, ends)


def struct_column(starts: Int64Array, ends: Int64Array) -> pa.Array:
    """The column `window` for windows with these starts and ends."""
    parts = [pa.array(us).view(_TIME) for us in (starts, ends)]
    return pa.StructArray.from_arrays(parts, fields=list(WINDOW_TYPE))


def length_column(windows: Windows, rows: int) -> pa.Array:
    """The column `window_length` for some windows."""
    return pa.repeat(pa.scalar(in_words(windows.size_us), pa.string()), rows)


def _starts(panes: pa.Array) -> Int64Array:
    starts: Int64Array = panes.fill_null(0).to_numpy(zero_copy_only=False)
    return starts
