"""A store that is out of reach for a while, in every process at once.

`MILLRACE_STORE_OUTAGE` names a file, beside `MILLRACE_HOOKS=millrace_lab.faults.hooks`. While the
file is there, every operation of every local store raises; the file says what. The clients of
object stores raise errors of their own, which are no `OSError`: `client` is such a one.
"""

from __future__ import annotations

import os
from pathlib import Path

from millrace.errors import StoreError
from millrace.log.store import Store
from millrace_lab.faults import HOOKS

VARIABLE = "MILLRACE_STORE_OUTAGE"


class ClientFault(Exception):
    """What the client of an object store raises: neither an `OSError` nor one of Millrace's."""


KINDS: dict[str, type[Exception]] = {
    "store": StoreError,
    "system": TimeoutError,
    "client": ClientFault,
}
"""What an outage raises."""


class OutageStore:
    """Another store, out of reach while a file exists."""

    def __init__(self, store: Store, flag: Path) -> None:
        self._store = store
        self._flag = flag

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        self._reach("create", path).create(path, data)

    def put(self, path: str, data: memoryview | bytes) -> None:
        self._reach("write", path).put(path, data)

    def read(self, path: str) -> bytes:
        return self._reach("read", path).read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self._reach("read", path).read_range(path, offset, length)

    def size(self, path: str) -> int | None:
        return self._reach("look at", path).size(path)

    def list(self, folder: str) -> list[str]:
        return self._reach("list", folder).list(folder)

    def delete(self, path: str) -> None:
        self._reach("delete", path).delete(path)

    def local_path(self, path: str) -> str | None:
        return self._reach("map", path).local_path(path)

    def _reach(self, verb: str, path: str) -> Store:
        try:
            kind = self._flag.read_text()
        except FileNotFoundError:
            return self._store
        raise KINDS[kind](f"cannot {verb} {self.url}/{path}: the store is out of reach")


def environment(flag: Path) -> dict[str, str]:
    """The variables that make every local store depend on a file."""
    return {**HOOKS, VARIABLE: str(flag)}


def begin(flag: Path, kind: str) -> None:
    """From now on every operation raises what `KINDS` says."""
    temporary = flag.with_name(f".{flag.name}")
    temporary.write_text(kind)
    temporary.replace(flag)


def end(flag: Path) -> None:
    flag.unlink(missing_ok=True)


def interrupted(store: Store) -> Store:
    """The store, within reach of outages if the environment says so."""
    flag = os.environ.get(VARIABLE)
    return OutageStore(store, Path(flag)) if flag else store
