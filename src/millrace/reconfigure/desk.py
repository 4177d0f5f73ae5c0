"""The desk: requests come in, answers go out. What is done about them, the director decides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from millrace.errors import CorruptionError, NewerFormatError, StoreError
from millrace.reconfigure.moves import Move
from millrace.reconfigure.requests import Answer, Request, Requests

_log = logging.getLogger("millrace")

KEPT_MOVES = 200
"""Moves that have ended are forgotten beyond so many."""


class Desk:
    """The requests to one driver."""

    def __init__(self, requests: Requests, run: str) -> None:
        self._requests = requests
        self._run = run
        self._unanswered: dict[str, Answer] = {}
        self.moves: dict[str, Move] = {}
        """Those that this driver has taken, by request."""

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

    def answer(self, move: Move, answer: Answer) -> None:
        """Close a move's request, if it came from one; tried again if the store fails."""
        if move.id in self.moves:
            self._unanswered[move.id] = answer
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
