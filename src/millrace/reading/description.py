"""Describe an operator's tables from its spec alone, without the program that wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace import types
from millrace.ids import OperatorName
from millrace.operators.operator import MAIN, Moment, ResultColumn, TableLayout
from millrace.operators.process.kinds import KINDS, Place, StateKind
from millrace.operators.process.layout import EXPIRES, TIMER_TABLES
from millrace.operators.process.spec import StateSpecs
from millrace.operators.process.sweep import sweep_of
from millrace.operators.registry import check_spec, operator_kind
from millrace.state.eviction import Eviction

if TYPE_CHECKING:
    from millrace.state.writing import Sweep


@dataclass(frozen=True)
class KeyColumn:
    """A key column: its name, and its type in Spark's JSON."""

    name: str
    type: Any

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, types.arrow_of(self.type, f"key column {self.name!r}"))

    def __str__(self) -> str:
        return f"{self.name} {types.simple_string(self.type)}"


@dataclass(frozen=True)
class Collection:
    """A list, map or set of a key; each entry is a row of a table of its own."""

    name: str
    kind: StateKind
    type: pa.DataType
    """Of the whole collection as one value."""
    columns: tuple[str, ...]
    """Of a row: position and value, key and value, or member."""


class Description:
    """The tables and columns of one operator."""

    def __init__(self, name: OperatorName, spec: dict[str, Any]) -> None:
        kind = operator_kind(name, spec)
        check_spec(spec)
        self.name = name
        self.spec = spec
        self.kind: str = spec["kind"]
        self.main_rows = kind.main_rows
        self.waiting = kind.waiting
        self.owned = kind.owned
        self.keys = tuple(KeyColumn(k["name"], k["type"]) for k in spec["keys"])
        self.key_names = [key.name for key in self.keys]
        self.states: StateSpecs = spec.get("states", ())
        self._layout = kind.describe([key.field for key in self.keys], spec)
        self.tables: dict[str, TableLayout] = self._layout.tables

    @property
    def main(self) -> pa.Schema:
        return self.tables[MAIN].schema

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.main.field(name) for name in self.key_names])

    def shown(self, moment: Moment) -> list[ResultColumn]:
        """Keys and values, one row per key; a value whose time is over is not there."""
        return self._layout.results(moment)

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        """A function that marks rows that have expired at a moment, though they may be stored."""
        if self.states:
            return sweep_of(table, self.states, moment)
        eviction = self.eviction(table, moment)
        if eviction is None:
            return None
        return lambda rows: eviction.over(rows.column(eviction.column))

    def eviction(self, table: str, moment: Moment) -> Eviction | None:
        """The rows of a table that the watermark has passed."""
        return self._layout.evicted(table, moment)

    @property
    def expires(self) -> bool:
        """Whether something in it has a time to live."""
        return any(spec.get("ttl") for spec in self.states)

    @property
    def collections(self) -> list[Collection]:
        found = []
        for spec in self.states:
            kind, name = KINDS[spec["kind"]], spec["name"]
            if not kind.is_collection:
                continue
            columns = [f for f in self.tables[name].schema if f.name != EXPIRES]
            if kind.is_mapping:
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
        return [s["name"] for s in self.states if KINDS[s["kind"]].place is Place.SHARED]
