"""The two threads beside the epochs: one takes requests, one makes executors follow key groups.

Neither ends before the director is closed, whatever a store or the cluster raises.
"""

from __future__ import annotations

from millrace.reconfigure.director import Director
from millrace.reconfigure.requests import Requests
from millrace.repeating import Repeating, problems

POLL_SECONDS = 0.5
"""How often to look for requests."""
TIDY_EVERY = 600
"""After this number of polls old requests are forgotten."""


class Background:
    """Two threads around a director."""

    def __init__(self, director: Director, requests: Requests) -> None:
        self._director = director
        self._requests = requests
        self._polls = 0
        self._following = Repeating("follow", self._follow)
        self.threads = [self._following, Repeating("requests", self._take_requests)]

    @property
    def problem(self) -> str | None:
        """What is failing at the moment; None if nothing is."""
        return problems(self.threads)

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        self._director.close()
        for thread in self.threads:
            thread.close()

    def _take_requests(self) -> float | None:
        tidy = self._polls % TIDY_EVERY == 0
        self._polls += 1
        self._director.poll()
        if tidy:
            self._requests.tidy()
        return self._pause(POLL_SECONDS)

    def _follow(self) -> float | None:
        director = self._director
        if self._following.problem is None:
            # While it fails, do not wait: with nothing left to follow the problem is over.
            director.await_change(60.0, until=director.has_work)
        try:
            return self._pause(director.follow_once())
        except BaseException as error:
            director.follow_failed(error)
            raise

    def _pause(self, seconds: float) -> float | None:
        return None if self._director.is_closed else seconds
