"""Which tables a processor's declarations need, and what their columns are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.errors import DuplicateNameError
from millrace.log.segment import SYSTEM_FIELDS
from millrace.operators.aggregate import Key
from millrace.operators.operator import MAIN, TableLayout
from millrace.processors.declarations import EVENT_TIME, PROCESSING_TIME
from millrace.processors.tables import EXPIRES, MIXED

VALUE_KINDS = ("value", "reducing", "aggregating", "pickled")
SHARED_KINDS = ("broadcast", "task")
TIMER_TABLES = {EVENT_TIME: "timers.event", PROCESSING_TIME: "timers.processing"}
TIMER_KINDS = {"event-time timer": EVENT_TIME, "processing-time timer": PROCESSING_TIME}


StateSpecs: TypeAlias = Sequence[Mapping[str, Any]]
"""What a location keeps of a processor's states, in the order in which they are declared."""


def layout(keys: Sequence[Key], states: StateSpecs) -> dict[str, TableLayout]:
    """The tables of a processor, by name; the main one is called ""."""
    main = [pa.field(k.name, types.arrow_type(k.type, f"key column {k.name!r}")) for k in keys]
    tables: dict[str, TableLayout] = {}
    for spec in states:
        name, kind = spec["name"], spec["kind"]
        if kind in TIMER_KINDS:
            table = TIMER_TABLES[TIMER_KINDS[kind]]
            if table not in tables:
                main.append(pa.field(f"{table}.size", pa.int64()))
                tables[table] = TableLayout(_TIMERS, owned=True)
            continue
        columns = [types.arrow_type(_type(t), f"{kind} state {name!r}") for t in spec["types"]]
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


def _type(data: Any) -> T.DataType:
    return types.from_json(data)
