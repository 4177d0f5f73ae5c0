"""The log of a Delta table with one version: one small file of JSON lines, written by hand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from millrace import clock
from millrace.errors import UnsupportedTypeError

LOG = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True)
class Part:
    """A Parquet file of the table."""

    name: str
    bytes: int
    rows: int


def first_commit(title: str, schema: pa.Schema, parts: Sequence[Part]) -> bytes:
    """The commit that makes Parquet files a Delta table."""
    types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    now = clock.now_ms()
    actions = [
        {"commitInfo": {"timestamp": now, "operation": "WRITE", "engineInfo": "millrace"}},
        {"protocol": _protocol(types)},
        {
            "metaData": {
                "id": str(uuid.UUID(clock.fresh_id())),
                "name": title,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": types.json(),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": now,
            }
        },
    ]
    for part in parts:
        actions.append(
            {
                "add": {
                    "path": part.name,
                    "partitionValues": {},
                    "size": part.bytes,
                    "modificationTime": now,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": part.rows}),
                }
            }
        )
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def _protocol(schema: T.StructType) -> dict[str, object]:
    kinds = set(_kinds(schema))
    for refused in (T.DayTimeIntervalType, T.TimeType):
        if refused in kinds:
            raise UnsupportedTypeError(
                f"a Delta table has no type {refused.__name__}. Export as parquet or arrow."
            )
    if T.TimestampNTZType in kinds:
        features = ["timestampNtz"]
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    return {"minReaderVersion": 1, "minWriterVersion": 2}


def _kinds(data_type: T.DataType) -> list[type]:
    found: list[type] = [type(data_type)]
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            found += _kinds(field.dataType)
    elif isinstance(data_type, T.ArrayType):
        found += _kinds(data_type.elementType)
    elif isinstance(data_type, T.MapType):
        found += _kinds(data_type.keyType) + _kinds(data_type.valueType)
    return found
