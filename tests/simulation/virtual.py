"""Time, names and sizes of a simulation: all from its seed, none from the machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from millrace import clock
from millrace.log import journal
from millrace.log.segment import encoding
from millrace.reconfigure import strategies
from millrace.spark import following
from millrace.state import cache, merging


class VirtualClock:
    """Seconds that pass only when somebody sleeps, or an epoch takes its time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.seconds = 1000.0

    def stopwatch(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        # Two requests are never asked for in the same millisecond.
        self.seconds += 0.001
        return round(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def fresh_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"


@contextmanager
def virtual(time: VirtualClock) -> Iterator[None]:
    """Within, Millrace lives in virtual time and has small thresholds.

    Small, so that merges, runs, page cuts, full manifests and forgotten replicas happen within the
    few epochs of a schedule.
    """
    with ExitStack() as stack:
        for name in ("stopwatch", "now_ms", "sleep", "fresh_id"):
            stack.enter_context(patch.object(clock, name, getattr(time, name)))
        for module, name, value in (
            (encoding, "PAGE_ROWS", 4),
            (journal, "FULL_EVERY", 5),
            (merging, "MERGE_RATIO", 1.0),
            (merging, "RUN_PIECES", 3),
            (cache, "FORGET_AFTER", 5),
            (following, "CHUNK", 2),
            (strategies, "FLUID_STEPS", 3),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
