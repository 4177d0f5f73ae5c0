"""How long a remote store may be out of reach before a request to it fails.

A request that gets no answer, or an answer that the server is at fault, is repeated with growing
pauses. A query whose store has lost its network waits this long, and then goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from millrace import clock
from millrace.errors import UsageError

TOTAL = "MILLRACE_STORE_PATIENCE"
"""Seconds from the first try of a request to the last; default: 180.

Below five minutes, which is how long the signature of a request to an object store is valid."""
REQUEST = "MILLRACE_STORE_TIMEOUT"
"""Seconds that one try may take, with all of its data; default: 30."""

CONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


@dataclass(frozen=True)
class Retries:
    """Seconds for a request with its repetitions, and for each of them."""

    total: float
    request: float

    @property
    def connect(self) -> float:
        return min(CONNECT_SECONDS, self.request)

    def tries(self) -> Iterator[int]:
        """Numbers of tries, with the pauses between them; ends when the time is up."""
        began = clock.stopwatch()
        pause, number = FIRST_PAUSE, 0
        while True:
            yield number
            if clock.stopwatch() - began + pause > self.total:
                return
            clock.sleep(pause)
            pause, number = min(2 * pause, LONGEST_PAUSE), number + 1


SHORT = Retries(total=10, request=5)
"""For a first look at a store."""


def configured_retries() -> Retries:
    """What the environment says."""
    return Retries(_seconds(TOTAL, 180), _seconds(REQUEST, 30))


def _seconds(variable: str, default: float) -> float:
    given = os.environ.get(variable)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{variable}={given!r}: it must be a number of seconds above 0.")
    return seconds
