"""Machines that are network namespaces: they reach each other, late, with losses, or not at all."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from millrace_lab import network
from millrace_lab.network import HERE, Machine, Network, Weather

pytestmark = pytest.mark.xdist_group("network")

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("ready", flush=True)
    while True:
        client, _ = server.accept()
        with client:
            while data := client.recv(65536):
                client.sendall(data)
"""


@pytest.fixture
def net() -> Iterator[Network]:
    reason = network.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Network() as made:
        yield made


@contextlib.contextmanager
def echo(machine: Machine) -> Iterator[None]:
    command = machine.command(sys.executable, "-c", ECHO, machine.address)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()


def asked(address: str, data: bytes, timeout: float = 60.0) -> bytes:
    with socket.create_connection((address, 7000), timeout) as client:
        client.settimeout(timeout)
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        answer = bytearray()
        while len(answer) < len(data):
            answer += client.recv(65536)
        sender.join()
        return bytes(answer)


def test_machines_reach_each_other_whatever_the_weather(net: Network) -> None:
    first, second = net.machine("first"), net.machine("second")
    assert [first.address, second.address] == ["10.231.0.2", "10.231.0.3"]
    data = bytes(range(256)) * 4000
    with echo(first):
        assert asked(first.address, data) == data
        # From the other machine, too.
        code = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 30).close()"
        subprocess.run(second.command(sys.executable, "-c", code, first.address), check=True)

        net.disturb(first, Weather(delay=0.05))
        started = time.monotonic()
        assert asked(first.address, b"x") == b"x"
        # A round trip to connect and one to ask, each 50 ms there and 50 back.
        assert time.monotonic() - started >= 0.2

        net.disturb(first, Weather(delay=0.005, loss=0.02))
        assert asked(first.address, data) == data

        before = net.lost
        net.cut(first)
        with pytest.raises(TimeoutError):
            asked(first.address, b"x", timeout=1.0)
        assert net.lost > before
        net.mend(first)
        assert asked(first.address, b"x") == b"x"


def is_ours(address: str) -> bool:
    """Whether this machine has an address."""
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return False
    return True


def test_nothing_is_left(net: Network) -> None:
    made = net.machine("gone")
    net.__exit__(None, None, None)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert made.namespace not in left.stdout
    # The device goes with the last process that has its file open: one that was being started by
    # somebody else has all files for a moment.
    while is_ours(HERE):
        time.sleep(0.05)
    # The fixture ends a network of its own.
    net.__init__()  # type: ignore[misc]
    net.__enter__()
