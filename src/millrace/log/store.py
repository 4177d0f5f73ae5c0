"""Where a location's files live: the local file system, or any file system fsspec knows.

The contract is small on purpose, so that other stores are easy to write:

* `create` is atomic and fails if the file exists: of two drivers that commit an epoch, one wins;
* `put` writes a file under a name that nothing else uses; a crash may leave half a file behind;
* a file never changes once it is there, and is found by its path as soon as the call that wrote it
  has returned; a list may not show it yet.

Paths are relative to the root, with forward slashes.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from millrace import hooks
from millrace.clock import fresh_id
from millrace.errors import (
    AlreadyExistsError,
    MissingFileError,
    StoreError,
    UnsafeStoreError,
    UnwritableLocationError,
)


class Store(Protocol):
    """A folder of immutable files."""

    @property
    def url(self) -> str: ...

    def create(self, path: str, data: bytes) -> None:
        """Write a whole, durable file that was not there, or raise `AlreadyExistsError`."""

    def put(self, path: str, data: memoryview | bytes) -> None:
        """Write a durable file whose name nothing else uses."""

    def read(self, path: str) -> bytes:
        """The whole file, or `MissingFileError`."""

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Some bytes of a file, or `MissingFileError`; fewer than asked for past its end."""

    def size(self, path: str) -> int | None:
        """The file's length, or None if it is not there."""

    def list(self, folder: str) -> list[str]:
        """Paths of all files below a folder; empty if there is no such folder."""

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""

    def local_path(self, path: str) -> str | None:
        """The file's path on this machine if it can be mapped, else None."""


def open_store(url: str) -> Store:
    """The store for a path or URL."""
    if not url or not isinstance(url, str):
        raise UnwritableLocationError(
            f"{url!r} is not a location. Give a directory or a URL, like '/data/totals' or "
            "'s3://bucket/totals'."
        )
    scheme = urlsplit(url).scheme
    if scheme in ("", "file") or (len(scheme) == 1 and os.name == "nt"):
        return hooks.opened(LocalStore(_local_root(url)))
    return hooks.opened(FsspecStore(url))


def _local_root(url: str) -> str:
    path = urlsplit(url).path if url.startswith("file:") else url
    return os.path.abspath(os.path.expanduser(path))


