"""Requests to a running query, as files in its location.

    requests/<id>.json           what is asked for, and when
    requests/<id>.taken-<run>    a driver has seen it
    requests/<id>.answer.json    how it ended: done, refused, superseded, cancelled

Anyone who can write to the location can ask. Each file is created once and never changes. A request
without an answer is taken up by whichever driver runs the query next, so it survives drivers; an
answer is final.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from millrace import clock
from millrace.errors import AlreadyExistsError, MissingFileError, UnknownRequestError
from millrace.log.layout import REQUESTS
from millrace.log.manifest import seal, unseal
from millrace.log.segment import FORMAT_VERSION
from millrace.log.store import Store

KEEP = 200
"""Answered requests beyond so many are forgotten, oldest first."""

_ID = re.compile(r"[A-Za-z0-9-]+")

KINDS = ("rescale", "move", "drain", "undrain", "cancel")


@dataclass(frozen=True)
class Request:
    """Something asked of a query."""

    id: str
    kind: str
    created_ms: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """How a request ended."""

    state: str
    """done, refused, superseded or cancelled"""
    reason: str = ""
    report: dict[str, Any] = field(default_factory=dict)


class Requests:
    """The requests of one location."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def submit(self, kind: str, **details: Any) -> Request:
        """Write a request; returns once it is durable."""
        now = clock.now_ms()
        request = Request(f"{now:013d}-{clock.fresh_id()[:8]}", kind, now, details)
        body = {"format": FORMAT_VERSION, "kind": kind, "created": now, "details": details}
        self._store.create(f"{REQUESTS}/{request.id}.json", seal(body)[0])
        return request

    def ids(self) -> list[str]:
        """All requests that are remembered, oldest first."""
        return _ids(self._names())

    def open(self) -> list[str]:
        """The ids of requests without an answer, oldest first."""
        names = self._names()
        found = [i for i in _ids(names) if f"{i}.answer.json" not in names]
        # A list may lag behind the answer.
        return [i for i in found if self._store.size(f"{REQUESTS}/{i}.answer.json") is None]

    def _names(self) -> set[str]:
        return {path.rsplit("/", 1)[-1] for path in self._store.list(REQUESTS)}

    def pending(self) -> list[Request]:
        """Requests without an answer, oldest first."""
        return [self.read(id_) for id_ in self.open()]

    def read(self, id_: str) -> Request:
        path = f"{REQUESTS}/{id_}.json"
        try:
            if not _ID.fullmatch(id_):
                raise MissingFileError(f"{id_!r} is not the id of a request")
            body, _ = unseal(self._store.read(path), f"{self._store.url}/{path}")
        except MissingFileError as error:
            raise UnknownRequestError(
                f"{self._store.url} has no request {id_}. `millrace assignment` shows what the "
                "query is doing."
            ) from error
        return Request(id_, body["kind"], body["created"], body["details"])

    def take(self, request: Request, run: str) -> None:
        """Say that a driver has seen it."""
        try:
            self._store.create(f"{REQUESTS}/{request.id}.taken-{run}", b"")
        except AlreadyExistsError:
            return

    def is_taken(self, id_: str) -> bool:
        prefix = f"{REQUESTS}/{id_}.taken-"
        return any(path.startswith(prefix) for path in self._store.list(REQUESTS))

    def answer(self, id_: str, answer: Answer) -> bool:
        """Close a request; False if it was closed already."""
        body = {
            "format": FORMAT_VERSION,
            "state": answer.state,
            "reason": answer.reason,
            "report": answer.report,
        }
        try:
            self._store.create(f"{REQUESTS}/{id_}.answer.json", seal(body)[0])
        except AlreadyExistsError:
            return False
        return True

    def answered(self, id_: str) -> Answer | None:
        """How a request ended; None while it has not."""
        if not _ID.fullmatch(id_):
            return None
        path = f"{REQUESTS}/{id_}.answer.json"
        try:
            body, _ = unseal(self._store.read(path), f"{self._store.url}/{path}")
        except MissingFileError:
            return None
        return Answer(body["state"], body["reason"], body["report"])

    def tidy(self) -> None:
        """Forget old requests that were answered."""
        files: dict[str, list[str]] = {}
        for path in self._store.list(REQUESTS):
            files.setdefault(path.rsplit("/", 1)[-1].split(".", 1)[0], []).append(path)
        closed = [i for i, paths in sorted(files.items()) if any("answer" in p for p in paths)]
        for id_ in closed[:-KEEP]:
            # The answer goes last: without it the request would be open again.
            for path in sorted(files[id_], key=lambda p: "answer" in p):
                self._store.delete(path)


def _ids(names: set[str]) -> list[str]:
    ids = (name.removesuffix(".json") for name in sorted(names) if name.endswith(".json"))
    return [i for i in ids if not i.endswith(".answer")]
