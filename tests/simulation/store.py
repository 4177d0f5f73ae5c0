"""A store in memory."""

from __future__ import annotations

import os

from millrace.errors import AlreadyExistsError, MissingFileError


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
