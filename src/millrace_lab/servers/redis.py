"""Redis from Debian's package, on loopback, with a port and a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_lab.servers.places import ServerMissingError, free_port, is_open
from millrace_lab.servers.running import running

PASSWORD = "not-a-secret"


def is_installed() -> bool:
    return shutil.which("redis-server") is not None


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The URL of a server that runs meanwhile."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerMissingError("Redis is not installed: run make servers")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", "--requirepass", PASSWORD]
    with running(command, folder / "redis.log", lambda: is_open(port)):
        yield f"redis://:{PASSWORD}@127.0.0.1:{port}"
