"""This machine's copies of a remote store's segments, filled page by page.

A segment's copy is a sparse file of the segment's size. A page is fetched by a range read when it
is first needed, and written at its own place. Its checksum, which is verified anyway, shows whether
it is there: a hole, half a page after a crash and a damaged disk all mean that it is fetched again.
Processes on one machine share the copies; writing the same bytes twice does no harm.

Invariant: a copy never changes its size, which is part of its name, and is only ever written to by
system calls. Mapped memory beyond a file's end, or of a file for which there is no space, would
end the process.

Spark ends workers that are idle for a minute, and their replicas with them. The copies stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import pyarrow as pa

from millrace.errors import (
    CorruptSegmentError,
    MissingFileError,
    StoreError,
    UnsafeFolderError,
)
from millrace.ids import Epoch
from millrace.log.layout import segment_epoch
from millrace.log.mapping import map_file
from millrace.log.store import Store

VARIABLE = "MILLRACE_CACHE_DIR"
"""The folder for copies; default: a folder per user in the temporary directory."""

READERS = 8
"""Ranges that are fetched at the same time."""
COALESCE = 64 * 1024
"""Ranges with at most this many bytes between them are fetched in one request."""

LARGE = 64 << 20
"""A segment of more bytes is asked for its length before anything is read of it."""

_log = logging.getLogger("millrace")


class SegmentCopy:
    """A sparse copy of a remote segment."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._full = _copy_path(store, path, size)
        if size > LARGE and not os.path.exists(self._full):
            _check_length(store, path, size)
        self._identity: tuple[int, int] | None = None
        file = -1
        try:
            os.makedirs(os.path.dirname(self._full), exist_ok=True)
            file = os.open(self._full, os.O_RDWR | os.O_CREAT, 0o600)
            if os.fstat(file).st_size != size:
                os.truncate(file, size)
            self._map = map_file(file, size, writable=True)
            self._identity = _identity(file)
        except OSError as error:
            _log.warning("no copies of segments on this machine, reading into memory: %s", error)
            self._map = memoryview(mmap.mmap(-1, size))
        finally:
            if file >= 0:
                os.close(file)

    @property
    def data(self) -> memoryview:
        """All bytes of the segment, whether they have been fetched or not."""
        return self._map.toreadonly()

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fill (offset, length) ranges from the store."""
        wanted = coalesced(ranges)
        if len(wanted) == 1:
            self._fetch(wanted[0])
            return
        with ThreadPoolExecutor(min(READERS, len(wanted))) as readers:
            for _ in readers.map(self._fetch, wanted):
                pass

    def _fetch(self, wanted: tuple[int, int]) -> None:
        offset, length = wanted
        # A file that was cut short gives less; its checksums show it.
        found = self._store.read_range(self._path, offset, length)
        if self._identity is None or not self._write(offset, found):
            self._map[offset : offset + len(found)] = found

    def _write(self, offset: int, found: bytes) -> bool:
        """Write to the copy's file; whether it is still there."""
        try:
            file = os.open(self._full, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if _identity(file) != self._identity:
                return False
            left = memoryview(found)
            while left:
                done = os.pwrite(file, left, offset)
                offset, left = offset + done, left[done:]
            return True
        except OSError as error:
            raise StoreError(
                f"cannot keep pages of {self._path} on this machine, in {self._full}: "
                f"{error.strerror}. Make room there, or name another folder in {VARIABLE}."
            ) from error
        finally:
            os.close(file)


def keep(store: Store, path: str, data: memoryview) -> None:
    """Keep what this machine is writing to a remote store: it will not be fetched from there.

    Half of it, after a crash, is like any other copy with holes.
    """
    full = _copy_path(store, path, len(data))
    try:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        file = os.open(full, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.truncate(file, len(data))
            at = 0
            while at < len(data):
                at += os.pwrite(file, data[at:], at)
        finally:
            os.close(file)
    except OSError as error:
        _log.warning("no copy of %s on this machine, it will be fetched: %s", path, error)


def _copy_path(store: Store, path: str, size: int) -> str:
    return os.path.join(copies_of(store), f"{path}.{size}")


def _check_length(store: Store, path: str, size: int) -> None:
    """Raise if a file is not as long as its manifest says, before room is made for it."""
    found = store.size(path)
    if found is None:
        raise MissingFileError(f"{store.url}/{path} is missing")
    if found != size:
        raise CorruptSegmentError(
            f"segment {store.url}/{path} has {found} bytes, its manifest says {size}. Restore it "
            "from a backup, or open an earlier epoch that does not use it."
        )


def _identity(file: int) -> tuple[int, int]:
    """What distinguishes a file from another of the same name."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def coalesced(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending (offset, length) ranges, with near ones joined."""
    joined: list[tuple[int, int]] = []
    for offset, length in sorted(r for r in ranges if r[1]):
        if joined and offset <= joined[-1][0] + joined[-1][1] + COALESCE:
            start = joined[-1][0]
            end = max(start + joined[-1][1], offset + length)
            joined[-1] = (start, end - start)
        else:
            joined.append((offset, length))
    return joined


def _root() -> str:
    """The folder for copies: the one that was named, else one in the shared temporary folder."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return named
    root = os.path.join(tempfile.gettempdir(), f"millrace-{os.geteuid()}")
    _own(root)
    return root


def _own(folder: str) -> None:
    """Make a folder that only this user can use, or raise if another user made it.

    Anyone can create any name in the shared temporary folder, with their own files behind it.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    is_private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private:
        return
    raise UnsafeFolderError(
        f"{folder} is not a folder of this user's alone, so segments cannot be kept there. "
        f"Remove it (or chmod 700 it, if it is yours), or name another folder in {VARIABLE}."
    )


def copies_of(store: Store) -> str:
    """The folder with this machine's copies of a store's segments."""
    return os.path.join(_root(), hashlib.sha256(store.url.encode()).hexdigest()[:16])


@contextlib.contextmanager
def scratch(on_disk: bool) -> Iterator[tuple[pa.NativeFile, Callable[[], pa.Buffer]]]:
    """Where to write, and what gives all that was written; the bytes outlive the block.

    On disk, it is a file without a name, beside the copies, which the bytes are a mapping of.
    """
    file = _nameless() if on_disk else None
    if file is None:
        memory = pa.BufferOutputStream()
        yield memory, memory.getvalue
        return
    with file:
        sink = pa.PythonFile(file, "w")

        def mapped() -> pa.Buffer:
            file.flush()
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

        try:
            yield sink, mapped
        except OSError as error:
            raise StoreError(
                f"cannot assemble a segment in {_root()}: {error.strerror or error}. Make room "
                f"there, or name another folder in {VARIABLE}."
            ) from error


def _nameless() -> IO[bytes] | None:
    try:
        os.makedirs(_root(), exist_ok=True)
        return tempfile.TemporaryFile(dir=_root())
    except OSError as error:
        _log.warning("no folder for large segments, assembling them in memory: %s", error)
        return None


def prune(store: Store, live: Collection[str], version: Epoch) -> int:
    """Delete the copies of segments that are not live at a version; how many there were.

    Those of later epochs stay: they were just written. A process that has one mapped keeps it
    until it unmaps it.
    """
    root = copies_of(store)
    unused = []
    for folder, _, names in os.walk(root):
        for name in names:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root).rpartition(".")[0]
            if path not in live and segment_epoch(path) <= version:
                unused.append(full)
    for full in unused:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(full)
    return len(unused)
