"""A server's process, from when it listens until it is no longer needed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import until


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    settings: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """While this is open, the server runs and answers."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(settings or {})},
            cwd=log.parent,
        )
    try:
        until(lambda: is_ready() or process.poll() is not None, f"{command[0]} ready")
        if process.poll() is not None:
            pytest.fail(f"{command[0]} ended: {log.read_text(errors='replace')[-2000:]}")
        yield
    finally:
        process.send_signal(stop)
        process.wait()
