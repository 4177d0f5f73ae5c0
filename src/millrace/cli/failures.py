"""How a command ends when Millrace refuses: the message alone, and exit code 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from millrace.errors import MillraceError


class Failure(click.ClickException):
    """An error without a traceback; the exit code is 1."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn Millrace's errors into the end of the command."""
    try:
        yield
    except MillraceError as error:
        raise Failure(str(error)) from error
