"""Rows on their way from Spark to a shard: an Arrow table with columns of fixed names.

This is the only module that knows the names. Spark's side names the columns of its exchange with
them; a shard turns the table that arrives into an operator's `Input` with `decode`. The order of
the columns does not matter, and an operator's exchange sends only what the operator needs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import UInt64Array
from millrace.log.segment import HI, LO
from millrace.operators.input import Input, Values

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


_OTHERS = (PART, EVENT, IS_INITIAL, PANE, COUNT, LATE, FIRST, LAST, IS_RIGHT)
"""Columns of which a table has one at most."""


@dataclass(frozen=True)
class _Places:
    """Where the columns of a table are, by number; None for those that it does not have."""

    hi: int
    lo: int
    keys: tuple[int, ...]
    partials: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...]
    initial: tuple[int, ...]
    broadcast: tuple[int, ...]
    right: tuple[int, ...]
    others: dict[str, int | None]


@functools.lru_cache(maxsize=64)
def _places(names: tuple[str, ...]) -> _Places:
    at = {name: number for number, name in enumerate(names)}
    for name, number in list(at.items()):
        if both := _SHARED.fullmatch(name):
            at |= dict.fromkeys(both.groups(), number)

    def numbered(name: Callable[[int], str]) -> tuple[int, ...]:
        found = itertools.takewhile(at.__contains__, map(name, itertools.count()))
        return tuple(map(at.__getitem__, found))

    def of_aggregate(aggregate: int) -> tuple[int, ...]:
        return numbered(lambda number: partial(aggregate, number))

    return _Places(
        at[HI],
        at[LO],
        numbered(key),
        tuple(itertools.takewhile(bool, map(of_aggregate, itertools.count()))),
        numbered(column),
        numbered(initial),
        numbered(broadcast),
        numbered(right),
        {name: at.get(name) for name in _OTHERS},
    )


def decode(table: pa.Table | pa.RecordBatch) -> Input:
    """The rows as an operator takes them."""
    at = _places(tuple(table.schema.names))
    columns = table.columns

    def many(places: tuple[int, ...]) -> tuple[Values, ...]:
        return tuple([columns[place] for place in places])

    given = {name: None if n is None else columns[n] for name, n in at.others.items()}
    part = given[PART]
    return Input(
        _words(columns[at.hi]),
        _words(columns[at.lo]),
        many(at.keys),
        None if part is None else part.to_numpy(),
        tuple(map(many, at.partials)),
        many(at.columns),
        given[EVENT],
        many(at.initial),
        given[IS_INITIAL],
        many(at.broadcast),
        given[PANE],
        given[COUNT],
        given[LATE],
        first_us=given[FIRST],
        last_us=given[LAST],
        is_right=given[IS_RIGHT],
        right=many(at.right),
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


def _words(words: Values) -> UInt64Array:
    return np.asarray(words.to_numpy()).view(np.uint64)
