"""A state engine in a process of its own: `backend-NAME`; see `_backends`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.bench import _backends


class BackendSide:
    """Times are taken here, so that the way to this process is not in them."""

    def __init__(self, name: str, workdir: Path) -> None:
        self._name = name
        self._workdir = workdir
        self._backend: _backends.Backend | None = None

    def do_ready(self) -> str:
        return "ready"

    def do_begin(self, kind: str, keys: int) -> float:
        """A new state of a kind; how long it took to make it."""
        self._end()
        self._keys = keys
        self._folder = self._workdir / kind
        self._folder.mkdir()
        self._backend = _backends.make(self._name, kind, self._folder)
        backend = self._backend
        seconds = _timed(lambda: backend.fill(np.arange(keys)))
        backend.checkpoint()
        return seconds

    def do_update(self, seed: int, number: int) -> dict[str, float]:
        """Change some keys, and make it durable."""
        keys = drawn(seed, self._keys, number)
        seconds = _timed(lambda: self._state.update(keys))
        started = time.perf_counter()
        written = self._state.checkpoint()
        took = time.perf_counter() - started
        return {"update_s": seconds, "checkpoint_s": took, "checkpoint_bytes": written}

    def do_read(self, seed: int, number: int) -> dict[str, Any]:
        return _answered(lambda: self._state.read(drawn(seed, self._keys, number)))

    def do_scan(self) -> dict[str, Any]:
        return _answered(self._state.scan)

    def do_move(self, what: str, parts: int) -> float:
        """Restore, repartition or merge; the seconds it took."""
        state = self._state
        if what == "repartition":
            return _timed(lambda: state.repartition(parts))
        return _timed(state.restore if what == "restore" else state.merge)

    def do_totals(self, state: str, path: str) -> None:
        """Write the totals of all keys to a file."""
        np.save(path, self._state.totals(state, np.arange(self._keys)))

    def do_end(self) -> None:
        self._end()

    @property
    def _state(self) -> _backends.Backend:
        assert self._backend is not None, "not begun"
        return self._backend

    def _end(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
            shutil.rmtree(self._folder)

    def close(self) -> None:
        self._end()


def drawn(seed: int, keys: int, number: int) -> Int64Array:
    """Some keys at random, none twice."""
    chosen: Int64Array = np.random.default_rng(seed).choice(keys, number, replace=False)
    return chosen


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _answered(action: Callable[[], int]) -> dict[str, Any]:
    started = time.perf_counter()
    answer = action()
    return {"seconds": time.perf_counter() - started, "answer": answer}
