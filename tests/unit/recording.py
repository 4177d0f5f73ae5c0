"""A store that writes down what it is asked for."""

from __future__ import annotations

from millrace.log import Store


class RecordingStore:
    """Another store; `asked` has a verb and a path for every request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, path: str, data: bytes) -> None:
        self.asked.append(("create", path))
        self._store.create(path, data)

    def put(self, path: str, data: memoryview | bytes) -> None:
        self.asked.append(("put", path))
        self._store.put(path, data)

    def read(self, path: str) -> bytes:
        self.asked.append(("read", path))
        return self._store.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        self.asked.append(("read", path))
        return self._store.read_range(path, offset, length)

    def size(self, path: str) -> int | None:
        self.asked.append(("size", path))
        return self._store.size(path)

    def list(self, folder: str) -> list[str]:
        self.asked.append(("list", folder))
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        self.asked.append(("delete", path))
        self._store.delete(path)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)