class LocalStore:
    """A directory. Files are written beside their place, synced, and linked into it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._made: set[str] = set()

    @property
    def url(self) -> str:
        return self.root

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _parent(self, full: str) -> None:
        folder = os.path.dirname(full)
        if folder not in self._made:
            _make_folders(folder)
            self._made.add(folder)

    def create(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with _explained("create", full):
            self._parent(full)
            temporary = f"{full}.{fresh_id()}.tmp"
            try:
                _write_synced(temporary, data)
                # link, not rename: it fails if the name is taken, and the content is whole.
                os.link(temporary, full)
            except FileExistsError as error:
                raise AlreadyExistsError(f"{full} exists already") from error
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            _sync_folder(os.path.dirname(full))

    def put(self, path: str, data: memoryview | bytes) -> None:
        full = self._full(path)
        with _explained("write", full):
            self._parent(full)
            _write_synced(full, data)
            _sync_folder(os.path.dirname(full))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with _reading(full, full), open(full, "rb") as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        full = self._full(path)
        with _reading(full, full), open(full, "rb") as file:
            return os.pread(file.fileno(), length, offset)

    def size(self, path: str) -> int | None:
        full = self._full(path)
        with _explained("look at", full):
            try:
                return os.stat(full).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str) -> list[str]:
        found = []
        full = self._full(folder)
        with _explained("list", full):
            # A folder that cannot be read must not look like an empty one.
            for directory, _, names in os.walk(full, onerror=_unless_gone):
                relative = os.path.relpath(directory, self.root)
                found += [os.path.normpath(os.path.join(relative, name)) for name in names]
        return sorted(found)

    def delete(self, path: str) -> None:
        with _explained("delete", self._full(path)), contextlib.suppress(FileNotFoundError):
            os.unlink(self._full(path))

    def local_path(self, path: str) -> str | None:
        return self._full(path)


class FsspecStore:
    """Any fsspec URL. Create-if-absent is the file system's own exclusive create."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        with _explained("open", url):
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
        with _explained("create", full):
            self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
            try:
                self._fs.pipe_file(full, data, mode="create")
            except FileExistsError as error:
                raise AlreadyExistsError(f"{full} exists already") from error

    def put(self, path: str, data: memoryview | bytes) -> None:
        full = self._full(path)
        with _explained("write", full):
            self._fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
            self._fs.pipe_file(full, bytes(data))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with _reading(full, f"{self._url}/{path}"):
            return bytes(self._fs.cat_file(full))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        full = self._full(path)
        with _reading(full, f"{self._url}/{path}"):
            return bytes(self._fs.cat_file(full, start=offset, end=offset + length))

    def size(self, path: str) -> int | None:
        full = self._full(path)
        with _explained("look at", full):
            try:
                return int(self._fs.size(full))
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[str]:
        full = self._full(folder)
        with _explained("list", full):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(full)
            except FileNotFoundError:
                return []
        return sorted(path[len(self._root) + 1 :] for path in found)

    def delete(self, path: str) -> None:
        with _explained("delete", self._full(path)), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    def local_path(self, path: str) -> str | None:
        return None

    def check_create(self) -> None:
        """Raise unless the file system creates a file if it is absent, in one step."""
        what = f"the file system of {self._url} ({type(self._fs).__name__})"
        if not _creates(type(self._fs)):
            raise UnsafeStoreError(
                f"{what} checks whether a file exists before writing it, so two queries could "
                "commit the same epoch. Use a store with a conditional write, such as S3, Google "
                "Cloud Storage or Azure, or a local or shared file system."
            )
        probe = f"probe-{fresh_id()}.tmp"
        self.create(probe, b"first")
        try:
            self.create(probe, b"second")
        except AlreadyExistsError:
            return
        finally:
            self.delete(probe)
        raise UnsafeStoreError(
            f"{what} has overwritten a file that it should have created only if absent, so two "
            "queries could commit the same epoch. Use another store, or a newer version of its "
            "fsspec package."
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


def check_create(store: Store) -> None:
    """Raise if two drivers could both commit to a store. Local files are linked into place."""
    if isinstance(store, FsspecStore):
        store.check_create()


def replace(store: Store, path: str, data: bytes) -> None:
    """Put a file in the place of another; a process that has the old one mapped keeps it."""
    local = store.local_path(path)
    if local is None:
        store.put(path, data)
        return
    draft = f"{path}.{fresh_id()}.tmp"
    store.create(draft, data)
    fresh = store.local_path(draft)
    assert fresh is not None
    os.replace(fresh, local)
    _sync_folder(os.path.dirname(local))


def _write_synced(full: str, data: memoryview | bytes) -> None:
    descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: str) -> None:
    """Make a folder and those above it; each is synced in its parent, or it may be lost."""
    if not folder or os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folders(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    _sync_folder(parent or os.curdir)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# ENOENT comes from a folder that has just been deleted, and from pseudo file systems like /proc.
_UNWRITABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOENT,
)


@contextlib.contextmanager
def _explained(verb: str, full: str) -> Iterator[None]:
    """Turn an operating system's error into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreError(
                f"no space left to {verb} {full}. Nothing is lost: free some space and start the "
                "query again; it continues from the last committed epoch."
            ) from error
        if error.errno in _UNWRITABLE:
            raise UnwritableLocationError(
                f"cannot {verb} {full}: {error.strerror}. Check the permissions and that the path "
                "is a directory on a writable file system."
            ) from error
        raise StoreError(f"cannot {verb} {full}: {error}") from error
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"cannot {verb} {full}: {error}. If the URL's scheme needs an fsspec package, such as "
            "s3fs or gcsfs, install it on the driver and the executors."
        ) from error


@contextlib.contextmanager
def _reading(full: str, shown: str) -> Iterator[None]:
    """Like `_explained`, but a file that does not exist is a `MissingFileError`."""
    with _explained("read", full):
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"{shown} is missing") from error
