"""Where servers are installed and listen."""

from __future__ import annotations

import os
import socket
from pathlib import Path

FOLDER = Path(os.environ.get("MILLRACE_SERVERS") or Path.home() / ".cache/millrace/servers")
"""Where `make servers` installs what pip does not."""


class ServerMissingError(Exception):
    """A server is not installed on this machine."""


def installed(name: str) -> Path:
    """The installed program or folder of a server."""
    found = FOLDER / name
    if not found.exists():
        raise ServerMissingError(f"no {found}: run make servers")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
