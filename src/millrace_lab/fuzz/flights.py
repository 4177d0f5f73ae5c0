"""The Arrow Flight listener under fuzz, over plain gRPC.

Messages are put together here from the description of the protocol, and mutated at any level: the
call, its descriptor, the header and the body of a batch, or the bytes of the message. Arrow's own
client would refuse to send most of them, or fall over them itself. Whatever was sent, the server
answers with rows of the state or refuses in one of a few ways, and the call after it is answered
as ever. A server that crashes ends this process, which is a finding as well.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from millrace.serve.flight import FOUND, OPERATOR_KEY, STATES_KEY, FlightLookups
from millrace.serve.lookups import Lookups
from millrace_lab.fuzz import served
from millrace_lab.fuzz.mutations import ODD_VALUES, mutate_bytes
from millrace_lab.fuzz.reading import Finding
from millrace_lab.fuzz.served import STATES, Served, as_text

HOST = "127.0.0.1"
SERVICE = "/arrow.flight.protocol.FlightService"
ANSWERED_WITHIN = 120.0
"""Seconds; for hangs, not for slow machines."""
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""How Millrace refuses, or gRPC a message that is too long."""
BY_ARROW = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
"""How Arrow and gRPC refuse what is no message of Flight, before Millrace sees it."""
MEANT = ("pyarrow.lib.ArrowInvalid", "pyarrow.lib.ArrowKeyError", "NotImplementedError")
"""What Millrace raises to refuse, and Arrow for calls that are not served."""
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
"""The lines of a traceback that name an exception. Arrow sends it along."""
UNKNOWN_CALLS = ("DoPut", "DoAction", "ListActions", "Handshake", "PollFlightInfo", "Nothing")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a connection of HTTP/2 begins: the preface, and a frame of settings."""
NONE: list[bytes] = []

Field = tuple[int, bytes]


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _message(*fields: Field) -> bytes:
    """A protocol buffer of fields that are bytes."""
    return b"".join(_varint(n << 3 | 2) + _varint(len(data)) + data for n, data in fields)


def _descriptor(path: Iterable[bytes], kind: int = 1) -> bytes:
    return b"\x08" + _varint(kind) + _message(*((3, part) for part in path))


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of an answer; all of Flight's are bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while at < len(data):
        number, length = varint() >> 3, varint()
        yield number, data[at : at + length]
        at += length


def _rows(answers: list[bytes]) -> list[dict[str, Any]]:
    """The rows in the messages of a stream."""
    stream = b""
    for answer in answers:
        fields = dict(_fields(answer))
        header = fields.get(2, b"")
        header += bytes(-len(header) % 8)
        stream += b"\xff\xff\xff\xff" + len(header).to_bytes(4, "little") + header
        stream += fields.get(1000, b"")
    if not stream:
        return []
    rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    return rows


class _Flight:
    """One server, and calls to it."""

    def __init__(self, channel: Any, port: int, corpus: Served) -> None:
        self._port = port
        self._corpus = corpus
        self._operator = corpus.operator.encode()
        self._channel = channel
        self._ask = {
            "DoGet": channel.unary_stream(f"{SERVICE}/DoGet"),
            "ListFlights": channel.unary_stream(f"{SERVICE}/ListFlights"),
            "GetFlightInfo": channel.unary_unary(f"{SERVICE}/GetFlightInfo"),
            "GetSchema": channel.unary_unary(f"{SERVICE}/GetSchema"),
            "DoExchange": channel.stream_stream(f"{SERVICE}/DoExchange"),
        }
        self._first = self._all()
        if not all(row[FOUND] for row in self._first):
            raise Finding("a key is not found")

    def case(self, rng: random.Random) -> str:
        asks: tuple[Callable[[random.Random], str], ...] = (
            self._ticket, self._ticket, self._exchange, self._exchange, self._exchange,
            self._describe, self._unknown, self._raw,
        )  # fmt: skip
        end = rng.choice(asks)(rng)
        if self._all() != self._first:
            raise Finding("a look-up shows other rows than at first")
        return end

    def _all(self) -> list[dict[str, Any]]:
        """What there is, by a right call."""
        data = _message((1, self._encoded(self._corpus.keys, STATES)))
        try:
            rows = _rows(list(self._ask["DoGet"](data, timeout=ANSWERED_WITHIN)))
        except grpc.RpcError as error:
            raise Finding(f"a right call is refused: {error}") from error
        return [
            {name: repr(value) for name, value in row.items() if name != FOUND}
            | {FOUND: row[FOUND]}
            for row in rows
        ]

    def _encoded(self, keys: pa.RecordBatch, states: Iterable[str], **other: bytes) -> bytes:
        """A ticket."""
        noted = {OPERATOR_KEY: self._operator, STATES_KEY: ",".join(states).encode()}
        noted |= {name.encode(): value for name, value in other.items()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema.with_metadata(noted)) as stream:
            stream.write_batch(keys.replace_schema_metadata(noted))
        return bytes(sink.getvalue().to_pybytes())

    def _keys(self, rng: random.Random) -> pa.RecordBatch:
        """Some of the keys, often with a column that is not as it should be."""
        keys = self._corpus.keys.slice(rng.randrange(self._corpus.keys.num_rows), rng.randrange(4))
        at = rng.randrange(keys.num_columns)
        kind = rng.randrange(8)
        if kind == 0:
            return keys.drop_columns([keys.schema.names[at]])
        if kind == 1:
            return keys.add_column(at, keys.schema.field(at), keys.column(at))
        if kind in (2, 3):
            return keys.set_column(at, keys.schema.names[at], _odd_column(rng, keys.num_rows))
        return keys

    def _ticket(self, rng: random.Random) -> str:
        states = [*rng.sample(STATES, 2), *rng.choice(([], [], ["nothing"], [""]))]
        other = {OPERATOR_KEY.decode(): _odd_bytes(rng)} if rng.randrange(6) == 0 else {}
        data = self._encoded(self._keys(rng), states, **other)
        if rng.randrange(3):
            data = mutate_bytes(rng, data)
        message = _message((1, data))
        return self._sent("DoGet", mutate_bytes(rng, message) if rng.randrange(8) == 0 else message)

    def _exchange(self, rng: random.Random) -> str:
        """A stream of batches, any of whose messages may be odd, missing or out of order."""
        path = [self._operator, *rng.choice((NONE, [b"total"], [b"seen", b"last"], [b"nothing"]))]
        descriptor = _descriptor(path)
        if rng.randrange(8) == 0:
            descriptor = mutate_bytes(rng, descriptor)
        reader = pa.ipc.MessageReader.open_stream(self._encoded(self._keys(rng), ()))
        parts = [(part.metadata.to_pybytes(), part.body) for part in reader]
        parts += parts[1:] * rng.randrange(3)
        stream = []
        odd = rng.randrange(len(parts) + 1)
        for place, (header, body) in enumerate(parts):
            content = b"" if body is None else body.to_pybytes()
            if place == odd and rng.randrange(2):
                header = mutate_bytes(rng, header)
            elif place == odd:
                content = mutate_bytes(rng, content)
            fields = [(2, header), (1000, content)]
            stream.append(_message(*([(1, descriptor)] if place == 0 else []), *fields))
        kind = rng.randrange(8)
        if kind == 0:
            rng.shuffle(stream)
        elif kind == 1:
            stream = stream[: rng.randrange(len(stream))]
        elif kind == 2:
            stream = [mutate_bytes(rng, message) for message in stream]
        return self._sent("DoExchange", iter(stream))

    def _describe(self, rng: random.Random) -> str:
        path = rng.choice(
            ([self._operator], [self._operator, b"seen"], NONE, [_odd_bytes(rng)], [b"x" * 100_000])
        )
        message = _descriptor(path, rng.choice((1, 1, 1, 0, 2, 99)))
        if rng.randrange(4) == 0:
            message = mutate_bytes(rng, message)
        call = rng.choice(("GetFlightInfo", "GetSchema", "ListFlights"))
        return self._sent(
            call, _message((1, _odd_bytes(rng))) if call == "ListFlights" else message
        )

    def _unknown(self, rng: random.Random) -> str:
        """A call that is not served."""
        name = rng.choice(UNKNOWN_CALLS)
        call = self._channel.stream_stream(f"{SERVICE}/{name}")
        ended = self._ended(lambda: list(call(iter([_odd_bytes(rng)]), timeout=ANSWERED_WITHIN)))
        return f"{name}: {ended}"

    def _raw(self, rng: random.Random) -> str:
        """Bytes that are almost HTTP/2."""
        data = PREFACE + rng.randbytes(rng.randrange(200))
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self._port), timeout=ANSWERED_WITHIN) as connection,
        ):
            connection.sendall(mutate_bytes(rng, data))
        return "bytes"

    def _sent(self, name: str, message: Any) -> str:
        ask = self._ask[name]
        is_single = name in ("GetFlightInfo", "GetSchema")

        def answers() -> list[bytes]:
            found = ask(message, timeout=ANSWERED_WITHIN)
            return [found] if is_single else list(found)

        return self._ended(answers, rows=name in ("DoGet", "DoExchange"))

    def _ended(self, call: Callable[[], list[bytes]], *, rows: bool = False) -> str:
        try:
            answers = call()
        except grpc.RpcError as error:
            code, text = error.code(), str(error.details())
            _, is_raised, trace = text.partition("Python exception: ")
            raised = _RAISED.findall(trace)[-1:]
            if code not in (REFUSALS if is_raised else REFUSALS | BY_ARROW):
                raise Finding(f"{code.name}: {text[:400]}") from error
            if raised and raised[0] not in MEANT:
                raise Finding(f"{code.name}, for {raised[0]}: {text[-400:]}") from error
            return str(code.name)
        for row in _rows(answers) if rows else ():
            self._check(row)
        return "answered"

    def _check(self, row: dict[str, Any]) -> None:
        """Raise if a row that is said to be in the state is not."""
        shown = {name: repr(value) for name, value in row.items() if name != FOUND}
        if row[FOUND] and not any(shown.items() <= known.items() for known in self._first):
            raise Finding(f"a row that is not in the state: {as_text(shown)[:300]}")


def _odd_bytes(rng: random.Random) -> bytes:
    return rng.choice(
        (
            b"",
            b"\xff\xfe",
            b"nobody",
            rng.randbytes(8),
            str(rng.choice(ODD_VALUES)).encode(errors="replace"),
        )
    )


def _odd_column(rng: random.Random, length: int) -> pa.Array:
    """A column of some other type."""
    values = rng.choice(
        (
            pa.nulls(length),
            pa.array([{"a": 1}] * length, pa.struct([("a", pa.int64())])),
            pa.array(["x"] * length).dictionary_encode(),
            pa.array([[1]] * length, pa.list_(pa.int8())),
            pa.array([2**63] * length, pa.uint64()),
            pa.array([float("nan")] * length),
            pa.array(["\0"] * length, pa.large_string()),
            pa.array([b"x"] * length, pa.binary(1)),
            pa.array([2**60] * length, pa.timestamp("s", "Europe/Berlin")),
            pa.array([-(2**31)] * length, pa.date32()),
        )
    )
    return values


@contextlib.contextmanager
def opened_flight(root: Path) -> Iterator[Callable[[random.Random], str]]:
    """A server over a new location; yields what runs a case against it."""
    corpus = served.make(root)
    with (
        Lookups(corpus.location) as lookups,
        FlightLookups(lookups, f"grpc://{HOST}:0") as serving,
        grpc.insecure_channel(f"{HOST}:{serving.port}", [("grpc.enable_http_proxy", 0)]) as channel,
    ):
        yield _Flight(channel, serving.port, corpus).case
