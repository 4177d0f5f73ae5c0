"""Spark's types as Arrow types, the way they are kept in state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from millrace.errors import UnsupportedTypeError


def arrow_type(data_type: T.DataType, where: str) -> pa.DataType:
    """The Arrow type of a Spark type; timestamps are in UTC."""
    try:
        return to_arrow_type(data_type, timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise UnsupportedTypeError(
            f"{where} has type {data_type.simpleString()}, which Spark cannot hand to Python as "
            "Arrow. Cast it to a supported type first."
        ) from error


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of rows; every column may be NULL."""
    return pa.schema(
        [pa.field(f.name, arrow_type(f.dataType, f"column {f.name!r}")) for f in schema.fields]
    )


def to_json(data_type: T.DataType) -> Any:
    return data_type.jsonValue()


def from_json(data: Any) -> T.DataType:
    field = T.StructField.fromJson({"name": "x", "type": data, "nullable": True, "metadata": {}})
    return field.dataType


def conform(array: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> pa.Array:
    """One contiguous array of exactly this type; Spark may send another time zone's name."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array if array.type == data_type else array.cast(data_type)
