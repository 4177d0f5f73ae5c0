"""Sessions of `local-cluster`, started one after the other on this machine.

Spark names an application after the second in which it starts, and its executors' working folders,
below Spark's home, after the application. Two that start in the same second would share a folder,
and each would remove the other's files: so the lock is held until that second is over.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from millrace import clock


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Start a session in this block; nobody else does meanwhile."""
    folder = Path(_find_spark_home(), "work")
    folder.mkdir(exist_ok=True)
    with (folder / ".starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            second = clock.now_ms() // 1000
            while clock.now_ms() // 1000 == second:
                clock.sleep(0.01)
