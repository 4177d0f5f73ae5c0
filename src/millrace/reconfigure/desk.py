"""The desk: requests come in, answers go out. What is done about them, the director decides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from millrace.errors import CorruptionError, NewerFormatError, StoreError
from millrace.reconfigure.moves import KEPT_MOVES, Move
from millrace.reconfigure.requests import Answer, Request, Requests

_log = logging.getLogger("millrace")


class Desk:
    """The requests to one driver."""

    def __init__(self, requests: Requests, run: str) -> None:
        self._requests = requests
        self._run = run
        self._unanswered: dict[str, Answer] = {}
        self.moves: dict[str, Move] = {}
        """Those that this driver has taken, by request."""
        self.queue: list[Move] = []
        """Those that wait for the next epoch, oldest first."""

    @property
    def url(self) -> str:
        return self._requests.url

    def submit(self, kind: str, details: dict[str, Any]) -> Request:
        """Write a request down, and take it."""
        request = self._requests.submit(kind, **details)
        self._requests.take(request, self._run)
        return request

    def taken(self) -> Iterator[Request]:
        """Take what others have written."""
        for id_ in self._requests.open():
            if id_ in self.moves:
                continue
            try:
                request = self._requests.read(id_)
            except (CorruptionError, NewerFormatError) as error:
                self._requests.answer(id_, Answer("refused", str(error)))
                continue
            self._requests.take(request, self._run)
            if self._requests.answered(id_) is None:
                # Else whoever asked gave up waiting just before it was taken.
                yield request

    def newest(self) -> Move | None:
        """The last of those that wait, which supersedes the others."""
        if not self.queue:
            return None
        *older, newest = self.queue
        self.queue = []
        for move in older:
            self.supersede(move, newest)
        return newest

    def supersede(self, move: Move, by: Move) -> None:
        self.close(move, "superseded", f"by request {by.id}")

    def close(self, move: Move, state: str, reason: str = "") -> None:
        """End a move and answer its request, if it came from one; again if the store fails."""
        if not move.is_open:
            return
        move.end(state, reason)
        if move.id in self.moves:
            told = move.report.to_json() if state == "done" else {}
            self._unanswered[move.id] = Answer(state, reason, told)
            self.write_answers()

    def write_answers(self) -> None:
        """In order, so that a request is never open again when a later one is not."""
        for id_, answer in list(self._unanswered.items()):
            try:
                self._requests.answer(id_, answer)
            except StoreError as error:
                _log.warning("cannot answer request %s, will try again: %s", id_, error)
                return
            del self._unanswered[id_]
        ended = [id_ for id_, move in self.moves.items() if not move.is_open]
        for id_ in ended[:-KEPT_MOVES]:
            del self.moves[id_]
