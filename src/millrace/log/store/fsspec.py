"""Any other URL that fsspec knows, if its file system has an exclusive create of its own."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from millrace.errors import AlreadyExistsError, UnsafeStoreError
from millrace.log.store.failures import explained, reading


class FsspecStore:
    """Any fsspec URL. Create-if-absent is the file system's own exclusive create."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        with explained("open", url):
            # A list that is remembered would hide files that other processes have written.
            fs, root = fsspec.core.url_to_fs(self._url, use_listings_cache=False)
        self._fs: Any = fs
        self._root: str = root.rstrip("/")

    @property
    def url(self) -> str:
        return self._url

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def create(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with explained("create", full):
            self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
            try:
                self._fs.pipe_file(full, data, mode="create")
            except FileExistsError as error:
                raise AlreadyExistsError(f"{full} exists already") from error

    def put(self, path: str, data: memoryview | bytes) -> None:
        full = self._full(path)
        with explained("write", full):
            self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
            self._fs.pipe_file(full, bytes(data))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with reading(full, f"{self._url}/{path}"):
            return bytes(self._fs.cat_file(full))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        full = self._full(path)
        with reading(full, f"{self._url}/{path}"):
            return bytes(self._fs.cat_file(full, start=offset, end=offset + length))

    def size(self, path: str) -> int | None:
        full = self._full(path)
        with explained("look at", full):
            try:
                return int(self._fs.size(full))
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[str]:
        full = self._full(folder)
        with explained("list", full):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(full)
            except FileNotFoundError:
                return []
        return sorted(path[len(self._root) + 1 :] for path in found)

    def delete(self, path: str) -> None:
        with explained("delete", self._full(path)), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    def local_path(self, path: str) -> str | None:
        return None

    @property
    def description(self) -> str:
        """For messages."""
        return f"the file system of {self._url} ({type(self._fs).__name__})"

    def check_kind(self) -> None:
        """Raise unless the file system has a create of its own, in one step."""
        if not _creates(type(self._fs)):
            raise UnsafeStoreError(
                f"{self.description} checks whether a file exists before writing it, so two "
                "queries could commit the same epoch. Use a store with a conditional write, such "
                "as S3, Google Cloud Storage or Azure, or a local or shared file system."
            )


def _creates(kind: type[Any]) -> bool:
    """Whether a class of file systems has an exclusive create of its own.

    fsspec's fallback checks whether the file exists, and then writes it.
    """
    own = [getattr(kind, name, None) for name in ("_pipe_file", "pipe_file")]
    fallbacks = (AbstractFileSystem.pipe_file, AsyncFileSystem._pipe_file)
    return any(
        method is not None
        and method not in fallbacks
        and "mode" in inspect.signature(method).parameters
        for method in own
    )
