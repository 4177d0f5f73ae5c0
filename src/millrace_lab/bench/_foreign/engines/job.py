"""The job all sides of `millrace bench peers` do: a count and a sum per key, of the same rows.

Row number `v` has a key and an amount that are arithmetic on 64-bit integers, so that every engine
makes the rows by itself from a sequence of numbers and none has to parse them. The first rows make
one key each, in order; after that, keys are drawn from all of them, by squares modulo a prime,
which look like chance.

A side answers `counted` with a file of all its final counts, and `timed` with windows: how many
rows it took in between two points in time.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FACTOR, SHIFT, PRIME = 48_271, 11, 2_147_483_647
AMOUNTS = 1_000
PARALLELISM = 2
INTERVAL_S = 1.0
"""How often state is made durable by engines that do so by the clock."""

_X = f"MOD(v * CAST({FACTOR} AS BIGINT) + CAST({SHIFT} AS BIGINT), CAST({PRIME} AS BIGINT))"
_DRAWN = f"MOD(MOD({_X} * {_X}, CAST({PRIME} AS BIGINT)), CAST({{keys}} AS BIGINT))"
KEY_SQL = f"CASE WHEN v < {{keys}} THEN v ELSE {_DRAWN} END"
AMOUNT_SQL = f"MOD(v, CAST({AMOUNTS} AS BIGINT))"
"""In SQL, of a 64-bit column `v`."""


def key_of(v: int, keys: int) -> int:
    """The key of row number `v`."""
    if v < keys:
        return v
    x = (v * FACTOR + SHIFT) % PRIME
    return x * x % PRIME % keys


def amount_of(v: int) -> int:
    """The amount of row number `v`."""
    return v % AMOUNTS


def write_counts(path: str, counts: Iterable[tuple[int, int, int]]) -> int:
    """Write keys with their counts and sums, as 64-bit integers; returns how many there are."""
    flat = array("q")
    for row in counts:
        flat.extend(row)
    with Path(path).open("wb") as file:
        flat.tofile(file)
    return len(flat) // 3


def read_counts(path: str) -> list[tuple[int, int, int]]:
    """What `write_counts` wrote."""
    flat = array("q")
    flat.frombytes(Path(path).read_bytes())
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


class Marks:
    """How many rows each worker of a job has taken in, and when: a file shared by processes."""

    _ENTRY = struct.Struct("qd")

    def __init__(self, path: str, workers: int) -> None:
        size = self._ENTRY.size * workers
        file = Path(path)
        if not file.exists():
            file.write_bytes(bytes(size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), size)
        self._workers = workers

    def put(self, worker: int, rows: int, at: float | None = None) -> None:
        when = time.time() if at is None else at
        self._ENTRY.pack_into(self._shared, worker * self._ENTRY.size, rows, when)

    def get(self) -> tuple[float, int]:
        """The time of the last mark, and the rows of all workers."""
        entries = [
            self._ENTRY.unpack_from(self._shared, worker * self._ENTRY.size)
            for worker in range(self._workers)
        ]
        return max(at for _, at in entries), sum(rows for rows, _ in entries)


def measure(
    mark: Callable[[], tuple[float, int]],
    alive: Callable[[], bool],
    *,
    fill: int,
    warm_s: float,
    windows: int,
    window_s: float,
) -> list[dict[str, Any]]:
    """The windows of a running job, once it has taken in `fill` rows and is warm.

    `mark` gives a time and the rows taken in until then. A window is at least `window_s` long and
    lasts until the next mark.
    """
    benchmark = os.getppid()

    def wait(until: Callable[[float, int], bool]) -> tuple[float, int]:
        while True:
            if not alive():
                raise RuntimeError("the job has ended before it was measured")
            if os.getppid() != benchmark:
                raise RuntimeError("the benchmark has ended")
            at, rows = mark()
            if until(at, rows):
                return at, rows
            time.sleep(0.05)

    first, _ = wait(lambda at, rows: rows > 0)
    begin, before = wait(lambda at, rows: at >= first + warm_s and rows >= fill)
    found = []
    for _ in range(windows):
        started, had = begin, before
        begin, before = wait(lambda at, rows: at >= started + window_s and rows > had)  # noqa: B023
        found.append({"rows": before - had, "begin": started, "end": begin})
    return found
