"""Named places in an epoch where a test may kill the driver.

`MILLRACE_CRASH=after-sink@3` kills the driver (SIGKILL) at that point of epoch 3. Without the
variable, `reach` does nothing.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "MILLRACE_CRASH"

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


def reach(point: str, epoch: int, driver: int | None = None) -> None:
    """Die here if the test says so. A shard passes its driver's process id."""
    if os.environ.get(VARIABLE) == f"{point}@{epoch}":
        os.kill(driver or os.getpid(), signal.SIGKILL)
