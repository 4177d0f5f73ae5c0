"""A server's process, from when it listens until it is no longer needed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from millrace import clock

DEADLINE = 600.0
"""Seconds, for hangs only: a busy machine may take minutes to start a JVM."""


class ServerFailedError(Exception):
    """A server that is installed did not start, or did not answer."""


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    settings: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
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
        _await(process, is_ready, log)
        yield process
    finally:
        process.send_signal(stop)
        process.wait()


def _await(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    end = clock.stopwatch() + DEADLINE
    while process.poll() is None:
        if is_ready():
            return
        if clock.stopwatch() > end:
            raise ServerFailedError(f"{process.args!r} does not answer: {_tail(log)}")
        clock.sleep(0.05)
    raise ServerFailedError(f"{process.args!r} ended: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
