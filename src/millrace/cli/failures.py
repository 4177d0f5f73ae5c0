"""How a command ends: when Millrace refuses, with the message alone; after Ctrl-C, in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import click

from millrace.errors import MillraceError

INTERRUPTED = 130
"""The shell's exit code after Ctrl-C."""


class Failure(click.ClickException):
    """An error without a traceback; the exit code is 1."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn Millrace's errors into the end of the command."""
    try:
        yield
    except MillraceError as error:
        raise Failure(str(error)) from error


@contextlib.contextmanager
def interrupts_set(event: threading.Event) -> Iterator[None]:
    """Ctrl-C and a termination request set the event and do nothing else."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, lambda *_: event.set()) for s in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
