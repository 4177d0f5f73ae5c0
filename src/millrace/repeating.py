"""A thread that does one thing again and again, and outlives whatever goes wrong.

Leases, requests, following, views, look-ups, the live page and the collection of old files all need
one. A store that is out of reach for a minute raises errors of many kinds, its client's own among
them, and none may end such a thread: the error is logged, shown as `problem`, and the thread tries
again after a pause that doubles, up to a limit. That holds for all that can be raised: the client
of an asynchronous store may raise `CancelledError`, which is no `Exception`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

RETRY_SECONDS = 1.0
"""The pause after a first failure; it doubles with every further one."""
MAX_RETRY_SECONDS = 10.0

UNTIL_WOKEN = 3600.0
"""The pause of a step that has nothing to do until `wake` is called."""

_log = logging.getLogger("millrace")

Repeated = Callable[[], float | None]
"""Does its work once. Returns for how many seconds to pause, or None to end the thread."""


class Repeating:
    """A daemon thread around a step."""

    def __init__(self, name: str, step: Repeated) -> None:
        self.name = name
        self._step = step
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the last attempt failed; None if it did not."""

    def start(self) -> None:
        """Begin; also in a process that was forked, where the thread is missing."""
        self._thread = threading.Thread(target=self._run, name=f"millrace-{self.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """End the pause, if there is one."""
        self._wake.set()

    def close(self, timeout: float | None = 10.0) -> None:
        """Let the thread end after the step it is in, and wait for it."""
        self._closed = True
        self._wake.set()
        if self.is_alive and self._thread is not threading.current_thread():
            assert self._thread is not None
            self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        while not self._closed:
            try:
                pause = self._step()
                failures = 0
                self.problem = None
            except BaseException as error:
                pause = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(failures, 10))
                failures += 1
                self.problem = first_line(error)
                _log.warning("%s: %s; trying again in %g s", self.name, self.problem, pause)
            if pause is None:
                return
            self._wake.wait(pause)
            self._wake.clear()


def problems(threads: Iterable[Repeating]) -> str | None:
    """What fails at the moment, and in which of some threads; None if nothing does."""
    failing = [f"{thread.name}: {thread.problem}" for thread in threads if thread.problem]
    return "; ".join(failing) or None


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    try:
        return str(error).strip().split("\n", 1)[0] or repr(error)
    except Exception:
        # The text of an error of Spark's is asked for in the JVM, which may be gone.
        return type(error).__name__
