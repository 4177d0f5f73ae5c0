"""Rows on their way from Spark to a shard: an Arrow table with columns of fixed names.

This is the only module that knows the names. Spark's side names the columns of its exchange with
them; a shard turns the table that arrives into an operator's `Input` with `decode`. The order of
the columns does not matter, and an operator's exchange sends only what the operator needs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import UInt64Array
from millrace.log.segment import HI, LO
from millrace.operators.input import Input

PART = "_part"
"""The input partition of a row."""

EVENT = "_event"
"""The event time of a row, in microseconds."""

PANE = "_pane"
"""The start of a row's pane, in microseconds."""

COUNT = "_count"
"""How many rows of the stream a row stands for."""

LATE = "_late"
"""A late row as a struct of the stream's columns; NULL in rows that are in time."""

FIRST, LAST = "_first", "_last"
"""The first and last event time of what a row stands for, in microseconds."""

IS_RIGHT = "_right"
"""Whether a row comes from the right stream of a join."""

IS_INITIAL = "_initial"
"""Whether a row is part of the initial state. Only the first epoch's rows have this column."""


def key(number: int) -> str:
    """A column of the key."""
    return f"_k{number}"


def column(number: int) -> str:
    """A column of the stream; of a join's left one."""
    return f"_c{number}"


def right(number: int) -> str:
    """A column of a join's right stream."""
    return f"_r{number}"


def shared(left: int, right_: int) -> str:
    """A column of each stream of a join, in one: a row has that of its own stream."""
    return f"{column(left)}{right(right_)}"


_SHARED = re.compile(f"({column(0)[:-1]}[0-9]+)({right(0)[:-1]}[0-9]+)")


def initial(number: int) -> str:
    """A column of the initial state; NULL in other rows."""
    return f"_i{number}"


def broadcast(number: int) -> str:
    """The rows of a broadcast state: a struct of key and value; NULL in other rows."""
    return f"_b{number}"


def partial(aggregate: int, number: int) -> str:
    """A partial result of one aggregate."""
    return f"_p{aggregate}_{number}"


def decode(table: pa.Table) -> Input:
    """The rows as an operator takes them."""
    names = frozenset(table.column_names)
    columns = {name: table.column(name) for name in names}
    for name in names:
        if both := _SHARED.fullmatch(name):
            columns |= dict.fromkeys(both.groups(), columns[name])

    def numbered(name: Callable[[int], str]) -> tuple[pa.ChunkedArray, ...]:
        found = itertools.takewhile(columns.__contains__, map(name, itertools.count()))
        return tuple(map(columns.__getitem__, found))

    def of_aggregate(aggregate: int) -> tuple[pa.ChunkedArray, ...]:
        return numbered(lambda number: partial(aggregate, number))

    return Input(
        _words(table.column(HI)),
        _words(table.column(LO)),
        numbered(key),
        table.column(PART).to_numpy() if PART in names else None,
        tuple(itertools.takewhile(bool, map(of_aggregate, itertools.count()))),
        numbered(column),
        table.column(EVENT) if EVENT in names else None,
        numbered(initial),
        table.column(IS_INITIAL) if IS_INITIAL in names else None,
        numbered(broadcast),
        table.column(PANE) if PANE in names else None,
        table.column(COUNT) if COUNT in names else None,
        table.column(LATE) if LATE in names else None,
        first_us=table.column(FIRST) if FIRST in names else None,
        last_us=table.column(LAST) if LAST in names else None,
        is_right=table.column(IS_RIGHT) if IS_RIGHT in names else None,
        right=numbered(right),
    )


def encode(rows: Input) -> pa.Table:
    """The table that Spark would send for these rows."""
    columns: dict[str, Any] = {HI: rows.hi.view(np.int64), LO: rows.lo.view(np.int64)}
    if rows.part is not None:
        columns[PART] = rows.part
    for name, arrays in (
        (key, rows.keys),
        (column, rows.columns),
        (initial, rows.initial),
        (broadcast, rows.broadcast),
        (right, rows.right),
    ):
        columns |= {name(i): array for i, array in enumerate(arrays)}
    for i, partials in enumerate(rows.partials):
        columns |= {partial(i, j): array for j, array in enumerate(partials)}
    if rows.event_us is not None:
        columns[EVENT] = rows.event_us
    if rows.is_initial is not None:
        columns[IS_INITIAL] = rows.is_initial
    given = {PANE: rows.pane, COUNT: rows.count, LATE: rows.late, IS_RIGHT: rows.is_right}
    given |= {FIRST: rows.first_us, LAST: rows.last_us}
    columns |= {name: values for name, values in given.items() if values is not None}
    return pa.table(columns)


def _words(words: pa.ChunkedArray) -> UInt64Array:
    return np.asarray(words.to_numpy()).view(np.uint64)
