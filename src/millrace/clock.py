"""The one place where Millrace reads clocks and draws random names.

Everything else takes time as an argument or asks here, so that tests can replace it, and so that
an operator never sees the wall clock: inside an operator, time is the epoch's time.
"""

from __future__ import annotations

import datetime as _dt
import random
import secrets
import time
import uuid


def now() -> _dt.datetime:
    """The current time in UTC."""
    return _dt.datetime.now(_dt.UTC)


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def stopwatch() -> float:
    """Seconds on a monotonic clock; only differences mean something."""
    return time.perf_counter()


def processor_seconds() -> float:
    """Processor time of this process, in all its threads; only differences mean something."""
    return time.process_time()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def fresh_id() -> str:
    """A name that is unique."""
    return uuid.uuid4().hex


def fresh_salt() -> int:
    """64 bits that nobody can guess."""
    return secrets.randbits(64)


Dice = random.Random


def dice(seed: str) -> Dice:
    """Random draws that a seed determines."""
    return random.Random(seed)
