"""Look-ups over Arrow Flight: keys as Arrow in, rows as Arrow out.

`DoExchange` with the descriptor path `[operator, *states]`: for every batch of keys sent, a batch
of rows comes back in the same order, with a column `_found`. `DoGet` does the same for one batch,
whose IPC stream is the ticket, with the operator in the schema's metadata. The epoch and the
staleness of each batch are in its metadata, as JSON. Every batch is answered at one epoch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyarrow import flight

from millrace.access import has_token
from millrace.errors import MillraceError, UnknownEpochError, UnknownOperatorError
from millrace.serve.lookups import Lookups

FOUND = "_found"
OPERATOR_KEY = b"millrace.operator"
STATES_KEY = b"millrace.states"
AUTHORIZATION = "authorization"


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

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        operator, states = _asked(descriptor)
        schema: pa.Schema | None = None
        for chunk in reader:
            if chunk.data is None:
                continue
            rows, metadata = self._answer(operator, chunk.data, states)
            if schema is None:
                schema = rows.schema
                writer.begin(schema)
            writer.write_with_metadata(rows, metadata)

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            with pa.ipc.open_stream(ticket.ticket) as stream:
                keys = stream.read_all().combine_chunks()
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(
                "the ticket must be an Arrow IPC stream with the keys, whose schema has the "
                f"metadata {OPERATOR_KEY.decode()!r}: {error}"
            ) from error
        metadata = keys.schema.metadata or {}
        if OPERATOR_KEY not in metadata:
            raise pa.ArrowInvalid(
                f"the ticket's schema lacks the metadata {OPERATOR_KEY.decode()!r}, which names "
                "the operator."
            )
        states = metadata.get(STATES_KEY, b"").decode()
        batches = keys.to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=keys.schema)
        rows, standing = self._answer(
            metadata[OPERATOR_KEY].decode(), batch, states.split(",") if states else None
        )
        return flight.GeneratorStream(rows.schema, iter([(rows, standing)]))

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
            columns = dict(zip(keys.schema.names, keys.columns, strict=True))
            answer = self._lookups.look_up(operator, columns, states)
        arrays = [*answer.rows.columns, pa.array(answer.found)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=_with_found(answer.rows.schema))
        return rows, json.dumps(asdict(answer.standing)).encode()


def _with_found(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, pa.field(FOUND, pa.bool_(), nullable=False)])


def _asked(descriptor: Any) -> tuple[str, list[str] | None]:
    path = [part.decode() for part in descriptor.path or ()]
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
