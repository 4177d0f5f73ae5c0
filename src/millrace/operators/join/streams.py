"""What the operators over two streams have in common: their columns, and how a spec has them."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types as T

from millrace.ids import OperatorName
from millrace.operators.aggregate.reducing import check_names
from millrace.operators.input import Input
from millrace.operators.join.columns import arrow_fields, arrow_types, no_rows, struct_of
from millrace.operators.join.late import late_schemas
from millrace.operators.operator import Column, TableLayout

_PARTS = ("keys", "left", "right")


class StreamColumns(Protocol):
    """The columns of two streams: those of the key, and the other ones of each stream."""

    @property
    def keys(self) -> tuple[Column, ...]: ...

    @property
    def left(self) -> tuple[Column, ...]: ...

    @property
    def right(self) -> tuple[Column, ...]: ...


class StreamsDefinition(StreamColumns, Protocol):
    """What a spec says of an operator over two streams."""

    def to_json(self) -> dict[str, Any]: ...


def columns_to_json(columns: StreamColumns) -> dict[str, Any]:
    return {part: [column.to_json() for column in getattr(columns, part)] for part in _PARTS}


def columns_from_json(
    data: dict[str, Any],
) -> tuple[tuple[Column, ...], tuple[Column, ...], tuple[Column, ...]]:
    keys, left, right = (tuple(Column.from_json(c) for c in data[part]) for part in _PARTS)
    return keys, left, right


class TwoStreams:
    """The columns of an operator over two streams, in Arrow's types."""

    definition: StreamsDefinition
    tables: dict[str, TableLayout]

    def __init__(
        self,
        name: OperatorName,
        definition: StreamsDefinition,
        *,
        only_left: bool = False,
        has_late: bool = True,
    ) -> None:
        """`only_left`: the output has no columns of the right stream. `has_late`: late rows of both
        streams are outputs of their own."""
        self.name = name
        self.definition = columns = definition
        self.keys = columns.keys
        self.key_names = [column.name for column in columns.keys]
        self.left_names = [column.name for column in columns.left]
        self.right_names = [column.name for column in columns.right]
        self.key_types = arrow_types(columns.keys, "key column")
        self.left_types = arrow_types(columns.left, "column")
        self.right_types = arrow_types(columns.right, "column")
        right = () if only_left else columns.right
        self.output_schema: T.StructType = struct_of((*columns.keys, *columns.left, *right))
        self.side_schemas: dict[str, T.StructType] = (
            late_schemas(columns.keys, columns.left, columns.right) if has_late else {}
        )

    def spec(self) -> dict[str, Any]:
        return self.definition.to_json()

    @property
    def fields(self) -> tuple[list[pa.Field], list[pa.Field], list[pa.Field]]:
        """The columns of the key, of the left stream and of the right one."""
        columns = self.definition
        return (
            arrow_fields(columns.keys, self.key_types),
            arrow_fields(columns.left, self.left_types),
            arrow_fields(columns.right, self.right_types),
        )

    def check_names(self) -> None:
        """Raise unless the columns of the output and of each table have names of their own."""
        check_names(self.name, self.output_schema.names)
        for table in self.tables.values():
            check_names(self.name, table.schema.names)

    def no_rows(self) -> Input:
        return no_rows(self.key_types, self.left_types, self.right_types)
