"""An operator as a reader knows it: from its spec alone, without the program that wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace import types
from millrace.errors import NewerFormatError
from millrace.ids import OperatorName
from millrace.operators import aggregate, from_spec
from millrace.operators.aggregate import AggregateOperator, Key
from millrace.operators.operator import MAIN, Moment, Shown, TableLayout
from millrace.processors.layout import (
    SHARED_KINDS,
    TIMER_KINDS,
    TIMER_TABLES,
    VALUE_KINDS,
    StateSpecs,
    layout,
)
from millrace.processors.sweep import sweep_of
from millrace.processors.tables import EXPIRES
from millrace.state.writing import Sweep


@dataclass(frozen=True)
class Collection:
    """A list, map or set of a key; each entry is a row of a table of its own."""

    name: str
    kind: str
    type: pa.DataType
    """Of the whole collection as one value."""
    columns: tuple[str, ...]
    """Of a row: position and value, key and value, or member."""


class Described:
    """The tables and columns of one operator."""

    def __init__(self, name: OperatorName, spec: dict[str, Any]) -> None:
        if "states" not in spec and spec["kind"] != aggregate.KIND:
            raise NewerFormatError(
                f"operator {name!r} is a {spec['kind']!r}, which this Millrace does not know. "
                "Upgrade it."
            )
        self.name = name
        self.kind: str = spec["kind"]
        self.keys = tuple(Key(k["name"], types.from_json(k["type"])) for k in spec["keys"])
        self.key_names = [key.name for key in self.keys]
        self.states: StateSpecs = spec.get("states", ())
        if self.kind == aggregate.KIND:
            operator = from_spec(name, spec)
            assert isinstance(operator, AggregateOperator)
            self.tables: dict[str, TableLayout] = operator.tables
            self._shown = operator.shown
        else:
            self.tables = layout(self.keys, self.states)
            self._shown = [self._column(key) for key in self.key_names]

    @property
    def main(self) -> pa.Schema:
        return self.tables[MAIN].schema

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.main.field(name) for name in self.key_names])

    def shown(self, moment: Moment) -> list[Shown]:
        """Keys and values, one row per key; a value whose time is over is not there."""
        found = list(self._shown)
        for spec in self.states:
            if spec["kind"] not in VALUE_KINDS:
                continue
            column = self._column(spec["name"])
            now = moment.of(spec["ttl"][1]) if spec.get("ttl") else None
            if now is not None:
                column = _until(column, now)
            found.append(column)
        return found

    def _column(self, name: str) -> Shown:
        return Shown(name, self.main.field(name).type, (name,))

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        """Tells which rows of a table are over at a moment, though they may still be stored."""
        return sweep_of(table, self.states, moment) if self.states else None

    @property
    def expires(self) -> bool:
        """Whether something in it has a time to live."""
        return any(spec.get("ttl") for spec in self.states)

    @property
    def collections(self) -> list[Collection]:
        found = []
        for spec in self.states:
            kind, name = spec["kind"], spec["name"]
            if kind in VALUE_KINDS or kind in SHARED_KINDS or kind in TIMER_KINDS:
                continue
            columns = [f for f in self.tables[name].schema if f.name != EXPIRES]
            if kind == "map":
                whole: pa.DataType = pa.map_(columns[0].type, columns[1].type)
            else:
                whole = pa.list_(columns[-1].type)
            found.append(Collection(name, kind, whole, tuple(f.name for f in columns)))
        return found

    @property
    def timers(self) -> list[str]:
        """The tables with its timers: by event time, by processing time, or both."""
        return [table for table in TIMER_TABLES.values() if table in self.tables]

    @property
    def shared(self) -> list[str]:
        """The states that belong to no key."""
        return [spec["name"] for spec in self.states if spec["kind"] in SHARED_KINDS]


def _until(column: Shown, now: int) -> Shown:
    def alive(state: Any) -> pa.Array:
        value, expires = state
        over = pc.fill_null(pc.less_equal(expires, now), False)
        return pc.if_else(over, pa.scalar(None, value.type), value)

    return Shown(column.name, column.type, (column.name, f"{column.name}.{EXPIRES}"), alive)
