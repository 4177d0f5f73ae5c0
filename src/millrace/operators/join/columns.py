"""Columns of the operators over two streams: of the input, of state and of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array, UInt64Array
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.state.replica import Replica


class Columns:
    """Columns of an input, each brought to its declared type when it is first asked for."""

    def __init__(self, values: Sequence[Any], kinds: Sequence[pa.DataType]) -> None:
        self._values = values
        self._kinds = kinds
        self._made: list[pa.Array | None] = [None] * len(values)

    def take(self, positions: Int64Array) -> list[pa.Array]:
        """All columns of some rows."""
        return taken([self._column(i) for i in range(len(self._values))], positions)

    def _column(self, number: int) -> pa.Array:
        made = self._made[number]
        if made is None:
            made = types.conform(self._values[number], self._kinds[number])
            self._made[number] = made
        return made


def taken(arrays: Sequence[pa.Array], positions: Int64Array) -> list[pa.Array]:
    """Some rows of columns. The positions must be right: they are not checked again."""
    at = pa.array(positions)
    return [pc.take(array, at, boundscheck=False) for array in arrays]


def nulls(kinds: Sequence[pa.DataType], rows: int) -> list[pa.Array]:
    """Columns of nothing but NULLs."""
    return [pa.nulls(rows, kind) for kind in kinds]


def united(pieces: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """The columns of several pieces, one piece after the other."""
    if len(pieces) == 1:
        return list(pieces[0])
    return [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]


def output_batch(pieces: Sequence[Sequence[pa.Array]], schema: T.StructType) -> pa.RecordBatch:
    """Pieces of an output as one batch."""
    arrow = types.arrow_schema(schema)
    arrays = united(pieces) if pieces else [pa.array([], field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def changed_rows(
    replica: Replica, hi: UInt64Array, lo: UInt64Array, arrays: Sequence[pa.Array]
) -> pa.RecordBatch:
    """Changed rows of a table, in order of their fingerprints."""
    system = [pa.array(hi), pa.array(lo), pa.array(np.zeros(len(hi), np.bool_))]
    return pa.RecordBatch.from_arrays([*system, *arrays], schema=replica.schema)


def arrow_types(columns: Sequence[Column], what: str) -> list[pa.DataType]:
    return [types.arrow_type(c.type, f"{what} {c.name!r}") for c in columns]


def arrow_fields(columns: Sequence[Column], kinds: Sequence[pa.DataType]) -> list[pa.Field]:
    return [pa.field(c.name, kind) for c, kind in zip(columns, kinds, strict=True)]


def struct_of(columns: Sequence[Column]) -> T.StructType:
    return T.StructType([T.StructField(c.name, c.type) for c in columns])


def no_rows(
    keys: Sequence[pa.DataType], left: Sequence[pa.DataType], right: Sequence[pa.DataType]
) -> Input:
    """An input of two streams without rows."""
    nothing = np.empty(0, np.uint64)
    empty = [tuple(pa.array([], kind) for kind in kinds) for kinds in (keys, left, right)]
    return Input(
        nothing,
        nothing,
        empty[0],
        part=np.empty(0, np.int32),
        columns=empty[1],
        event_us=pa.array([], pa.int64()),
        is_right=pa.array([], pa.bool_()),
        right=empty[2],
    )
