"""Arrow Flight with clients that send what makes no sense: refused, and the server goes on."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight
from tests.stress import few
from tests.unit.serve.counting import Counting

from millrace.serve import flight as serving
from millrace.serve.flight import OPERATOR_KEY, STATES_KEY, FlightLookups
from millrace.serve.lookups import Lookups
from millrace_lab.fuzz.mutations import mutate_bytes

REFUSED = (pa.ArrowException, flight.FlightError, OSError)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = Counting(str(tmp_path_factory.mktemp("location")))
    made.epoch({f"key-{i}": (i + 1, i) for i in range(100)})
    with (
        FlightLookups(Lookups(made.url), "grpc://127.0.0.1:0") as served,
        flight.connect(("127.0.0.1", served.port)) as connected,
    ):
        yield connected


def ticket(batch: pa.RecordBatch, **metadata: bytes) -> bytes:
    noted = {OPERATOR_KEY: b"totals", **{k.encode(): v for k, v in metadata.items()}}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(noted)) as stream:
        stream.write_batch(batch.replace_schema_metadata(noted))
    return bytes(sink.getvalue().to_pybytes())


def got(client: Any, data: bytes) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = client.do_get(flight.Ticket(data)).read_all().to_pylist()
    return listed


def keys(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": pa.array(names, pa.string())})


def is_well(client: Any) -> bool:
    return [row["total"] for row in got(client, ticket(keys("key-7")))] == [7]


def beyond() -> pa.RecordBatch:
    """Text whose offsets point far beyond its bytes."""
    offsets = pa.py_buffer(np.asarray([0, 1 << 30, 3], np.int32).tobytes())
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    return pa.RecordBatch.from_arrays([text], ["k"])


def test_offsets_beyond_the_text_do_not_end_the_process(client: Any) -> None:
    with pytest.raises(REFUSED, match="ticket"):
        got(client, ticket(beyond()))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("totals"))
    writer.begin(beyond().schema)
    writer.write_batch(beyond())
    with pytest.raises(REFUSED, match="column 'k'"):
        reader.read_chunk()
    with contextlib.suppress(*REFUSED):
        writer.close()
    assert is_well(client)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ticket"),
        (b"\xff" * 64, "ticket"),
        (ticket(pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, ["k", "k"])), "same name"),
        (ticket(keys("a"), **{STATES_KEY.decode(): b"\xff"}), "UTF-8"),
        (ticket(keys("a"), **{OPERATOR_KEY.decode(): b"\xff"}), "UTF-8"),
        (ticket(pa.RecordBatch.from_pydict({"k": [1]})), "key column 'k'"),
        (ticket(pa.RecordBatch.from_pydict({"k": [{"a": 1}]})), "key column 'k'"),
        (ticket(pa.RecordBatch.from_pydict({"z": ["a"]})), "'k' is missing"),
        (ticket(keys("a").set_column(0, "k", pa.array(["a"]).dictionary_encode())), "dictionary"),
    ],
)
def test_keys_that_are_none_are_refused(client: Any, data: bytes, message: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=message):
        got(client, data)
    assert is_well(client)


@pytest.mark.parametrize(
    "descriptor",
    [
        flight.FlightDescriptor.for_command(b"totals"),
        flight.FlightDescriptor.for_path(),
        flight.FlightDescriptor.for_path(b"\xff\xfe"),
        flight.FlightDescriptor.for_path("nobody"),
        flight.FlightDescriptor.for_path("totals", "nothing"),
        flight.FlightDescriptor.for_path("x" * 100_000),
    ],
)
def test_descriptors_that_name_nothing_are_refused(client: Any, descriptor: Any) -> None:
    with pytest.raises(REFUSED):
        client.get_flight_info(descriptor)
    assert is_well(client)


@pytest.mark.parametrize("cases", few([40, 200], 40))
def test_mutated_tickets(client: Any, cases: int) -> None:
    rng = random.Random(7)
    right = ticket(keys("key-1", "key-2", "nobody"))
    for _ in range(cases):
        with contextlib.suppress(*REFUSED):
            got(client, mutate_bytes(rng, right))
    assert is_well(client)


def test_too_many_keys_in_one_batch(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_KEYS", 2)
    with pytest.raises(REFUSED, match="at most 2 in one batch"):
        got(client, ticket(keys("a", "b", "c")))
    monkeypatch.undo()
    assert is_well(client)


def test_open_exchanges_are_limited(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CALLS", 2)
    made = Counting(str(tmp_path_factory.mktemp("location")))
    made.epoch({"key-7": (1, 7)})
    descriptor = flight.FlightDescriptor.for_path("totals")
    with (
        FlightLookups(Lookups(made.url), "grpc://127.0.0.1:0") as served,
        flight.connect(("127.0.0.1", served.port)) as client,
    ):
        held = []
        for _ in range(2):
            writer, reader = client.do_exchange(descriptor)
            writer.begin(keys("key-7").schema)
            writer.write_batch(keys("key-7"))
            assert reader.read_chunk().data.num_rows == 1
            held.append((writer, reader))
        with pytest.raises(flight.FlightUnavailableError, match="open already"):
            got(client, ticket(keys("key-7")))
        for writer, _ in held:
            writer.close()
        ended = threading.Event()
        while not ended.is_set():
            try:
                assert is_well(client)
                ended.set()
            except flight.FlightUnavailableError:
                continue
