"""What an as-of join keeps, and what a reader shows of it. Pure Arrow.

The main table has a row per key: the newest right row that the watermark has passed. Beside it are
the left rows and the right rows that the watermark has not passed, as they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.operators.join.layout import EVENT, LEFT, RIGHT, fields_of, row_table
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.state.eviction import Eviction

KIND = "as_of"

LEFT_ROWS, RIGHT_ROWS = "left", "right"


def tables(
    keys: Sequence[pa.Field],
    left: Sequence[pa.Field],
    right: Sequence[pa.Field],
    tolerance_us: int | None,
) -> dict[str, TableLayout]:
    """The tables of an as-of join, by name."""
    newest = pa.schema([*keys, *right, pa.field(EVENT, pa.int64())])
    return {
        MAIN: TableLayout(newest, evicts=tolerance_us is not None),
        LEFT_ROWS: row_table(keys, left),
        RIGHT_ROWS: row_table(keys, right),
    }


def eviction(table: str, tolerance_us: int | None, moment: Moment) -> Eviction | None:
    """The rows of a table that are over at a moment.

    What comes is later than the watermark. Rows beside the main table are done with when the
    watermark reaches them.
    """
    after = (moment.watermark_us or 0) + 1
    if table != MAIN:
        return Eviction(EVENT, after)
    return None if tolerance_us is None else Eviction(EVENT, after - tolerance_us)


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The tables of an as-of join, and the newest right rows as results."""
    left, right = (fields_of(spec[side], side) for side in (LEFT, RIGHT))
    shown = [ResultColumn(f.name, f.type, (f.name,)) for f in (*keys, *right)]
    return StateLayout(
        tables(keys, left, right, spec["tolerance"]),
        lambda moment: shown,
        lambda table, moment: eviction(table, spec["tolerance"], moment),
    )
