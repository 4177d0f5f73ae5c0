"""The inbox of one driver: it takes requests and writes answers. The director decides on them.

Answers are written in order and tried again until they are, so that a request is never open again
when a later one is not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from millrace.errors import CorruptionError, NewerFormatError, UnknownRequestError
from millrace.reconfigure.moves import KEPT_MOVES, Move
from millrace.reconfigure.requests import Answer, Request, Requests

_log = logging.getLogger("millrace")


class Inbox:
    """The requests to one driver."""

    def __init__(self, requests: Requests, run: str) -> None:
        self._requests = requests
        self._run = run
        self._unanswered: dict[str, Answer] = {}
        self.moves: dict[str, Move] = {}
        """The moves that this driver has taken, by request."""
        self.queue: list[Move] = []
        """Those that wait for the next epoch, oldest first."""

    def submit(self, kind: str, details: dict[str, Any]) -> Request:
        """Write a request, and take it."""
        request = self._requests.submit(kind, **details)
        self._requests.take(request, self._run)
        return request

    def take_new(self) -> Iterator[Request]:
        """Take what others have written; refuse what cannot be read."""
        for id_ in self._requests.open():
            if id_ in self.moves:
                continue
            try:
                request = self._requests.read(id_)
            except (CorruptionError, NewerFormatError) as error:
                self._requests.answer(id_, Answer("refused", str(error)))
                continue
            except UnknownRequestError:
                # It was removed since it was listed.
                continue
            self._requests.take(request, self._run)
            if self._requests.answered(id_) is None:
                # Else whoever asked gave up waiting just before it was taken.
                yield request

    def pop_newest(self) -> Move | None:
        """The last of those that wait, which supersedes the others."""
        if not self.queue:
            return None
        *older, newest = self.queue
        self.queue = []
        for move in older:
            self.close(move, "superseded", f"by request {newest.id}")
        return newest

    def close(self, move: Move, state: str, reason: str = "") -> None:
        """End a move and answer its request, if it came from one; later if the store fails."""
        if not move.is_open:
            return
        move.end(state, reason)
        if move.id in self.moves:
            report = move.report.to_json() if state == "done" else {}
            self._unanswered[move.id] = Answer(state, reason, report)
            try:
                self.write_answers()
            except Exception as error:
                # An epoch must not fail because of it.
                _log.warning("cannot answer request %s, will try again: %s", move.id, error)

    def write_answers(self) -> None:
        """Write all outstanding answers, and forget old moves."""
        for id_, answer in list(self._unanswered.items()):
            self._requests.answer(id_, answer)
            del self._unanswered[id_]
        ended = [id_ for id_, move in self.moves.items() if not move.is_open]
        for id_ in ended[:-KEPT_MOVES]:
            del self.moves[id_]
