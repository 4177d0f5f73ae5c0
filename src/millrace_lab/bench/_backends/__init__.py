"""State engines behind one interface, for `bench backends`: the same operations on each.

A backend holds the state of whole numbers as keys. Each key has one of four kinds of state; what
fills, changes and reads it is the same for all, and so is what must be there afterwards:

| kind | filled with | an update | a read | total after `u` updates |
| --- | --- | --- | --- | --- |
| `value` | the key | adds 1 | the number | `key + u` |
| `list` | `key` to `key + 3` | appends 1 | the last element | `4 key + 6 + u` |
| `map` | 0 to 3 -> the key | adds 1 to entry 0 | entry 1 | `4 key + u` |
| `nested` | arrays in maps in a struct | reads, adds 1, writes | the number in it | `key + u` |

Each module is one engine and has one class, `Store`, which keeps the contract below. A part is a
state that some of the keys were moved to; key `k` belongs to part `k % parts`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from millrace.arrays import Int64Array

ENTRIES = 4
KINDS = ("value", "list", "map", "nested")
BACKENDS = ("millrace", "millrace_table", "dict", "rocksdb", "redis", "spark_store")
"""In the order in which they are shown; `millrace_table` is Millrace without per-key Python."""
_MODULES = {
    "millrace": "processor",
    "millrace_table": "table",
    "dict": "held",
    "rocksdb": "rocks",
    "redis": "redis",
    "spark_store": "spark_store",
}
LIVE, RESTORED, MERGED = "live", "restored", "merged"
STATES = (LIVE, RESTORED, MERGED)
"""What totals are asked of: the state itself, the last one restored, and the parts united."""


AT_ONCE = 10_000
"""Keys of one call to an engine that takes many."""


class Backend(Protocol):
    """The state of one kind, in one engine."""

    def fill(self, keys: Int64Array) -> None:
        """Make the state of keys that have none."""

    def update(self, keys: Int64Array) -> None:
        """Change the state of some keys, each once; all of them are there."""

    def read(self, keys: Int64Array) -> int:
        """The sum of what one read of each key's state gives."""

    def scan(self) -> int:
        """The sum of the totals of all keys, by one query over the whole state."""

    def checkpoint(self) -> int:
        """Make all that was changed durable; how many bytes were written for it."""

    def restore(self) -> None:
        """Make a second state of the last checkpoint, until it can be read."""

    def repartition(self, parts: int) -> None:
        """Divide the last checkpoint among some states of their own, until they can be read."""

    def merge(self) -> None:
        """Unite the parts in one state, until it can be read."""

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        """The total of each of some keys, in one of `STATES`."""

    def close(self) -> None: ...


def make(name: str, kind: str, folder: Path) -> Backend:
    """An empty state."""
    module = importlib.import_module(f"millrace_lab.bench._backends.{_MODULES[name]}")
    made: Backend = module.Store(kind, folder)
    return made


def chunks(keys: Int64Array, size: int = AT_ONCE) -> Iterator[list[int]]:
    """The keys of each call."""
    for first in range(0, len(keys), size):
        yield keys[first : first + size].tolist()


def kinds_of(name: str) -> tuple[str, ...]:
    """What a backend can hold."""
    return ("value",) if name == "millrace_table" else KINDS


def expected_total(kind: str, keys: Int64Array, updates: Int64Array) -> Int64Array:
    """What totals must be; `updates` are those of the keys."""
    if kind in ("value", "nested"):
        return keys + updates
    first = ENTRIES * keys + (ENTRIES * (ENTRIES - 1) // 2 if kind == "list" else 0)
    return first + updates


def expected_read(kind: str, keys: Int64Array, updates: Int64Array) -> int:
    """What a read of some keys must sum up to."""
    if kind in ("value", "nested"):
        return int((keys + updates).sum())
    if kind == "map":
        return int(keys.sum())
    return int(np.where(updates > 0, 1, keys + ENTRIES - 1).sum())
