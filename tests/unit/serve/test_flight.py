"""The Arrow Flight face, through a real server on a loopback port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.unit.serve.counting import Counting

from millrace.serve.flight import FOUND, OPERATOR_KEY, FlightLookups
from millrace.serve.lookups import Lookups

SCHEMA = pa.schema([("k", pa.string())])


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Counting:
    made = Counting(str(tmp_path_factory.mktemp("location")))
    made.epoch({f"key-{i}": (i + 1, i) for i in range(1000)})
    return made


@pytest.fixture(scope="module")
def server(counting: Counting) -> Iterator[FlightLookups]:
    with FlightLookups(Lookups(counting.url), "grpc://127.0.0.1:0") as served:
        yield served


@pytest.fixture(scope="module")
def client(server: FlightLookups) -> Iterator[flight.FlightClient]:
    with flight.connect(("127.0.0.1", server.port)) as connected:
        yield connected


def exchange(client: Any, path: list[str], batches: list[pa.RecordBatch]) -> list[tuple[Any, Any]]:
    descriptor = flight.FlightDescriptor.for_path(*path)
    writer, reader = client.do_exchange(descriptor)
    answers = []
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
            chunk = reader.read_chunk()
            answers.append((chunk.data, json.loads(chunk.app_metadata.to_pybytes())))
        writer.done_writing()
    return answers


def keys(names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(names)], schema=SCHEMA)


def test_batches_of_keys(client: Any, counting: Counting) -> None:
    names = [f"key-{i}" for i in range(500, 1500)]
    answers = exchange(client, ["totals"], [keys(names), keys(["key-7"])])
    rows, standing = answers[0]
    assert standing["epoch"] == counting.trail.epoch
    assert standing["staleness_ms"] >= 0
    assert rows.schema.names == ["k", "n", "total", FOUND]
    for row in rows.to_pylist():
        n, total = counting.state.get(row["k"], (None, None))
        assert (row["n"], row["total"], row[FOUND]) == (n, total, n is not None)
    assert answers[1][0].to_pylist() == [{"k": "key-7", "n": 8, "total": 7, FOUND: True}]


def test_some_states(client: Any) -> None:
    ((rows, _),) = exchange(client, ["totals", "total"], [keys(["key-7"])])
    assert rows.to_pylist() == [{"k": "key-7", "total": 7, FOUND: True}]


def test_get_with_the_keys_in_the_ticket(client: Any) -> None:
    batch = keys(["key-1", "nobody"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA.with_metadata({OPERATOR_KEY: b"totals"})) as writer:
        writer.write_batch(batch)
    reader = client.do_get(flight.Ticket(sink.getvalue().to_pybytes()))
    chunk = reader.read_chunk()
    assert json.loads(chunk.app_metadata.to_pybytes())["epoch"] == 1
    assert chunk.data.column("n").to_pylist() == [2, None]


def test_what_there_is(client: Any) -> None:
    (info,) = client.list_flights()
    assert info.descriptor.path == [b"totals"]
    assert info.schema.names == ["k", "n", "total", FOUND]


def test_refusals(client: Any) -> None:
    with pytest.raises(pa.ArrowKeyError, match="there is no operator 'other'"):
        exchange(client, ["other"], [keys(["a"])])
    wrong = pa.RecordBatch.from_pydict({"z": ["a"]})
    with pytest.raises(pa.ArrowInvalid, match="'k' is missing"):
        exchange(client, ["totals"], [wrong])
    with pytest.raises(pa.ArrowInvalid, match="IPC stream"):
        client.do_get(flight.Ticket(b"totals")).read_all()
    with pytest.raises(pa.ArrowInvalid, match="no state 'mean'"):
        exchange(client, ["totals", "mean"], [keys(["a"])])


def test_the_token(counting: Counting) -> None:
    with FlightLookups(Lookups(counting.url), "grpc://127.0.0.1:0", "s3cret") as served:
        address = ("127.0.0.1", served.port)
        with flight.connect(address) as without:
            with pytest.raises(flight.FlightUnauthenticatedError, match="needs a token"):
                list(without.list_flights())
            for header in (b"Bearer wrong", b"Bearer s3cret"):
                options = flight.FlightCallOptions(headers=[(b"authorization", header)])
                if header == b"Bearer wrong":
                    with pytest.raises(flight.FlightUnauthenticatedError):
                        list(without.list_flights(options=options))
                else:
                    assert len(list(without.list_flights(options=options))) == 1


def test_before_the_first_epoch(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = Counting(str(tmp_path_factory.mktemp("empty")))
    with (
        FlightLookups(Lookups(empty.url), "grpc://127.0.0.1:0") as served,
        flight.connect(("127.0.0.1", served.port)) as client,
        pytest.raises(flight.FlightUnavailableError, match="no committed epoch yet"),
    ):
        exchange(client, ["totals"], [keys(["a"])])


def test_a_server_outlives_what_one_call_raises(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = Lookups(counting.url)
    with (
        FlightLookups(lookups, "grpc://127.0.0.1:0") as served,
        flight.connect(("127.0.0.1", served.port)) as connected,
    ):

        def failing(*_: object) -> None:
            raise RuntimeError("out of luck")

        with monkeypatch.context() as patched:
            patched.setattr(lookups, "look_up", failing)
            with pytest.raises(pa.ArrowException, match="out of luck"):
                exchange(connected, ["totals"], [keys(["key-7"])])
        (answer,) = exchange(connected, ["totals"], [keys(["key-7"])])
        assert answer[0].column("n").to_pylist() == [8]
