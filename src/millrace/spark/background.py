"""What goes on beside the epochs: requests are looked for, and key groups are followed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millrace import clock
from millrace.errors import MillraceError
from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests

POLL_SECONDS = 0.5
"""How often requests are looked for."""
TIDY_EVERY = 600
"""After so many looks old requests are forgotten."""
AFTER_FAILURE_SECONDS = 1.0

_log = logging.getLogger("millrace")


class Background:
    """Two threads around a director."""

    def __init__(self, director: Director, requests: Requests) -> None:
        self._director = director
        self._requests = requests
        self._threads = [
            self._thread("requests", self._listen),
            self._thread("follow", self._follow),
        ]

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=f"millrace-{name}", daemon=True)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._director.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(timeout=10)

    def _listen(self) -> None:
        looks = 0
        while not self._director.is_closed:
            try:
                self._director.poll()
                if looks % TIDY_EVERY == 0:
                    self._requests.tidy()
            except MillraceError as error:
                _log.warning("cannot look for requests: %s", error)
            looks += 1
            self._director.await_change(POLL_SECONDS)

    def _follow(self) -> None:
        while not self._director.is_closed:
            self._director.await_change(60.0, until=self._director.has_work)
            try:
                pause = self._director.follow_once()
            except Exception as error:
                self._director.follow_failed(error)
                pause = AFTER_FAILURE_SECONDS
            clock.sleep(pause)
