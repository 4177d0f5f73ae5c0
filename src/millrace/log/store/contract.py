"""What a store is: a folder of immutable files.

The contract is small on purpose, so that other stores are easy to write:

* `create` is atomic and fails if the file exists: of two drivers that commit an epoch, one wins;
* `put` writes a file under a name that nothing else uses; a crash may leave half a file behind;
* a file never changes once it is there, and is found by its path as soon as the call that wrote it
  has returned; a list may not show it yet.

Paths are relative to the root, with forward slashes.
"""

from __future__ import annotations

from typing import Protocol


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
