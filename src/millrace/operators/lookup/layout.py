"""What a lookup keeps, and what a reader shows of it: the newest right row of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.operators.join.layout import INNER, LEFT, RIGHT, fields_of
from millrace.operators.operator import MAIN, ResultColumn, StateLayout, TableLayout

KIND = "lookup"

HOWS = (LEFT, INNER)

EVENT = "lookup.event"
"""The event time of a row in microseconds; NULL without one."""


def tables(keys: Sequence[pa.Field], right: Sequence[pa.Field]) -> dict[str, TableLayout]:
    """The one table of a lookup."""
    return {MAIN: TableLayout(pa.schema([*keys, *right, pa.field(EVENT, pa.int64())]))}


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    right = fields_of(spec[RIGHT], RIGHT)
    shown = [ResultColumn(f.name, f.type, (f.name,)) for f in (*keys, *right)]
    return StateLayout(tables(keys, right), lambda moment: shown)
