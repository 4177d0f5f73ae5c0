"""Look-ups over Arrow Flight: keys as Arrow in, rows as Arrow out.

`DoExchange` with the descriptor path `[operator, *states]`: for every batch of keys sent, a batch
of rows comes back in the same order, with a column `_found`. `DoGet` does the same for one batch,
whose IPC stream is the ticket, with the operator in the schema's metadata. The epoch and the
staleness of each batch are in its metadata, as JSON. Every batch is answered at one epoch.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyarrow import flight

from millrace.access import has_token
from millrace.errors import (
    KeyColumnsError,
    MalformedError,
    MillraceError,
    UnknownEpochError,
    UnknownOperatorError,
)
from millrace.log.pages import check_columns
from millrace.serve.lookups import Lookups

FOUND = "_found"
OPERATOR_KEY = b"millrace.operator"
STATES_KEY = b"millrace.states"
AUTHORIZATION = "authorization"

MOST_KEYS = 1 << 20
"""How many keys one batch may have."""
MOST_CALLS = 64
"""How many look-ups may be open at once, exchanges that wait for more keys among them."""


class FlightLookups(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight server. It serves from the moment it is made."""

    def __init__(
        self,
        lookups: Lookups,
        location: str,
        token: str | None = None,
        tls: tuple[bytes, bytes] | None = None,
    ) -> None:
        middleware = {} if token is None else {"token": _TokenFactory(token)}
        certificates = [] if tls is None else [tls]
        super().__init__(location, middleware=middleware, tls_certificates=certificates)
        self._lookups = lookups
        self._calls = threading.BoundedSemaphore(MOST_CALLS)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        operator, states = _asked(descriptor)
        schema: pa.Schema | None = None
        with self._one_of_few():
            for chunk in _chunks(reader):
                if chunk.data is None:
                    continue
                rows, metadata = self._answer(operator, chunk.data, states)
                if schema is None:
                    schema = rows.schema
                    writer.begin(schema)
                writer.write_with_metadata(rows, metadata)

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _refusals():
            batch = _keys(ticket.ticket)
        metadata = batch.schema.metadata or {}
        if OPERATOR_KEY not in metadata:
            raise pa.ArrowInvalid(
                f"the ticket's schema lacks the metadata {OPERATOR_KEY.decode()!r}, which names "
                "the operator."
            )
        states = _text(metadata.get(STATES_KEY, b""))
        with self._one_of_few():
            rows, standing = self._answer(
                _text(metadata[OPERATOR_KEY]), batch, states.split(",") if states else None
            )
        return flight.GeneratorStream(rows.schema, iter([(rows, standing)]))

    @contextlib.contextmanager
    def _one_of_few(self) -> Iterator[None]:
        """One of a bounded number of calls; each holds a thread while it is open."""
        if not self._calls.acquire(blocking=False):
            raise flight.FlightUnavailableError(
                f"{MOST_CALLS} look-ups are open already. Try again, and close exchanges that are "
                "not needed."
            )
        try:
            yield
        finally:
            self._calls.release()

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with _refusals():
            names = sorted(self._lookups.operators())
        for name in names:
            yield self._info(name, None)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        operator, states = _asked(descriptor)
        return self._info(operator, states)

    def _info(self, operator: str, states: Sequence[str] | None) -> Any:
        with _refusals():
            schema = _with_found(self._lookups.operator(operator).schema(states))
        path = flight.FlightDescriptor.for_path(operator, *(states or ()))
        return flight.FlightInfo(schema, path, [], -1, -1)

    def _answer(
        self, operator: str, keys: pa.RecordBatch, states: Sequence[str] | None
    ) -> tuple[pa.RecordBatch, bytes]:
        with _refusals():
            _check_keys(keys)
            columns = dict(zip(keys.schema.names, keys.columns, strict=True))
            answer = self._lookups.look_up(operator, columns, states)
        arrays = [*answer.rows.columns, pa.array(answer.found)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=_with_found(answer.rows.schema))
        return rows, json.dumps(asdict(answer.standing)).encode()


def _with_found(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, pa.field(FOUND, pa.bool_(), nullable=False)])


def _keys(ticket: bytes) -> pa.RecordBatch:
    """The keys of a ticket, as one batch."""
    try:
        with pa.ipc.open_stream(ticket) as stream:
            batches = []
            for batch in stream:
                _check_keys(batch)
                batches.append(batch)
            schema = stream.schema
        keys = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    except (pa.ArrowException, MalformedError, OSError, ValueError, KeyError) as error:
        raise pa.ArrowInvalid(
            "the ticket must be an Arrow IPC stream with the keys, whose schema has the metadata "
            f"{OPERATOR_KEY.decode()!r}: {error}"
        ) from error
    return keys[0] if keys else pa.RecordBatch.from_pylist([], schema=schema)


def _chunks(reader: Any) -> Iterator[Any]:
    """What a client sends in an exchange, one after the other."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except flight.FlightError:
            # The client went away.
            raise
        except (pa.ArrowException, OSError) as error:
            raise pa.ArrowInvalid(
                "the keys of an exchange must be record batches of Arrow, the schema first: "
                f"{error}"
            ) from error
        yield chunk


def _check_keys(keys: pa.RecordBatch) -> None:
    """Raise unless keys that came from a client can be looked at."""
    if keys.num_rows > MOST_KEYS:
        raise KeyColumnsError(
            f"{keys.num_rows} keys: at most {MOST_KEYS} in one batch. Send several batches."
        )
    names = keys.schema.names
    if len(set(names)) < len(names):
        raise KeyColumnsError("two of the keys' columns have the same name.")
    check_columns(keys)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"{data[:80]!r} is not text in UTF-8.") from error


def _asked(descriptor: Any) -> tuple[str, list[str] | None]:
    path = [_text(part) for part in descriptor.path or ()]
    if not path:
        raise pa.ArrowInvalid("the descriptor must be a path: the operator, then states, if any.")
    return path[0], path[1:] or None


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turns Millrace's errors into those of Flight."""
    try:
        yield
    except UnknownOperatorError as error:
        raise pa.ArrowKeyError(str(error)) from error
    except UnknownEpochError as error:
        raise flight.FlightUnavailableError(str(error)) from error
    except MillraceError as error:
        raise pa.ArrowInvalid(str(error)) from error


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = next((v for k, v in headers.items() if k.lower() == AUTHORIZATION), [""])
        if not has_token(_raw(given[0]), self._token):
            raise flight.FlightUnauthenticatedError(
                "this server needs a token: send the header 'authorization: Bearer TOKEN'."
            )


def _raw(header: str | bytes) -> bytes:
    """A header's bytes; gRPC hands them over as text unless its name ends in -bin."""
    return header if isinstance(header, bytes) else header.encode("utf-8", "surrogateescape")
