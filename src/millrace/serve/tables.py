"""One operator's replicas, and how keys are looked up in them.

A look-up goes from the key columns to a fingerprint, to a key group, to a row; the row's own key
columns are then compared with those asked for, so that not even two keys with the same fingerprint
could be mistaken for each other. What has expired by the time of the epoch is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import KeyColumnsError, UnknownStateError
from millrace.ids import OperatorName
from millrace.keygroups.hashing import check_computable, fingerprints
from millrace.log.store import Store
from millrace.log.trail import Trail
from millrace.operators import AggregateOperator, aggregate
from millrace.operators.operator import MAIN, table_name
from millrace.processors.convert import encode_key, to_python
from millrace.processors.description import ProcessDescription
from millrace.processors.layout import TIMER_TABLES
from millrace.processors.tables import EXPIRES
from millrace.state.replica import Replica

BoolArray = npt.NDArray[np.bool_]
UInt64Array = npt.NDArray[np.uint64]


class OperatorTables:
    """The tables of one operator that look-ups read, in one generation of replicas."""

    def __init__(
        self, store: Store, name: OperatorName, spec: dict[str, Any], key_groups: int
    ) -> None:
        self.name = name
        self.spec = spec
        self._described: AggregateOperator | ProcessDescription = (
            AggregateOperator.from_spec(name, spec)
            if spec["kind"] == aggregate.KIND
            else ProcessDescription(name, spec)
        )
        self.keys = self._described.keys
        layouts = self._described.tables
        self._replicas = {
            table: Replica(store, layout.schema, key_groups, owned=layout.owned)
            for table, layout in layouts.items()
            if table == MAIN or (layout.owned and table not in TIMER_TABLES.values())
        }
        self._every = np.arange(key_groups)
        main = layouts[MAIN].schema
        self.key_fields = [main.field(key.name) for key in self.keys]
        self._columns = list(main.names)
        self._ttl = {s["name"]: s["ttl"] for s in spec.get("states", ()) if s.get("ttl")}
        shown = self._described.show(pa.RecordBatch.from_pylist([], schema=main)).schema
        self._value_fields: list[pa.Field] = list(shown)[len(self.keys) :]
        self.collections = tuple(table for table in self._replicas if table != MAIN)
        self._now: dict[str, int | None] = {}
        self._schemas: dict[tuple[str, ...] | None, pa.Schema] = {}
        self._key_names = frozenset(f.name for f in self.key_fields)

    def follow(self, trail: Trail) -> None:
        """Bring all key groups to the trail's version, ready to be read."""
        for table, replica in self._replicas.items():
            replica.follow(trail.operator(table_name(self.name, table)), trail.epoch, self._every)
            replica.touch(self._every)
        watermark = trail.watermark_ms
        self._now = {
            "processing": trail.time_ms * 1000,
            "event": None if watermark is None else watermark * 1000,
        }

    @property
    def heap_bytes(self) -> int:
        return sum(replica.heap_bytes for replica in self._replicas.values())

    def schema(self, states: Sequence[str] | None) -> pa.Schema:
        """The columns of an answer: the key's, then those of the states asked for."""
        asked = None if states is None else tuple(states)
        known = self._schemas.get(asked)
        if known is None:
            known = self._schemas[asked] = self._made_schema(asked)
        return known

    def _made_schema(self, states: tuple[str, ...] | None) -> pa.Schema:
        values = [f for f in self._value_fields if states is None or f.name in states]
        known = [f.name for f in self._value_fields] + list(self.collections)
        for state in states or ():
            if state not in known:
                raise UnknownStateError(
                    f"operator {self.name!r} has no state {state!r}; it has "
                    f"{', '.join(map(repr, known))}."
                )
        nested = [pa.field(s, self._entry_type(s)) for s in self.collections if s in (states or ())]
        return pa.schema([*self.key_fields, *values, *nested])

    def _entry_type(self, table: str) -> pa.DataType:
        columns = {f.name: f.type for f in self._described.tables[table].schema}
        if "key" in columns:
            return pa.map_(columns["key"], columns["value"])
        return pa.list_(columns["value" if "value" in columns else "member"])

    def arrays(self, columns: dict[str, pa.Array]) -> list[pa.Array]:
        """Key columns in the operator's order and types; raises if they do not fit."""
        if columns.keys() != self._key_names:
            missing = [f.name for f in self.key_fields if f.name not in columns]
            wrong = missing or sorted(set(columns) - self._key_names)
            raise KeyColumnsError(
                f"a key of operator {self.name!r} is ({self.described_key}); "
                f"{', '.join(map(repr, wrong))} is {'missing' if missing else 'not part of it'}."
            )
        for key in self.keys:
            check_computable(key.name, key.type)
        return [_exactly(columns[f.name], f) for f in self.key_fields]

    @property
    def described_key(self) -> str:
        return ", ".join(f"{key.name} {key.type.simpleString()}" for key in self.keys)

    def find(
        self, keys: Sequence[pa.Array], states: Sequence[str] | None
    ) -> tuple[pa.RecordBatch, BoolArray]:
        """A row for each key in the order asked, NULL but for the key where there is none."""
        schema = self.schema(states)
        main = self._replicas[MAIN]
        hi, lo = fingerprints(keys, [key.type for key in self.keys])
        addresses = main.find(hi, lo)
        found = addresses != 0
        whole = bool(found.all())
        if not whole:
            addresses = addresses[found]
        rows = pa.RecordBatch.from_arrays(
            main.gather(addresses, self._columns), names=self._columns
        )
        asked = keys if whole else [key.filter(pa.array(found)) for key in keys]
        stored = [rows.column(f.name) for f in self.key_fields]
        if not all(a.equals(s) for a, s in zip(asked, stored, strict=True)):
            same = _same_keys(asked, stored)
            if not same.all():
                rows = rows.filter(pa.array(same))
                found[np.flatnonzero(found)[~same]] = False
                whole = False
        shown = self._described.show(self._unexpired(rows))
        columns = [shown.column(f.name) for f in self._value_fields if f.name in schema.names]
        if not whole:
            where = np.cumsum(found) - 1
            at = pa.array(where, mask=~found)
            columns = [column.take(at) for column in columns]
        for state in self.collections:
            if state in schema.names:
                columns.append(self._entries(state, hi, lo, found, schema.field(state).type))
        return pa.RecordBatch.from_arrays([*keys, *columns], schema=schema), found

    def _unexpired(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for state, (_, time, *_) in self._ttl.items():
            now = self._now.get(time)
            if now is None or state not in rows.schema.names:
                continue
            over = pc.less_equal(rows.column(f"{state}.{EXPIRES}"), now).fill_null(False)
            kept = pc.if_else(over, pa.scalar(None, rows.schema.field(state).type), rows[state])
            rows = rows.set_column(rows.schema.names.index(state), state, kept)
        return rows

    def _entries(
        self, state: str, hi: UInt64Array, lo: UInt64Array, found: BoolArray, wanted: pa.DataType
    ) -> pa.Array:
        """A collection of each key, whole."""
        replica = self._replicas[state]
        addresses, offsets = replica.entries(hi, lo)
        owners = np.repeat(np.arange(len(hi)), np.diff(offsets))
        names = list(self._described.tables[state].schema.names)
        rows = pa.RecordBatch.from_arrays(replica.gather(addresses, names), names=names)
        alive = found[owners]
        if state in self._ttl:
            now = self._now.get(self._ttl[state][1])
            if now is not None:
                over = pc.less_equal(rows.column(EXPIRES), now).fill_null(False)
                alive &= ~over.to_numpy(zero_copy_only=False)
        if "position" in names:
            order = np.lexsort((rows.column("position").to_numpy(), owners))
            owners, alive = owners[order], alive[order]
            rows = rows.take(pa.array(order))
        if not alive.all():
            rows, owners = rows.filter(pa.array(alive)), owners[alive]
        counts = np.bincount(owners, minlength=len(hi))
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        mask = None if found.all() else pa.array(~found)
        if pa.types.is_map(wanted):
            columns = rows.column("key"), rows.column("value")
            return pa.MapArray.from_arrays(ends, *columns, type=wanted, mask=mask)
        values = rows.column("value" if "value" in names else "member")
        return pa.ListArray.from_arrays(ends, values, type=wanted, mask=mask)


def _exactly(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """A key column in the type it is kept in; takes narrower numbers and other time zones."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == field.type:
        return column
    try:
        if _kind(column.type) != _kind(field.type) and not pa.types.is_null(column.type):
            raise pa.ArrowInvalid("it is another kind of value")
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise KeyColumnsError(
            f"key column {field.name!r} is {field.type}, and the keys have it as {column.type}: "
            f"{error}."
        ) from error


def _kind(data_type: pa.DataType) -> str:
    if pa.types.is_integer(data_type):
        return "integer"
    if pa.types.is_floating(data_type):
        return "floating"
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return "string"
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return "binary"
    return str(data_type.id)


def _same_keys(asked: Sequence[pa.Array], stored: Sequence[pa.Array]) -> BoolArray:
    """Which rows have the key that was asked for, as Spark groups keys: -0.0 is 0.0, NaN is NaN."""
    same = np.ones(len(asked[0]), np.bool_)
    for mine, theirs in zip(asked, stored, strict=True):
        pairs = zip(to_python(mine), to_python(theirs), strict=True)
        same &= np.fromiter((encode_key(a) == encode_key(b) for a, b in pairs), np.bool_, len(mine))
    return same
