"""Where servers are installed and listen."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

FOLDER = Path(os.environ.get("MILLRACE_SERVERS") or Path.home() / ".cache/millrace/servers")
"""Where `make servers` installs what pip does not."""


def missing(reason: str) -> NoReturn:
    """Skip the test; where nothing may be missing, as in continuous integration, it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def server(name: str) -> Path:
    """The installed program or folder of a server; without it the test is skipped."""
    found = FOLDER / name
    if not found.exists():
        missing(f"no {found}: run make servers")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
