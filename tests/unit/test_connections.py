"""Servers are not kept busy by clients that dawdle, or by very many of them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from tests.unit.serve.counting import Counting
from tests.unit.serve.serving import served
from tests.waiting import DEADLINE, until

from millrace import connections


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    counting = Counting(str(tmp_path_factory.mktemp("location")))
    counting.epoch({"a": (1, 5)})
    with served(counting.url) as address:
        yield address


def connected(base: str) -> socket.socket:
    host, _, port = base.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE)


def is_closed(client: socket.socket) -> bool:
    """Waits until the server says something or goes away."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def total(base: str) -> int:
    found = httpx.get(f"{base}/v1/totals?k=a", timeout=DEADLINE).json()["row"]["total"]
    assert isinstance(found, int)
    return found


SLOW = {
    "says nothing": b"",
    "half a line": b"GET /v1 HT",
    "half of the headers": b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "half a body": b"POST /v1/totals/lookup HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW.keys())
def test_a_client_that_dawdles_is_cut_off(
    base: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    with connected(base) as client:
        client.sendall(sent)
        assert is_closed(client)
    monkeypatch.undo()
    assert total(base) == 5


def test_headers_without_end_are_not_kept(base: str) -> None:
    with connected(base) as client:
        client.sendall(b"GET /v1 HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"X-More: " + b"x" * 4096 + b"\r\n")
        assert is_closed(client)
    assert total(base) == 5


def test_connections_beyond_the_limit_are_closed(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    before, threads = open_files(), threading.active_count()
    clients = [connected(base) for _ in range(8)]
    for client in clients:
        # Answered, so it is one of those that the server has.
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1) == b"H"
    with connected(base) as another:
        assert is_closed(another)
    assert threading.active_count() == threads
    for client in clients:
        client.close()
    until(lambda: open_files() <= before, "all descriptors closed")
    assert total(base) == 5
