"""Every request to a store, written down: what, when, how many bytes, how long.

Set `MILLRACE_STORE_RECORD` to a folder, beside `MILLRACE_HOOKS=millrace_lab.faults.hooks`, in the
environment of the driver and the executors. Each process writes a file of its own there, a line per
request, so processes do not wait for each other; `read` puts the lines of all into order.

What is written to Spark's part of a remote location is also copied into the folder, under the
location's last name, when the store has acknowledged it: so that its time can be read as that of a
file, and a benchmark that waits for a commit asks the store for nothing.

Invariant: a request that fails is written down too, and its error goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from millrace import clock
from millrace.log.layout import REQUESTS, SPARK
from millrace.log.store import Store
from millrace_lab.faults import HOOKS

VARIABLE = "MILLRACE_STORE_RECORD"
OPERATIONS = ("create", "put", "read", "read_range", "size", "list", "delete")

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One request to a store."""

    at: float
    """When it ended, in seconds since 1970."""
    operation: str
    path: str
    bytes: int
    seconds: float
    url: str
    """The root of the store that was asked."""

    @property
    def is_sparks(self) -> bool:
        """Whether it is about Spark's own logs."""
        return self._part == SPARK

    @property
    def is_inboxs(self) -> bool:
        """Whether it is a look for requests to the query: by the clock, with epochs and without."""
        return self._part == REQUESTS

    @property
    def _part(self) -> str:
        return self.path.partition("/")[0]


class RecordedStore:
    """Another store, whose requests are written down."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._record = _Record.of(folder)
        root, _, name = store.url.rstrip("/").rpartition("/")
        # A local location has Spark's files itself.
        self._copies = folder / name if "://" in root else None

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        self._timed("create", path, lambda: self._store.create(path, data), len(data))
        self._copy(path, data)

    def put(self, path: str, data: memoryview | bytes) -> None:
        size = memoryview(data).nbytes
        self._timed("put", path, lambda: self._store.put(path, data), size)
        self._copy(path, data)

    def read(self, path: str) -> bytes:
        return self._timed("read", path, lambda: self._store.read(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self._timed("read_range", path, lambda: self._store.read_range(path, offset, length))

    def size(self, path: str) -> int | None:
        return self._timed("size", path, lambda: self._store.size(path), 0)

    def list(self, folder: str) -> list[str]:
        return self._timed("list", folder, lambda: self._store.list(folder), 0)

    def delete(self, path: str) -> None:
        self._timed("delete", path, lambda: self._store.delete(path), 0)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)

    def _timed(self, what: str, path: str, ask: Callable[[], T], size: int | None = None) -> T:
        """Ask, and write it down; without a size it is that of the answer."""
        started = clock.stopwatch()
        answer: T | None = None
        try:
            answer = ask()
            return answer
        finally:
            length = size if size is not None else len(answer) if isinstance(answer, bytes) else 0
            took = clock.stopwatch() - started
            now = clock.now().timestamp()
            self._record.add(Request(now, what, path, length, took, self._store.url))

    def _copy(self, path: str, data: memoryview | bytes) -> None:
        if self._copies is None or not path.startswith(f"{SPARK}/"):
            return
        copy = self._copies / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)


class _Record:
    """The file of this process."""

    _all: dict[Path, _Record] = {}  # noqa: RUF012
    _lock = threading.Lock()

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owner = 0
        self._file: TextIO | None = None

    @classmethod
    def of(cls, folder: Path) -> _Record:
        with cls._lock:
            return cls._all.setdefault(folder, cls(folder))

    def add(self, request: Request) -> None:
        line = "\t".join(
            (
                *(f"{request.at:.6f}", request.operation, request.path, str(request.bytes)),
                *(f"{request.seconds:.6f}", request.url),
            )
        )
        with self._lock:
            # A Python worker of Spark is a fork of its daemon.
            if self._file is None or self._owner != os.getpid():
                self._owner = os.getpid()
                self._file = (self._folder / f"{self._owner}.tsv").open("a", buffering=1)
            self._file.write(f"{line}\n")


def environment(folder: Path) -> dict[str, str]:
    """The variables that have all requests written down in a folder."""
    return {**HOOKS, VARIABLE: str(folder)}


def recorded(store: Store) -> Store:
    """The store, with its requests written down if the environment says so."""
    folder = os.environ.get(VARIABLE)
    return RecordedStore(store, Path(folder)) if folder else store


def read(folder: Path) -> list[Request]:
    """What all processes have written down, in order of time."""
    found = [
        request
        for file in sorted(folder.glob("*.tsv"))
        for request in _parsed(file.read_text().splitlines(keepends=True))
    ]
    return sorted(found, key=lambda request: request.at)


def _parsed(lines: Iterable[str]) -> Iterable[Request]:
    for line in lines:
        # A process may be in the middle of its last line.
        if line.endswith("\n"):
            at, operation, path, size, seconds, url = line.rstrip("\n").split("\t")
            yield Request(float(at), operation, path, int(size), float(seconds), url)
