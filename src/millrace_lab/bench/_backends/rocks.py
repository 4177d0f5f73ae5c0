"""RocksDB in this process, by rocksdict: bytes for keys and values, many in a call.

A map is an entry per element, under the key and the element's own; a list is one value that an
update reads and writes whole, because rocksdict has no merge operator. A checkpoint is RocksDB's
own: a folder of links to files that never change, after what is in memory was written out. Parts
are databases of their own, which every entry is written to.
"""

from __future__ import annotations

import pickle
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import Checkpoint, Options, Rdict, WriteBatch, WriteOptions

from millrace.arrays import Int64Array
from millrace_lab.bench._backends import AT_ONCE, ENTRIES, LIVE, RESTORED, chunks
from millrace_lab.bench._backends.held import high, nested, total_of

Pair = tuple[bytes, bytes]


class Store:
    """`rocksdb`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._checkpoints = 0
        self._linked: set[str] = set()
        """Files that earlier checkpoints have."""
        self._state = _open(folder / "state")
        self._opened: dict[str, Any] = {}
        self._parts: list[Any] = []

    def fill(self, keys: Int64Array) -> None:
        _write(self._state, (pair for key in keys.tolist() for pair in self._made(key)))

    def _made(self, key: int) -> Iterator[Pair]:
        if self._kind == "map":
            for entry in range(ENTRIES):
                yield _key(key, entry), _packed(key)
        elif self._kind == "list":
            yield _key(key), _packed(*range(key, key + ENTRIES))
        elif self._kind == "nested":
            yield _key(key), pickle.dumps(nested(key), pickle.HIGHEST_PROTOCOL)
        else:
            yield _key(key), _packed(key)

    def update(self, keys: Int64Array) -> None:
        for chunk in chunks(keys):
            names = [_key(key, 0) if self._kind == "map" else _key(key) for key in chunk]
            found = self._state.get(names)
            pairs = ((name, self._changed(old)) for name, old in zip(names, found, strict=True))
            _write(self._state, pairs)

    def _changed(self, old: bytes) -> bytes:
        if self._kind == "list":
            return old + _packed(1)
        if self._kind == "nested":
            changed = nested(high(pickle.loads(old)) + 1)
            return pickle.dumps(changed, pickle.HIGHEST_PROTOCOL)
        return _packed(_number(old) + 1)

    def read(self, keys: Int64Array) -> int:
        total = 0
        for chunk in chunks(keys):
            names = [_key(key, 1) if self._kind == "map" else _key(key) for key in chunk]
            total += sum(map(self._seen, self._state.get(names)))
        return total

    def _seen(self, value: bytes) -> int:
        return high(pickle.loads(value)) if self._kind == "nested" else _number(value[-8:])

    def scan(self) -> int:
        return sum(self._total(value) for value in self._state.values())

    def _total(self, value: bytes) -> int:
        if self._kind == "nested":
            return high(pickle.loads(value))
        return int(np.frombuffer(value, ">i8").sum()) if self._kind == "list" else _number(value)

    @property
    def _last(self) -> Path:
        return self._folder / f"checkpoint-{self._checkpoints}"

    def checkpoint(self) -> int:
        self._state.flush(True)
        self._checkpoints += 1
        Checkpoint(self._state).create_checkpoint(str(self._last))
        written, files = 0, set()
        for path in self._last.iterdir():
            if path.suffix == ".sst":
                files.add(path.name)
            if path.name not in self._linked:
                written += path.stat().st_size
        self._linked = files
        before = self._folder / f"checkpoint-{self._checkpoints - 1}"
        shutil.rmtree(before, ignore_errors=True)
        return written

    def restore(self) -> None:
        # A checkpoint is elsewhere, and what is opened writes.
        shutil.copytree(self._last, self._folder / RESTORED)
        self._opened[RESTORED] = _open(self._folder / RESTORED)

    def repartition(self, parts: int) -> None:
        self._parts = [_open(self._folder / f"part-{part}") for part in range(parts)]
        source: Any = Rdict(str(self._last), _options())
        batches: list[list[Pair]] = [[] for _ in range(parts)]
        for name, value in source.items():
            part = int.from_bytes(name[:8], "big") % parts
            batches[part].append((name, value))
            if len(batches[part]) >= AT_ONCE:
                _write(self._parts[part], batches[part])
                batches[part] = []
        for target, rest in zip(self._parts, batches, strict=True):
            _write(target, rest)
            target.flush(True)
        source.close()

    def merge(self) -> None:
        merged = _open(self._folder / "merged")
        for part in self._parts:
            _write(merged, part.items())
        merged.flush(True)
        self._opened["merged"] = merged

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        held = self._state if state == LIVE else self._opened[state]
        if self._kind != "map":
            names = [_key(key) for key in keys.tolist()]
            return total_of(held.get(names), self._total, len(keys))
        names = [_key(key, entry) for key in keys.tolist() for entry in range(ENTRIES)]
        each = total_of(held.get(names), _number, len(names))
        totals: Int64Array = each.reshape(-1, ENTRIES).sum(axis=1)
        return totals

    def close(self) -> None:
        for opened in (self._state, *self._opened.values(), *self._parts):
            opened.close()


def _options() -> Options:
    return Options(raw_mode=True)


def _open(folder: Path) -> Any:
    """A database; its types say that a key may be a number, and raw ones are bytes."""
    opened: Any = Rdict(str(folder), _options())
    # What is not in a checkpoint is lost in a crash, as it is for the others.
    unlogged: Any = WriteOptions()
    unlogged.disable_wal = True
    opened.set_write_options(unlogged)
    return opened


def _key(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}q", *numbers)


def _packed(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}q", *numbers)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _write(store: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
    batch = WriteBatch(raw_mode=True)
    for name, value in pairs:
        batch.put(name, value)
        if batch.len() >= AT_ONCE:
            store.write(batch)
            batch = WriteBatch(raw_mode=True)
    if not batch.is_empty():
        store.write(batch)
