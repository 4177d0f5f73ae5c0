"""Waiting for what a test needs: for a condition, never for a fixed time.

A deadline is there for hangs only. It is minutes long, so that no test depends on how fast or how
busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 900.0
"""Seconds. Shorter than pytest's own limit, which cannot say what was waited for."""


def until(condition: Callable[[], object], what: str) -> None:
    """Return once the condition holds; fail with `what` if it never does."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {DEADLINE:g} seconds: not {what}")
        time.sleep(0.01)
