"""Requests to a running query: files in its location, and what may be asked.

    requests/<id>.json           what is asked for, and when
    requests/<id>.taken-<run>    a driver has seen it
    requests/<id>.answer.json    how it ended: done, refused, superseded, cancelled

Anyone who can write to the location can ask. Each file is created once and never changes. A request
without an answer is taken up by whichever driver runs the query next, so it survives drivers; an
answer is final. Files with other names are ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace import clock, fields
from millrace.errors import (
    AlreadyExistsError,
    CorruptionError,
    MalformedError,
    MissingFileError,
    UnknownRequestError,
    UsageError,
)
from millrace.fields import MOST_TIME_MS, Fields
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import check_parallelism
from millrace.log.layout import REQUESTS
from millrace.log.manifest import FIRST_VERSION, seal, unseal
from millrace.log.store import Store
from millrace.reconfigure.cluster import Executor
from millrace.reconfigure.strategies import check_strategy

KEEP = 200
"""How many answered requests are kept; older ones are forgotten."""

_ID = re.compile(r"[A-Za-z0-9-]+")

KINDS = ("rescale", "move", "drain", "undrain", "cancel", "autoscale")

SWITCHES = ("on", "off")
"""What a request may do to autoscaling."""


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
        body = {"format": FIRST_VERSION, "kind": kind, "created": now, "details": details}
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
        try:
            if not _ID.fullmatch(id_):
                raise MissingFileError(f"{id_!r} is not the id of a request")
            body = self._read(f"{id_}.json")
        except MissingFileError as error:
            raise UnknownRequestError(
                f"{self._store.url} has no request {id_}. `millrace assignment` shows what the "
                "query is doing."
            ) from error
        with self._malformed(f"{id_}.json"):
            kind, created = body.text("kind"), body.integer("created", 0, MOST_TIME_MS)
            return Request(id_, kind, created, body.members("details"))

    def _read(self, name: str) -> Fields:
        path = f"{REQUESTS}/{name}"
        return Fields(unseal(self._store.read(path), f"{self._store.url}/{path}")[0], "the file")

    @contextlib.contextmanager
    def _malformed(self, name: str) -> Iterator[None]:
        try:
            yield
        except MalformedError as error:
            raise CorruptionError(
                f"{self._store.url}/{REQUESTS}/{name} is malformed: {error}. Write requests with "
                "the command line or the Python API."
            ) from error

    def take(self, request: Request, run: str) -> None:
        """Record that a driver has seen it."""
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
            "format": FIRST_VERSION,
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
        try:
            body = self._read(f"{id_}.answer.json")
        except MissingFileError:
            return None
        with self._malformed(f"{id_}.answer.json"):
            report = body.members("report")
            _check_report(report)
            return Answer(body.text("state"), body.text("reason"), report)

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


def _check_report(report: dict[str, Any]) -> None:
    """Raise unless what a move has done is told in numbers."""
    told = Fields(report, "the report")
    for name in ("key_groups", "bytes", "epochs"):
        if name in report:
            told.integer(name)
    for name in ("first_epoch", "last_epoch"):
        if told.has(name):
            told.integer(name)
    if "seconds" in report:
        fields.number(report["seconds"], "'seconds' of the report")
    for operator, shards in (told.members("shards") if "shards" in report else {}).items():
        for number in fields.items(shards, f"the shards of {operator!r}", 2):
            fields.integer(number, f"a number of shards of {operator!r}")


def _ids(names: set[str]) -> list[str]:
    ids = (name.removesuffix(".json") for name in sorted(names) if name.endswith(".json"))
    return [i for i in ids if _ID.fullmatch(i)]


def check_request(
    kind: str,
    details: Mapping[str, object],
    assignments: Mapping[OperatorName, Assignment],
    executors: Collection[Executor],
    drained: Collection[str],
) -> None:
    """Raise if a request makes no sense to this query now."""
    operators = operators_of(details, assignments)
    key_groups = assignments[operators[0]].key_groups
    if kind != "cancel":
        check_strategy(details.get("strategy", "live"))
    if kind == "rescale":
        for name in operators:
            check_parallelism(shards_of(details, name), key_groups)
    elif kind == "move":
        to = details.get("to")
        check_executor(to, executors)
        if to in drained:
            raise UsageError(f"{to} is drained; nothing is moved there until undrain.")
        _check_groups(details.get("key_groups"), key_groups)
    elif kind in ("drain", "undrain"):
        executor = details.get("executor")
        check_executor(executor, executors)
        if kind == "drain" and {e.name for e in executors} - set(drained) <= {executor}:
            raise UsageError(nowhere_else(executor))
    elif kind == "autoscale":
        if details.get("switch") not in SWITCHES:
            raise UsageError(
                f"autoscaling cannot be switched {details.get('switch')!r}: say 'on' or 'off'."
            )
    elif kind != "cancel":
        raise UsageError(f"there is no request of kind {kind!r}.")


def operators_of(
    details: Mapping[str, object], assignments: Mapping[OperatorName, Assignment]
) -> list[OperatorName]:
    """The operators that a request is about: all, unless it names some."""
    name = details.get("operator")
    several = details.get("parallelism")
    if isinstance(several, Mapping):
        unknown = sorted(str(each) for each in several if each not in assignments)
        if unknown or not several or name is not None:
            raise UsageError(
                f"parallelism= names {', '.join(unknown) or 'no operator'}. The query has "
                f"{', '.join(map(repr, assignments))}; operator= is for one number alone."
            )
        return [OperatorName(each) for each in several]
    if name is None:
        return list(assignments)
    if not isinstance(name, str) or name not in assignments:
        raise UsageError(
            f"there is no operator {name!r}. The query has {', '.join(map(repr, assignments))}."
        )
    return [OperatorName(name)]


def shards_of(details: Mapping[str, Any], name: OperatorName) -> Any:
    """The number of shards that a rescale asks for, of one of its operators."""
    given = details.get("parallelism")
    return given[name] if isinstance(given, Mapping) else given


def check_executor(name: object, executors: Iterable[Executor]) -> None:
    known = [e.name for e in executors]
    if name not in known:
        raise UsageError(
            f"there is no executor {name!r}. Those alive are {', '.join(known) or 'none'}."
        )


def nowhere_else(executor: object) -> str:
    """Why an executor cannot be drained."""
    return (
        f"{executor} is the only executor that is left; there is nowhere to move its key groups "
        "to. Add an executor first."
    )


def _check_groups(groups: object, key_groups: int) -> None:
    if not isinstance(groups, list) or not groups:
        raise UsageError("key_groups= names no key group. Give a list of their numbers.")
    wrong = [g for g in groups if type(g) is not int or not 0 <= g < key_groups]
    if wrong:
        raise UsageError(
            f"key_groups= names {wrong[:5]}: key groups have the numbers 0 to {key_groups - 1}."
        )
