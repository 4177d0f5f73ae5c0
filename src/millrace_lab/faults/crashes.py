"""Kill a process of a query at a named point of an epoch.

`MILLRACE_CRASH=after-sink@3` kills the driver (SIGKILL) at that point of epoch 3. At the points
that a shard passes, `before-segment@3:worker` kills its Python worker instead, and `:executor` the
executor, once: the first that creates a file in the folder `MILLRACE_CRASH_MARKS` dies, so that
the task which runs again does not.

A shard runs in a worker, which cannot tell its driver from the other processes above it: a driver
that is to die at a shard's point calls `register_driver` before it starts Spark.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from millrace import hooks
from millrace.errors import UsageError
from millrace_lab.faults import HOOKS

VARIABLE = "MILLRACE_CRASH"
MARKS = "MILLRACE_CRASH_MARKS"
DRIVER = "MILLRACE_CRASH_DRIVER"
"""The driver's process id. Workers and executors inherit it."""

DRIVER_POINTS = (
    hooks.BEFORE_SINK,
    hooks.AFTER_SEGMENT,
    hooks.AFTER_SINK,
    hooks.BEFORE_MANIFEST,
    hooks.AFTER_MANIFEST,
    hooks.BEFORE_COMMIT,
)
"""Where a driver is killed: at its own points, and while a shard is at one."""


def environment(crash: str, marks: Path | None = None) -> dict[str, str]:
    """The variables that make a query crash at `crash`, such as `after-sink@3`."""
    folder = {} if marks is None else {MARKS: str(marks)}
    return {**HOOKS, VARIABLE: crash, **folder}


def register_driver() -> None:
    """Say that this process is the driver of the Spark it is about to start."""
    os.environ[DRIVER] = str(os.getpid())


def reached(point: str, epoch: int) -> None:
    """Kill the victim if this is its point."""
    place, _, victim = os.environ.get(VARIABLE, "").partition(":")
    if place != f"{point}@{epoch}":
        return
    if victim in ("", "driver"):
        os.kill(_driver(point), signal.SIGKILL)
    elif _is_first(place):
        os.kill(os.getpid() if victim == "worker" else _executor(), signal.SIGKILL)


def _is_first(name: str) -> bool:
    """Whether nobody died here before."""
    try:
        os.close(os.open(Path(os.environ[MARKS]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _driver(point: str) -> int:
    if point not in hooks.SHARD_POINTS:
        return os.getpid()
    if DRIVER not in os.environ:
        raise UsageError(
            f"{VARIABLE} is to kill the driver at {point!r}, which a worker passes, but {DRIVER} "
            "is not set. Call millrace_lab.faults.crashes.register_driver() in the driver before "
            "it starts Spark."
        )
    return int(os.environ[DRIVER])


def _executor() -> int:
    """The JVM that this worker belongs to: the parent of its daemon, which has forked it."""
    return psutil.Process(os.getppid()).ppid()
