"""Which tables a processor's declarations need, and what their columns are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace import types
from millrace.errors import DuplicateNameError
from millrace.log.segment import SYSTEM_FIELDS
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.operators.process.kinds import (
    EVENT_TIME,
    KINDS,
    PROCESSING_TIME,
    Place,
    StateKind,
)
from millrace.operators.process.spec import StateSpecs

EXPIRES = "expires"
MIXED = "mixed"
"""Whether a list's elements may expire in another order than they came."""

TIMER_TABLES = {EVENT_TIME: "timers.event", PROCESSING_TIME: "timers.processing"}


def layout(keys: Sequence[pa.Field], states: StateSpecs) -> dict[str, TableLayout]:
    """The tables of a processor, by name; the main one is called ""."""
    main = list(keys)
    tables: dict[str, TableLayout] = {}
    for spec in states:
        name, kind = spec["name"], KINDS[spec["kind"]]
        if kind.place is Place.TIMERS:
            table = TIMER_TABLES[kind.time]
            if table not in tables:
                main.append(pa.field(f"{table}.size", pa.int64()))
                tables[table] = TableLayout(_TIMERS, owned=True)
            continue
        column_types = [types.arrow_of(t, f"{kind.name} state {name!r}") for t in spec["types"]]
        columns = [pa.field(*column) for column in zip(kind.columns, column_types, strict=True)]
        if kind.place is Place.SHARED:
            tables[name] = _shared(kind, columns)
            continue
        expires = [pa.field(EXPIRES, pa.int64())] if spec["ttl"] is not None else []
        if kind.place is Place.MAIN:
            main.append(pa.field(name, column_types[0]))
        elif kind.place is Place.POSITIONS:
            main += [pa.field(f"{name}.start", pa.int64()), pa.field(f"{name}.end", pa.int64())]
            main += [pa.field(f"{name}.{MIXED}", pa.bool_())] if expires else []
            fields = [pa.field("position", pa.int64()), *columns, *expires]
            tables[name] = TableLayout(pa.schema(fields), owned=True)
        else:
            main.append(pa.field(f"{name}.size", pa.int64()))
            tables[name] = TableLayout(pa.schema([*columns, *expires]), owned=True)
        if expires:
            main.append(pa.field(f"{name}.{EXPIRES}", pa.int64()))
    _check_names([field.name for field in main])
    return {MAIN: TableLayout(pa.schema(main)), **tables}


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The tables of a processor, and its Values as results."""
    tables = layout(keys, spec["states"])
    main = tables[MAIN].schema
    values = [state for state in spec["states"] if KINDS[state["kind"]].place is Place.MAIN]

    def column(name: str) -> ResultColumn:
        return ResultColumn(name, main.field(name).type, (name,))

    def results(moment: Moment) -> list[ResultColumn]:
        found = [column(key.name) for key in keys]
        for state in values:
            now = moment.of(state["ttl"][1]) if state.get("ttl") else None
            value = column(state["name"])
            found.append(value if now is None else _until(value, now))
        return found

    return StateLayout(tables, results)


def _until(column: ResultColumn, now: int) -> ResultColumn:
    """A value that is NULL where it has expired."""

    def alive(state: Sequence[pa.Array]) -> pa.Array:
        value, expires = state
        over = pc.fill_null(pc.less_equal(expires, now), False)
        return pc.if_else(over, pa.scalar(None, value.type), value)

    return ResultColumn(column.name, column.type, (column.name, f"{column.name}.{EXPIRES}"), alive)


def _shared(kind: StateKind, columns: list[pa.Field]) -> TableLayout:
    """The table of a state that does not belong to a key."""
    if not kind.per_shard:
        return TableLayout(pa.schema(columns), everywhere=True)
    fields = [pa.field("shard", pa.int32()), pa.field("groups", pa.string()), *columns]
    return TableLayout(pa.schema(fields), everywhere=True, per_shard=True)


def _check_names(names: list[str]) -> None:
    taken = [field.name for field in SYSTEM_FIELDS]
    for name in names:
        if name in taken:
            raise DuplicateNameError(
                f"{name!r} is the name of a state and of a key column, or of a column that "
                "Millrace adds. Give the state another name."
            )
        taken.append(name)


_TIMERS = pa.schema(
    [pa.field("timer", pa.string()), pa.field("label", pa.string()), pa.field("time", pa.int64())]
)
