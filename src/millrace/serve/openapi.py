"""What the HTTP server answers, as an OpenAPI document made from the operators it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from millrace._version import __version__
from millrace.serve.tables import OperatorTables

MOST_KEYS = 10_000
"""How many keys one request may ask for; Flight takes more."""

STANDING = {
    "epoch": {"type": "integer", "description": "The committed epoch that the answer is from."},
    "committed": {"type": "string", "format": "date-time", "description": "When it was committed."},
    "staleness_ms": {
        "type": "number",
        "description": "No epoch that was committed longer ago than this is missing.",
    },
}


_OVERVIEW = "The operators that can be looked up, and the epoch."
_HEALTH = "Whether the log is being followed; 503 if not."


def document(operators: Mapping[str, OperatorTables], needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, Any] = {
        "/v1": {"get": _refusals(_operation(_OVERVIEW, _object({})), 401, 403, 405, 503)},
        "/healthz": {
            # No token is needed to know that.
            "get": _refusals(_operation(_HEALTH, _object({})), 405, 503) | {"security": []}
        },
    }
    for name, tables in sorted(operators.items()):
        paths[f"/v1/{quote(name, safe='')}"] = {"get": _get(name, tables)}
        paths[f"/v1/{quote(name, safe='')}/lookup"] = {"post": _post(name, tables)}
    body: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace look-ups",
            "version": __version__,
            "description": "Read-only look-ups in the state of a running query.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _object({"error": {"type": "string"}}, "error")}},
    }
    if needs_token:
        body["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        body["security"] = [{"token": []}]
    return body


def _get(name: str, tables: OperatorTables) -> dict[str, Any]:
    parameters = [
        {
            "name": field.name,
            "in": "query",
            "required": field.name not in tables.optional,
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
    row = {"oneOf": [_row(tables), {"type": "null"}]}
    answer = _object({**STANDING, "found": {"type": "boolean"}, "row": row}, *STANDING, "found")
    found = _operation(f"One key of {name}.", answer)
    found["parameters"] = parameters
    return _refusals(found, 400, 401, 403, 404, 405, 503)


def _post(name: str, tables: OperatorTables) -> dict[str, Any]:
    names = [f.name for f in tables.key_fields if f.name not in tables.optional]
    key = _object({f.name: _nullable(schema(f.type)) for f in tables.key_fields}, *names)
    key["additionalProperties"] = False
    asked = _object(
        {
            "keys": {"type": "array", "items": key, "maxItems": MOST_KEYS},
            "states": _nullable({"type": "array", "items": {"type": "string"}}),
        },
        "keys",
    )
    rows = {"type": "array", "items": {"oneOf": [_row(tables), {"type": "null"}]}}
    found = _operation(
        f"Many keys of {name}, all at one epoch.",
        _object({**STANDING, "rows": rows}, *STANDING, "rows"),
    )
    found["requestBody"] = {"required": True, "content": {"application/json": {"schema": asked}}}
    return _refusals(found, 400, 401, 403, 404, 405, 413, 503)


def _row(tables: OperatorTables) -> dict[str, Any]:
    keys = [f.name for f in tables.key_fields]
    every = tables.schema([*tables.values, *tables.collections])
    return _object({f.name: _nullable(schema(f.type)) for f in every}, *keys)


def _nullable(described: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [described, {"type": "null"}]}


def _operation(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": answer}}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}}}


_REFUSALS = {
    400: "A key column is missing, unknown or of another type.",
    401: "No token, or a wrong one.",
    403: "The Host header names another machine.",
    404: "There is no such operator or state.",
    405: "Another method is right, which the header Allow names.",
    413: "The body is too long, or has too many keys.",
    503: "There is no committed epoch yet, or the log cannot be followed.",
}


def _refusals(operation: dict[str, Any], *statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in statuses:
        described = {"description": _REFUSALS[status], "content": content}
        operation["responses"][str(status)] = described
    return operation


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    return found | ({"required": list(required)} if required else {})


_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _digits(decimal: pa.DataType) -> str:
    """How a decimal is written: as many digits before and after the point as it has."""
    whole, after = max(decimal.precision - decimal.scale, 1), decimal.scale
    return rf"^-?[0-9]{{1,{whole}}}" + (rf"(\.[0-9]{{1,{after}}})?$" if after > 0 else "$")


def schema(data_type: pa.DataType) -> dict[str, Any]:
    """How a value of a type looks in JSON."""
    if pa.types.is_boolean(data_type):
        return {"type": "boolean"}
    if pa.types.is_integer(data_type):
        most = 2 ** (data_type.bit_width - 1)
        return {
            "type": "integer",
            "format": str(data_type),
            "minimum": -most,
            "maximum": most - 1,
        }
    if pa.types.is_duration(data_type):
        return {"type": "integer", "description": "microseconds"}
    if pa.types.is_floating(data_type):
        return {"oneOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    if pa.types.is_timestamp(data_type):
        return {"type": "string", "format": "date-time"}
    if pa.types.is_date(data_type):
        return {"type": "string", "format": "date"}
    if pa.types.is_binary(data_type):
        return {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}
    if pa.types.is_decimal(data_type):
        return {"type": "string", "format": "decimal", "pattern": _digits(data_type)}
    if pa.types.is_struct(data_type):
        return _object({f.name: schema(f.type) for f in data_type})
    if pa.types.is_map(data_type):
        if pa.types.is_string(data_type.key_type):
            return {"type": "object", "additionalProperties": schema(data_type.item_type)}
        return {"type": "array", "items": {"type": "array"}}
    if pa.types.is_list(data_type):
        return {"type": "array", "items": schema(data_type.value_type)}
    return {"type": "string"}
