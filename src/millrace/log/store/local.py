"""A directory: a local disk, or a file system that all machines share."""

from __future__ import annotations

import contextlib
import errno
import os
from urllib.parse import urlsplit

from millrace.clock import fresh_id
from millrace.errors import AlreadyExistsError
from millrace.log.store.failures import explained, reading


def local_root(url: str) -> str:
    """The directory that a path or a `file:` URL means."""
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
        with explained("create", full):
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
            sync_folder(os.path.dirname(full))

    def put(self, path: str, data: memoryview | bytes) -> None:
        full = self._full(path)
        with explained("write", full):
            self._parent(full)
            _write_synced(full, data)
            sync_folder(os.path.dirname(full))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with reading(full, full), open(full, "rb") as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        full = self._full(path)
        with reading(full, full), open(full, "rb") as file:
            return os.pread(file.fileno(), length, offset)

    def size(self, path: str) -> int | None:
        full = self._full(path)
        with explained("look at", full):
            try:
                return os.stat(full).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str) -> list[str]:
        found = []
        full = self._full(folder)
        with explained("list", full):
            # A folder that cannot be read must not look like an empty one.
            for directory, _, names in os.walk(full, onerror=_unless_gone):
                relative = os.path.relpath(directory, self.root)
                found += [os.path.normpath(os.path.join(relative, name)) for name in names]
        return sorted(found)

    def delete(self, path: str) -> None:
        with explained("delete", self._full(path)), contextlib.suppress(FileNotFoundError):
            os.unlink(self._full(path))

    def local_path(self, path: str) -> str | None:
        return self._full(path)


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
    sync_folder(parent or os.curdir)


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
