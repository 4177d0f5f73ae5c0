"""What the HTTP server answers, as an OpenAPI document made from the operators it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from millrace._version import __version__
from millrace.serve.tables import OperatorTables

STANDING = {
    "epoch": {"type": "integer", "description": "The committed epoch that the answer is from."},
    "committed": {"type": "string", "format": "date-time", "description": "When it was committed."},
    "staleness_ms": {
        "type": "number",
        "description": "No epoch that was committed longer ago than this is missing.",
    },
}


def document(operators: Mapping[str, OperatorTables], needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, Any] = {
        "/v1": {
            "get": _operation("The operators that can be looked up, and the epoch.", _object({}))
        },
        "/healthz": {
            "get": _operation("Whether the log is being followed; 503 if not.", _object({}))
        },
    }
    for name, tables in sorted(operators.items()):
        paths[f"/v1/{name}"] = {"get": _get(name, tables)}
        paths[f"/v1/{name}/lookup"] = {"post": _post(name, tables)}
    body: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace look-ups",
            "version": __version__,
            "description": "Read-only look-ups in the state of a running query.",
        },
        "paths": paths,
    }
    if needs_token:
        body["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        body["security"] = [{"token": []}]
    return body


def _get(name: str, tables: OperatorTables) -> dict[str, Any]:
    parameters = [
        {
            "name": field.name,
            "in": "query",
            "required": True,
            "schema": schema(field.type),
            "description": f"Key column, {field.type}.",
        }
        for field in tables.key_fields
    ]
    known = [*tables.values, *tables.collections]
    parameters.append(
        {
            "name": "_states",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": f"Which states, with commas in between: {', '.join(known)}.",
        }
    )
    row = _object({**STANDING, "found": {"type": "boolean"}, "row": _row(tables)})
    found = _operation(f"One key of {name}.", row)
    found["parameters"] = parameters
    return _refusals(found)


def _post(name: str, tables: OperatorTables) -> dict[str, Any]:
    key = _object({f.name: schema(f.type) for f in tables.key_fields})
    asked = _object(
        {
            "keys": {"type": "array", "items": key},
            "states": {"type": "array", "items": {"type": "string"}},
        }
    )
    rows = {"type": "array", "items": {"oneOf": [_row(tables), {"type": "null"}]}}
    found = _operation(
        f"Many keys of {name}, all at one epoch.", _object({**STANDING, "rows": rows})
    )
    found["requestBody"] = {"required": True, "content": {"application/json": {"schema": asked}}}
    return _refusals(found)


def _row(tables: OperatorTables) -> dict[str, Any]:
    return _object({f.name: schema(f.type) for f in tables.schema(None)})


def _operation(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": answer}}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}}}


def _refusals(operation: dict[str, Any]) -> dict[str, Any]:
    operation["responses"] |= {
        "400": {"description": "A key column is missing, unknown or of another type."},
        "401": {"description": "No token, or a wrong one."},
        "503": {"description": "There is no committed epoch yet."},
    }
    return operation


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties)}


def schema(data_type: pa.DataType) -> dict[str, Any]:
    """How a value of a type looks in JSON."""
    if pa.types.is_boolean(data_type):
        return {"type": "boolean"}
    if pa.types.is_integer(data_type):
        return {"type": "integer", "format": str(data_type)}
    if pa.types.is_duration(data_type):
        return {"type": "integer", "description": "microseconds"}
    if pa.types.is_floating(data_type):
        return {"type": ["number", "string"]}
    if pa.types.is_timestamp(data_type):
        return {"type": "string", "format": "date-time"}
    if pa.types.is_date(data_type):
        return {"type": "string", "format": "date"}
    if pa.types.is_binary(data_type):
        return {"type": "string", "contentEncoding": "base64"}
    if pa.types.is_decimal(data_type):
        return {"type": "string", "format": "decimal"}
    if pa.types.is_struct(data_type):
        return _object({f.name: schema(f.type) for f in data_type})
    if pa.types.is_map(data_type):
        if pa.types.is_string(data_type.key_type):
            return {"type": "object", "additionalProperties": schema(data_type.item_type)}
        return {"type": "array", "items": {"type": "array"}}
    if pa.types.is_list(data_type):
        return {"type": "array", "items": schema(data_type.value_type)}
    return {"type": "string"}
