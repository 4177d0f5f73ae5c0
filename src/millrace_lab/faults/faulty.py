"""A store that fails: what network, disk and the other side of a request may do to a caller.

For tests and `millrace soak`. Set `MILLRACE_STORE_FAULTS`, such as `seed=7,error=0.02,stale=0.2`,
beside `MILLRACE_HOOKS=millrace_lab.faults.hooks`, in the environment of the driver and the
executors, and every local location is seen through this.

What it never does is break the contract of a store: a name is created once, a file that a call
returned from is whole and readable by its path. Everything else may happen: an error although the
file is there (`after`), half a file and an error (`partial`), an error now and the file a while
later, in whatever order (`late`), a request that is sent twice, so that its second copy finds the
first (`twice`), lists without the newest files (`stale`), and delay (`slow`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from millrace import clock
from millrace.errors import StoreError, UsageError
from millrace.log.store import Store
from millrace_lab.faults import HOOKS

VARIABLE = "MILLRACE_STORE_FAULTS"

NEWEST = 4
"""A list may lack this many files at the end of each folder; it never lacks the first."""

LATE_SECONDS = 2.0
"""A request that seemed lost takes effect within this time, or never."""


@dataclass(frozen=True)
class Faults:
    """How often, in requests of which it can happen to."""

    error: float = 0.0
    """Nothing was done."""
    after: float = 0.0
    """All was done, and the caller does not get to know."""
    partial: float = 0.0
    """Half a file was written."""
    late: float = 0.0
    """It will be done, after requests that come later."""
    twice: float = 0.0
    """The request arrived twice."""
    stale: float = 0.0
    """The newest files are missing from a list."""
    slow: float = 0.0
    """The request takes `slow_ms` more."""
    slow_ms: float = 200.0
    seed: str = "0"

    @staticmethod
    def parse(text: str) -> Faults:
        """`"seed=7,error=0.02"`"""
        known = {field.name for field in fields(Faults)}
        found: dict[str, str] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in known:
                raise UsageError(
                    f"{VARIABLE}={text!r}: there is no fault {name!r}; there are "
                    f"{', '.join(sorted(known))}."
                )
            found[name] = value
        seed = found.pop("seed", "0")
        try:
            return Faults(**{name: float(value) for name, value in found.items()}, seed=seed)
        except ValueError as error:
            raise UsageError(f"{VARIABLE}={text!r}: {error}.") from error

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items() if value)


class FaultyStore:
    """Another store, which fails now and then while it is `faulty`."""

    def __init__(self, store: Store, faults: Faults, dice: clock.Dice | None = None) -> None:
        self._store = store
        self._faults = faults
        self._dice = dice or clock.dice(f"{faults.seed} {os.getpid()}")
        self._lock = threading.RLock()
        self._pending: list[tuple[float, Callable[[], None]]] = []
        self.faulty = True
        self.faults = 0
        """How often something went wrong."""

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        self._settle()
        if self._hit(self._faults.partial):
            # A file that is created is whole or not there: nothing but the attempt stays behind.
            self._fail("create", path)
        if self._hit(self._faults.late):
            self._later(lambda: self._store.create(path, data))
            self._fail("create", path)
        self._store.create(path, data)
        if self._hit(self._faults.twice):
            self._store.create(path, data)
        if self._hit(self._faults.after):
            self._fail("create", path)

    def put(self, path: str, data: memoryview | bytes) -> None:
        self._settle()
        if self._hit(self._faults.partial):
            with self._lock:
                length = self._dice.randint(0, len(data))
            self._store.put(path, data[:length])
            self._fail("write", path)
        if self._hit(self._faults.late):
            kept = bytes(data)
            self._later(lambda: self._store.put(path, kept))
            self._fail("write", path)
        self._store.put(path, data)
        if self._hit(self._faults.twice):
            self._store.put(path, data)
        if self._hit(self._faults.after):
            self._fail("write", path)

    def read(self, path: str) -> bytes:
        self._ask("read", path)
        return self._store.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        self._ask("read", path)
        return self._store.read_range(path, offset, length)

    def size(self, path: str) -> int | None:
        self._ask("look at", path)
        return self._store.size(path)

    def list(self, folder: str) -> list[str]:
        self._ask("list", folder)
        found = self._store.list(folder)
        if not self._hit(self._faults.stale):
            return found
        newest: dict[str, list[str]] = {}
        for path in found:
            newest.setdefault(path.rpartition("/")[0], []).append(path)
        with self._lock:
            hidden = {
                path
                for paths in newest.values()
                for path in paths[1:][-NEWEST:]
                if self._dice.random() < 0.5
            }
        return [path for path in found if path not in hidden]

    def delete(self, path: str) -> None:
        self._ask("delete", path)
        self._store.delete(path)
        if self._hit(self._faults.after):
            self._fail("delete", path)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)

    def _ask(self, verb: str, path: str) -> None:
        self._settle()
        if self._hit(self._faults.error):
            self._fail(verb, path)

    def _hit(self, rate: float) -> bool:
        if not self.faulty or not rate:
            return False
        with self._lock:
            hit = self._dice.random() < rate
            self.faults += hit
        return hit

    def _fail(self, verb: str, path: str) -> None:
        raise StoreError(f"cannot {verb} {self.url}/{path}: an injected fault")

    def _later(self, act: Callable[[], None]) -> None:
        with self._lock:
            due = clock.stopwatch() + self._dice.random() * LATE_SECONDS
            self._pending.append((due, act))

    def _settle(self) -> None:
        """Do what is due of the requests that were thought lost; and take time."""
        with self._lock:
            now = clock.stopwatch()
            due = sorted((p for p in self._pending if p[0] <= now), key=lambda p: p[0])
            self._pending = [p for p in self._pending if p[0] > now]
        for _, act in due:
            try:
                act()
            except StoreError:
                # Nobody waits for it any more; a name that is taken stays taken.
                continue
        with self._lock:
            slow = self.faulty and self._dice.random() < self._faults.slow
        if slow:
            clock.sleep(self._faults.slow_ms / 1e3)


def environment(faults: str) -> dict[str, str]:
    """The variables that make every local store fail so."""
    return {**HOOKS, VARIABLE: faults}


_stores: dict[tuple[int, str], FaultyStore] = {}


def disturbed(store: Store) -> Store:
    """The store, with faults if the environment says so. One per process, so that dice roll on."""
    text = os.environ.get(VARIABLE)
    if not text:
        return store
    key = (os.getpid(), store.url)
    if key not in _stores:
        _stores[key] = FaultyStore(store, Faults.parse(text))
    return _stores[key]
