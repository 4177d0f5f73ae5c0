"""What a join keeps, and what a reader shows of it. Pure Arrow.

There is a table of left rows and one of right rows, each with the rows that may still get a
partner: the key's columns, the stream's other columns, and the operator's own. Rows are added and
evicted, and never changed. Whether a row that came without a partner has got one since is said by a
row with the same fingerprint in a table beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace import types
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.state.eviction import Eviction

KIND = "join"

LEFT, RIGHT, EITHER = "left", "right", "either"

INNER, FULL, SEMI, ANTI = "inner", "full", "semi", "anti"
HOWS = (INNER, LEFT, RIGHT, FULL, SEMI, ANTI)

RIGHT_ROWS = "right"
"""The table of right rows; that of left rows is the main one."""
LEFT_MATCHED = "left.matched"
RIGHT_MATCHED = "right.matched"

EVENT = "join.event"
"""A row's event time in microseconds."""
KEY_LO = "join.lo"
"""The second half of the fingerprint of a row's key."""
KEY_HI = "join.hi"
"""The low half of the first half."""
MATCHED = "join.matched"
"""Whether a row got a partner in the epoch in which it came."""

OWN_COLUMNS = (EVENT, KEY_LO, KEY_HI, MATCHED)
"""Columns of rows that are not the streams'."""

_MATCHED_SCHEMA = pa.schema([pa.field(EVENT, pa.int64())])


def tracks_left(how: str) -> bool:
    """Whether it matters which left rows have a partner."""
    return how in (LEFT, FULL, SEMI, ANTI)


def tracks_right(how: str) -> bool:
    return how in (RIGHT, FULL)


def keeps_matched(how: str) -> bool:
    """Whether rows that have a partner are kept, for further ones."""
    return how not in (SEMI, ANTI)


def row_table(
    keys: Sequence[pa.Field], columns: Sequence[pa.Field], *, flagged: bool = False
) -> TableLayout:
    """A table of rows as they came."""
    own = [
        pa.field(EVENT, pa.int64()),
        pa.field(KEY_LO, pa.uint64()),
        pa.field(KEY_HI, pa.uint32()),
    ]
    flags = [pa.field(MATCHED, pa.bool_())] if flagged else []
    return TableLayout(pa.schema([*keys, *columns, *own, *flags]), evicts=True)


def tables(
    how: str, keys: Sequence[pa.Field], left: Sequence[pa.Field], right: Sequence[pa.Field]
) -> dict[str, TableLayout]:
    """The tables of a join, by name."""
    flagged = keeps_matched(how)
    found = {
        MAIN: row_table(keys, left, flagged=flagged and tracks_left(how)),
        RIGHT_ROWS: row_table(keys, right, flagged=flagged and tracks_right(how)),
    }
    if tracks_left(how):
        found[LEFT_MATCHED] = TableLayout(_MATCHED_SCHEMA, evicts=True)
    if tracks_right(how):
        found[RIGHT_MATCHED] = TableLayout(_MATCHED_SCHEMA, evicts=True)
    return found


def limit(table: str, within: Mapping[str, int], watermark_us: int) -> int:
    """Rows of a table with an event time before this one get no partner any more.

    What comes has a later event time than the watermark.
    """
    if table in (MAIN, LEFT_MATCHED):
        return watermark_us - within["upper"] + 1
    return watermark_us + within["lower"] + 1


def eviction(table: str, within: Mapping[str, int], moment: Moment) -> Eviction:
    """The rows of a table that are over at a moment."""
    return Eviction(EVENT, limit(table, within, moment.watermark_us or 0))


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The tables of a join, and the left rows as results."""
    left, right = (fields_of(spec[side], side) for side in (LEFT, RIGHT))
    shown = [ResultColumn(f.name, f.type, (f.name,)) for f in (*keys, *left)]
    return StateLayout(
        tables(spec["how"], keys, left, right),
        lambda moment: shown,
        lambda table, moment: eviction(table, spec["within"], moment),
    )


def fields_of(columns: Sequence[Mapping[str, Any]], side: str) -> list[pa.Field]:
    """The columns of a stream, as a spec has them."""
    return [
        pa.field(c["name"], types.arrow_of(c["type"], f"column {c['name']!r} of the {side} stream"))
        for c in columns
    ]
