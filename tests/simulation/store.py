"""A store in memory, and one that fails: errors before and after the fact, half a file, delays."""

from __future__ import annotations

import os
import random

from millrace import clock
from millrace.errors import AlreadyExistsError, MissingFileError, StoreError


class MemoryStore:
    """Files in a dict. With a folder, segments are files there too, so that they can be mapped."""

    def __init__(self, url: str, folder: str | None) -> None:
        self.url = url
        self._folder = folder
        self._files: dict[str, bytes] = {}

    def create(self, path: str, data: bytes) -> None:
        if path in self._files:
            raise AlreadyExistsError(f"{path} exists already")
        self._files[path] = data

    def put(self, path: str, data: memoryview | bytes) -> None:
        self._files[path] = bytes(data)
        if self._folder is not None:
            with open(self._full(path), "wb") as file:
                file.write(data)

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError as error:
            raise MissingFileError(f"{path} is missing") from error

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read(path)[offset : offset + length]

    def size(self, path: str) -> int | None:
        return len(self._files[path]) if path in self._files else None

    def list(self, folder: str) -> list[str]:
        return sorted(p for p in self._files if not folder or p.startswith(f"{folder}/"))

    def delete(self, path: str) -> None:
        if self._files.pop(path, None) is not None and self._folder is not None:
            full = self._full(path)
            if os.path.exists(full):
                os.unlink(full)

    def local_path(self, path: str) -> str | None:
        return None if self._folder is None else self._full(path)

    def _full(self, path: str) -> str:
        assert self._folder is not None
        return os.path.join(self._folder, path.replace("/", "_"))


class FaultyStore:
    """Another store, which fails now and then while it is `faulty`."""

    def __init__(self, store: MemoryStore, rng: random.Random, rate: float) -> None:
        self._store = store
        self._rng = rng
        self._rate = rate
        self.faulty = False
        self.faults = 0

    def _fails(self, path: str) -> bool:
        if not self.faulty:
            return False
        clock.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.5)))
        if self._rng.random() >= self._rate:
            return False
        self.faults += 1
        return True

    def _fail(self, verb: str, path: str) -> None:
        raise StoreError(f"cannot {verb} {path}: simulated")

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        if not self._fails(path):
            self._store.create(path, data)
            return
        if self._rng.random() < 0.5:
            # The file is there, and the writer does not get to know.
            self._store.create(path, data)
        self._fail("create", path)

    def put(self, path: str, data: memoryview | bytes) -> None:
        if not self._fails(path):
            self._store.put(path, data)
            return
        self._store.put(path, data[: self._rng.randint(0, len(data))])
        self._fail("write", path)

    def read(self, path: str) -> bytes:
        if self._fails(path):
            self._fail("read", path)
        return self._store.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if self._fails(path):
            self._fail("read", path)
        return self._store.read_range(path, offset, length)

    def size(self, path: str) -> int | None:
        if self._fails(path):
            self._fail("look at", path)
        return self._store.size(path)

    def list(self, folder: str) -> list[str]:
        if self._fails(folder):
            self._fail("list", folder)
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        if self._fails(path):
            self._fail("delete", path)
        self._store.delete(path)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)
