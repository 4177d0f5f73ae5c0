"""One operator in one generation of replicas, and how keys are looked up in it.

A look-up goes from the key columns to a fingerprint, to a key group, to a row; the row's own key
columns are then compared with those asked for, so that not even two keys with the same fingerprint
could be mistaken for each other. What has expired by the time of the epoch is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray
from millrace.errors import KeyColumnsError, UnknownStateError
from millrace.keygroups.keys import check_computable
from millrace.operators.process.convert import to_python
from millrace.reading.keys import describe
from millrace.reading.snapshot import Snapshot
from millrace.reading.tables import main_table

MOST_SCHEMAS = 64
"""Choices of states whose columns are remembered."""


class OperatorTables:
    """What look-ups read of one operator, at a snapshot's epoch."""

    def __init__(self, snapshot: Snapshot, operator: str) -> None:
        self._description = snapshot.description(operator)
        self._main = main_table(snapshot, self._description)
        self.collections = tuple(c.name for c in self._description.collections)
        self._main.warm()
        for table in self.collections:
            snapshot.replica(self._description, table).touch(snapshot.every)
        self.key_fields = list(self._main.look_up_schema)
        self._key_names = [field.name for field in self.key_fields]
        self._values = [
            name
            for name in self._main.schema.names
            if name not in self._key_names and name not in self.collections
        ]
        self._schemas: dict[tuple[str, ...], pa.Schema] = {}

    @property
    def name(self) -> str:
        return str(self._description.name)

    @property
    def optional(self) -> frozenset[str]:
        """Key columns that may be left out."""
        return self._main.optional

    @property
    def values(self) -> list[str]:
        """The states that have one value per key."""
        return list(self._values)

    def schema(self, states: Sequence[str] | None) -> pa.Schema:
        """The columns of an answer: the key's, then those of the states asked for."""
        wanted = tuple(self._values) if states is None else self._chosen(states)
        known = self._schemas.get(wanted)
        if known is None:
            shown = (self._main.schema.field(name) for name in wanted)
            known = pa.schema([*self.key_fields, *shown])
            if len(self._schemas) < MOST_SCHEMAS:
                # A client can ask for any choice of states: not all of them are remembered.
                self._schemas[wanted] = known
        return known

    def _chosen(self, states: Sequence[str]) -> tuple[str, ...]:
        """States in the order in which they are shown, each once."""
        known = [*self._values, *self.collections]
        for state in states:
            if state not in known:
                raise UnknownStateError(
                    f"operator {self.name!r} has no state {state!r}; it has "
                    f"{', '.join(map(repr, known))}."
                )
        asked = set(states)
        return tuple(name for name in known if name in asked)

    def arrays(self, columns: dict[str, pa.Array]) -> list[pa.Array]:
        """Key columns in the operator's order and types; raises if they do not fit."""
        length = len(next(iter(columns.values()))) if columns else 0
        absent = {
            field.name: pa.nulls(length, field.type)
            for field in self.key_fields
            if field.name in self.optional and field.name not in columns
        }
        columns = columns | absent
        if columns.keys() != set(self._key_names):
            missing = [name for name in self._key_names if name not in columns]
            wrong = missing or sorted(set(columns) - set(self._key_names))
            raise KeyColumnsError(
                f"a key of operator {self.name!r} is {describe(self._description)}; "
                f"{', '.join(map(repr, wrong))} is {'missing' if missing else 'not part of it'}."
            )
        for key in self._description.keys:
            check_computable(key.name, key.type)
        return [_exactly(columns[field.name], field) for field in self.key_fields]

    def find(
        self, keys: Sequence[pa.Array], states: Sequence[str] | None
    ) -> tuple[pa.RecordBatch, BoolArray]:
        """A row for each key in the order asked, NULL but for the key where there is none."""
        schema = self.schema(states)
        arrays, found = self._main.look_up(list(schema.names), keys)
        stored, columns = arrays[: len(keys)], arrays[len(keys) :]
        if not all(a.equals(s) for a, s in zip(keys, stored, strict=True)):
            other = found & ~_same_keys(keys, stored)
            if other.any():
                found &= ~other
                gone = pa.array(other)
                columns = [
                    column.filter(pa.array(~other)).take(_spread(gone)) for column in columns
                ]
        return pa.RecordBatch.from_arrays([*keys, *columns], schema=schema), found


def _spread(gone: pa.Array) -> pa.Array:
    """Where each row is once some are left out; NULL for those."""
    mask = gone.to_numpy(zero_copy_only=False)
    return pa.array(np.cumsum(~mask) - 1, mask=mask)


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
        same &= np.fromiter((_plain(a) == _plain(b) for a, b in pairs), np.bool_, len(mine))
    return same


def _plain(value: Any) -> Any:
    """A value that equals another exactly if Spark groups the two together."""
    if isinstance(value, float):
        return "NaN" if value != value else value
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
