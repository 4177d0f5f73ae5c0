"""Named places in an epoch where a test may kill a process.

`MILLRACE_CRASH=after-sink@3` kills the driver (SIGKILL) at that point of epoch 3. At the points
that a shard passes, `before-segment@3:worker` kills its Python worker instead, and `:executor` the
executor, once: the first that creates a file in the folder `MILLRACE_CRASH_MARKS` dies, so that
the task which runs again does not. Without the variable, `reach` does nothing.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "MILLRACE_CRASH"
MARKS = "MILLRACE_CRASH_MARKS"

AFTER_INPUT = "after-input"
BEFORE_SEGMENT = "before-segment"
AFTER_SEGMENT = "after-segment"
BEFORE_SINK = "before-sink"
AFTER_SINK = "after-sink"
BEFORE_MANIFEST = "before-manifest"
AFTER_MANIFEST = "after-manifest"
BEFORE_COMMIT = "before-commit"

POINTS = (
    BEFORE_SINK,
    AFTER_SEGMENT,
    AFTER_SINK,
    BEFORE_MANIFEST,
    AFTER_MANIFEST,
    BEFORE_COMMIT,
)
"""Where the driver may die."""

SHARD_POINTS = (AFTER_INPUT, BEFORE_SEGMENT, AFTER_SEGMENT)
"""Where a shard may die, with its worker or its executor, or the driver meanwhile."""


def reach(point: str, epoch: int, driver: int | None = None) -> None:
    """Die here if the test says so. A shard passes its driver's process id."""
    place, _, victim = os.environ.get(VARIABLE, "").partition(":")
    if place != f"{point}@{epoch}":
        return
    if victim in ("", "driver"):
        os.kill(driver or os.getpid(), signal.SIGKILL)
    elif _first(f"{point}@{epoch}"):
        os.kill(os.getpid() if victim == "worker" else _executor(), signal.SIGKILL)


def _first(name: str) -> bool:
    """Whether nobody died here before."""
    try:
        os.close(os.open(Path(os.environ[MARKS]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _executor() -> int:
    """The JVM that this worker belongs to: the parent of its daemon, which has forked it."""
    daemon = os.getppid()
    # After the name in parentheses: state, parent.
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
