"""Look-ups over HTTP, as a plain ASGI application.

No framework, because its routing would take longer than a look-up. Read-only: no request changes
anything. Who may ask is decided in `access`.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from millrace import access
from millrace.errors import (
    KeyColumnsError,
    MillraceError,
    UnhashableKeyError,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
)
from millrace.reading.json_values import rows_to_json
from millrace.serve import openapi
from millrace.serve.lookups import Lookups, Standing
from millrace.serve.openapi import MOST_KEYS
from millrace.serve.values import key_from_text, keys_from_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_BYTES = 1 << 20
"""A request's body may be this long."""

_STATUS: list[tuple[type[MillraceError], int]] = [
    (UnknownOperatorError, 404),
    (UnknownStateError, 404),
    (KeyColumnsError, 400),
    (UnhashableKeyError, 400),
    (UnknownEpochError, 503),
]

_PAGE_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
        b"script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'",
    ),
    (b"content-type", b"text/html; charset=utf-8"),
]
_JSON_HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


class Refusal(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow
        """The methods that would have been right, if this one was not."""


class App:
    """The ASGI application."""

    def __init__(self, lookups: Lookups, token: str | None = None) -> None:
        self._lookups = lookups
        self._token = token
        self._page = resources.files("millrace.serve").joinpath("page.html").read_bytes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        status, headers = 200, _JSON_HEADERS
        try:
            if scope["path"] in ("/docs", "/"):
                _check_method(scope, "GET")
                body, headers = self._page, _PAGE_HEADERS
            else:
                body = json.dumps(await self._answer(scope, receive)).encode()
        except Refusal as refusal:
            status, body, headers = refusal.status, _error(str(refusal)), _JSON_HEADERS
            if refusal.allow:
                headers = [*headers, (b"allow", refusal.allow.encode())]
        except MillraceError as error:
            status = next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
            body = _error(str(error))
        if status == 401:
            headers = [*headers, (b"www-authenticate", b"Bearer")]
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        path: str = scope["path"]
        if path == "/healthz":
            _check_method(scope, "GET")
            return self._health()
        self._check_allowed(scope)
        if path.startswith("/v1/"):
            operator, _, rest = path[4:].partition("/")
            if not rest:
                _check_method(scope, "GET")
                return self._one(unquote(operator), scope["query_string"])
            if rest == "lookup":
                _check_method(scope, "POST")
                return self._many(unquote(operator), await _body(scope, receive))
        elif path == "/v1":
            _check_method(scope, "GET")
            return self._overview()
        elif path == "/openapi.json":
            _check_method(scope, "GET")
            return openapi.document(self._lookups.operators(), self._token is not None)
        raise Refusal(404, f"there is nothing at {path}; see /docs for the available paths.")

    def _check_allowed(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host, authorization = headers.get(b"host", b""), headers.get(b"authorization", b"")
        refused = access.refusal(host, authorization, self._token)
        if refused is not None:
            raise Refusal(*refused)

    def _one(self, operator: str, query_string: bytes) -> dict[str, Any]:
        try:
            pairs = parse_qsl(query_string.decode(), keep_blank_values=True, strict_parsing=False)
        except ValueError as error:
            raise Refusal(400, f"the query string cannot be read: {error}.") from error
        given = dict(pairs)
        if len(given) < len(pairs):
            twice = next(n for n, _ in pairs if [m for m, _ in pairs].count(n) > 1)
            raise Refusal(400, f"{twice!r} is given twice; to ask for many keys, use POST.")
        states = given.pop("_states", None)
        tables = self._lookups.operator(operator)
        types = {field.name: field for field in tables.key_fields}
        keys = {
            name: key_from_text(text, types[name]) if name in types else pa.nulls(1)
            for name, text in given.items()
        }
        answer = self._lookups.look_up(operator, keys, states.split(",") if states else None)
        found = bool(answer.found[0])
        row = rows_to_json(answer.rows)[0] if found else None
        return {**_standing(answer.standing), "found": found, "row": row}

    def _many(self, operator: str, body: bytes) -> dict[str, Any]:
        tables = self._lookups.operator(operator)
        keys, states = _parsed(body)
        names = list(dict.fromkeys(name for key in keys for name in key))
        wanted = {field.name for field in tables.key_fields}
        for key in keys:
            if not wanted - tables.optional <= key.keys() <= wanted:
                # Raises for the first key that lacks a column or has another.
                tables.arrays({name: pa.nulls(1) for name in key})
        types = {field.name: field for field in tables.key_fields}
        columns = {
            name: keys_from_json([key.get(name) for key in keys], types[name]) for name in names
        }
        if not keys:
            columns = {f.name: pa.array([], f.type) for f in tables.key_fields}
        answer = self._lookups.look_up(operator, columns, states)
        rows = zip(rows_to_json(answer.rows), answer.found.tolist(), strict=True)
        return {
            **_standing(answer.standing),
            "rows": [row if found else None for row, found in rows],
        }

    def _overview(self) -> dict[str, Any]:
        operators = {
            name: {
                "keys": [{"name": f.name, "type": str(f.type)} for f in tables.key_fields],
                "states": tables.values,
                "collections": list(tables.collections),
            }
            for name, tables in sorted(self._lookups.operators().items())
        }
        return {**_standing(self._lookups.standing()), "operators": operators}

    def _health(self) -> dict[str, Any]:
        if not self._lookups.is_following:
            why = self._lookups.failure or "the thread that follows the log has ended"
            raise Refusal(503, f"the log is not being followed: {why}")
        return {"status": "ok"}


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "epoch": standing.epoch,
        "committed": _iso(standing.committed_ms),
        "staleness_ms": standing.staleness_ms,
    }


@functools.lru_cache(maxsize=16)
def _iso(ms: int) -> str:
    moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def _check_method(scope: Scope, method: str) -> None:
    allowed = ("GET", "HEAD") if method == "GET" else (method,)
    if scope["method"] not in allowed:
        raise Refusal(
            405,
            f"{scope['path']} takes {method}; the server is read-only.",
            allow=", ".join(allowed),
        )


def _parsed(body: bytes) -> tuple[list[dict[str, Any]], list[str] | None]:
    """The keys and the states that a request's body asks for."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}.") from error
    keys = asked.get("keys") if isinstance(asked, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise Refusal(400, 'the body must be {"keys": [{key column: value, ...}, ...]}.')
    if len(keys) > MOST_KEYS:
        raise Refusal(
            413, f"{len(keys)} keys: at most {MOST_KEYS} at a time. Arrow Flight takes more."
        )
    states = asked.get("states")
    if states is not None and not (
        isinstance(states, list) and all(isinstance(s, str) for s in states)
    ):
        raise Refusal(400, '"states" must be a list of names.')
    return keys, states


async def _body(scope: Scope, receive: Receive) -> bytes:
    too_large = Refusal(413, f"the body is longer than {BODY_BYTES} bytes. Ask for fewer keys.")
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > BODY_BYTES:
        raise too_large
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the client went away.")
        part = message.get("body", b"")
        length += len(part)
        if length > BODY_BYTES:
            raise too_large
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
