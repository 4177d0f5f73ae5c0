"""What a side costs while it works: CPU seconds and memory of all its processes.

All processes of the side's session count, with those of their children that have ended and were
waited for. Memory is their proportional set size (PSS): a page that several share counts once.
Both are sampled while the side works, and cut to the measured time afterwards.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from millrace_lab import processes

CPU_EVERY = 0.1
MEMORY_EVERY = 0.5
"""Seconds. To sum up the pages of a JVM takes the kernel some milliseconds."""


@dataclass(frozen=True)
class Sample:
    at: float
    cpu: float
    memory: int | None


@dataclass(frozen=True)
class Cost:
    """Of a stretch of time."""

    cpu_seconds: float
    peak_bytes: int


def cost(samples: list[Sample], begin: float, end: float) -> Cost:
    """CPU between two points in time, by straight lines between samples, and the peak of memory."""
    cpu = _at(samples, end) - _at(samples, begin)
    known = [one for one in samples if one.memory is not None]
    within = [one for one in known if begin <= one.at <= end]
    # A stretch shorter than the samples' distance has the nearest one.
    nearest = within or sorted(known, key=lambda one: abs(one.at - begin))[:1]
    return Cost(cpu, max((one.memory or 0 for one in nearest), default=0))


def _at(samples: list[Sample], when: float) -> float:
    place = bisect.bisect_left(samples, when, key=lambda one: one.at)
    if place == 0:
        return samples[0].cpu
    if place == len(samples):
        return samples[-1].cpu
    before, after = samples[place - 1], samples[place]
    return before.cpu + (after.cpu - before.cpu) * (when - before.at) / (after.at - before.at)


def sample(session: int, *, memory: bool) -> Sample:
    """What the processes of a session have used, and use, now."""
    cpu, used = 0.0, 0
    for pid in processes.members(session):
        usage = processes.usage(pid, memory=memory)
        if usage is not None:
            cpu += usage.cpu_seconds
            used += usage.shared_bytes or 0
    return Sample(time.time(), cpu, used if memory else None)


def _after(samples: list[Sample], found: Sample) -> Sample:
    """CPU time does not go back: one that has ended is missing until its parent has noticed."""
    before = samples[-1].cpu if samples else 0.0
    return replace(found, cpu=max(found.cpu, before))


@contextlib.contextmanager
def sampling(session: int) -> Iterator[Callable[[], list[Sample]]]:
    """Sample a session while the block runs; what is given gives the samples so far."""
    samples: list[Sample] = []
    stop = threading.Event()

    def go_on() -> None:
        looked = 0.0
        while True:
            memory = time.monotonic() >= looked + MEMORY_EVERY
            if memory:
                looked = time.monotonic()
            samples.append(_after(samples, sample(session, memory=memory)))
            if stop.wait(CPU_EVERY):
                return

    thread = threading.Thread(target=go_on, name="millrace-usage", daemon=True)
    thread.start()
    try:
        yield lambda: list(samples)
    finally:
        stop.set()
        thread.join()
