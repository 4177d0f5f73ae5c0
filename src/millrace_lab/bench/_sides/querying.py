"""A reader of state in a process of its own, without Spark: queries alone, and back to back."""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import Any

import millrace as mr


class Querying:
    """`querying`."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None

    def do_ready(self) -> bool:
        return True

    def do_pin(self) -> int:
        """Stay on the last core from now on; how many there are."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-1:])
        return len(cores)

    def do_opened(self, location: str, query: str, times: int) -> dict[str, Any]:
        """A query by a new reader, several times."""
        seconds, rows = [], None
        for _ in range(times):
            started = time.perf_counter()
            with mr.open(location) as reader:
                rows = reader.sql(query).to_pylist()
                seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "rows": rows}

    def do_warm(self, location: str, query: str, times: int) -> dict[str, Any]:
        """A query by a reader that stays open, several times after the first."""
        with mr.open(location) as reader:
            reader.sql(query)
            read = reader.snapshot.read_bytes
            seconds = []
            for _ in range(times):
                started = time.perf_counter()
                rows = reader.sql(query).to_pylist()
                seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "rows": rows, "bytes": read}

    def do_begin(self, location: str, query: str) -> None:
        """Query back to back, always at the last epoch, until asked to end."""
        self._loop = _Loop(location, query)
        self._loop.start()

    def do_end(self) -> dict[str, Any]:
        assert self._loop is not None
        return self._loop.end()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.end()


class _Loop(threading.Thread):
    def __init__(self, location: str, query: str) -> None:
        super().__init__(daemon=True)
        self._location = location
        self._query = query
        self._ended = threading.Event()
        self._seconds: list[float] = []
        self._seen: dict[int, list[dict[str, Any]]] = {}
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            with mr.open(self._location) as reader:
                while not self._ended.is_set():
                    started = time.perf_counter()
                    reader.refresh()
                    rows = reader.sql(self._query).to_pylist()
                    self._seconds.append(time.perf_counter() - started)
                    self._seen[int(reader.epoch)] = rows
        except Exception as error:
            self._failure = error

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        return {
            "queries": len(self._seconds),
            "seconds": statistics.median(self._seconds),
            "seen": self._seen,
        }
