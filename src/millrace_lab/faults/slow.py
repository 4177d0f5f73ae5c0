"""A store that answers later: a local one behaves like a remote one, with nothing to map.

For measurements. Set `MILLRACE_STORE_LATENCY_MS` and `MILLRACE_STORE_MB_PER_S`, beside
`MILLRACE_HOOKS=millrace_lab.faults.hooks`, in the environment of the driver and the executors, and
every location is seen through this.
"""

from __future__ import annotations

import os

from millrace import clock
from millrace.log.store import Store
from millrace_lab.faults import HOOKS

LATENCY = "MILLRACE_STORE_LATENCY_MS"
RATE = "MILLRACE_STORE_MB_PER_S"


class SlowStore:
    """Another store, slower."""

    def __init__(self, store: Store, latency_ms: float, mb_per_s: float) -> None:
        self._store = store
        self._latency = latency_ms / 1e3
        self._rate = mb_per_s * 1e6

    def _wait(self, size: int) -> None:
        clock.sleep(self._latency + (size / self._rate if self._rate else 0.0))

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        self._wait(len(data))
        self._store.create(path, data)

    def put(self, path: str, data: memoryview | bytes) -> None:
        self._wait(len(data))
        self._store.put(path, data)

    def read(self, path: str) -> bytes:
        data = self._store.read(path)
        self._wait(len(data))
        return data

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        self._wait(length)
        return self._store.read_range(path, offset, length)

    def size(self, path: str) -> int | None:
        self._wait(0)
        return self._store.size(path)

    def list(self, folder: str) -> list[str]:
        self._wait(0)
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        self._wait(0)
        self._store.delete(path)

    def local_path(self, path: str) -> str | None:
        return None


def environment(latency_ms: float, mb_per_s: float) -> dict[str, str]:
    """The variables that make every store this slow."""
    return {**HOOKS, LATENCY: str(latency_ms), RATE: str(mb_per_s)}


def slowed(store: Store) -> Store:
    """The store, slowed down if the environment says so."""
    latency, rate = os.environ.get(LATENCY), os.environ.get(RATE)
    if latency is None and rate is None:
        return store
    return SlowStore(store, float(latency or 0), float(rate or 0))
