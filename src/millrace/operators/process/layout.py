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
from millrace.operators.process.spec import StateSpecs

EVENT_TIME, PROCESSING_TIME = "event", "processing"
EXPIRES = "expires"
MIXED = "mixed"
"""Whether a list's elements may expire in another order than they came."""

VALUE_KINDS = ("value", "reducing", "aggregating", "pickled")
SHARED_KINDS = ("broadcast", "task")
TIMER_TABLES = {EVENT_TIME: "timers.event", PROCESSING_TIME: "timers.processing"}
TIMER_KINDS = {"event-time timer": EVENT_TIME, "processing-time timer": PROCESSING_TIME}


def layout(keys: Sequence[pa.Field], states: StateSpecs) -> dict[str, TableLayout]:
    """The tables of a processor, by name; the main one is called ""."""
    main = list(keys)
    tables: dict[str, TableLayout] = {}
    for spec in states:
        name, kind = spec["name"], spec["kind"]
        if kind in TIMER_KINDS:
            table = TIMER_TABLES[TIMER_KINDS[kind]]
            if table not in tables:
                main.append(pa.field(f"{table}.size", pa.int64()))
                tables[table] = TableLayout(_TIMERS, owned=True)
            continue
        columns = [types.arrow_of(t, f"{kind} state {name!r}") for t in spec["types"]]
        if kind in SHARED_KINDS:
            tables[name] = _shared(kind, columns)
            continue
        expires = [pa.field(EXPIRES, pa.int64())] if spec["ttl"] is not None else []
        if kind in VALUE_KINDS:
            main.append(pa.field(name, columns[0]))
        elif kind == "list":
            main += [pa.field(f"{name}.start", pa.int64()), pa.field(f"{name}.end", pa.int64())]
            main += [pa.field(f"{name}.{MIXED}", pa.bool_())] if expires else []
            fields = [pa.field("position", pa.int64()), pa.field("value", columns[0]), *expires]
            tables[name] = TableLayout(pa.schema(fields), owned=True)
        else:
            main.append(pa.field(f"{name}.size", pa.int64()))
            fields = [pa.field("key" if kind == "map" else "member", columns[0])]
            if kind == "map":
                fields.append(pa.field("value", columns[1]))
            tables[name] = TableLayout(pa.schema([*fields, *expires]), owned=True)
        if expires:
            main.append(pa.field(f"{name}.{EXPIRES}", pa.int64()))
    _check_names([field.name for field in main])
    return {MAIN: TableLayout(pa.schema(main)), **tables}


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The tables of a processor, and its Values as results."""
    tables = layout(keys, spec["states"])
    main = tables[MAIN].schema
    values = [state for state in spec["states"] if state["kind"] in VALUE_KINDS]

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


def _shared(kind: str, columns: list[pa.DataType]) -> TableLayout:
    """The table of a state that does not belong to a key."""
    if kind == "broadcast":
        fields = [pa.field("key", columns[0]), pa.field("value", columns[1])]
        return TableLayout(pa.schema(fields), everywhere=True)
    fields = [
        pa.field("shard", pa.int32()),
        pa.field("groups", pa.string()),
        pa.field("value", columns[0]),
    ]
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
