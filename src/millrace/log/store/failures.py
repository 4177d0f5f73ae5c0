"""Errors of an operating system and of fsspec, as errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from millrace.errors import MissingFileError, StoreError, UnwritableLocationError

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
def explained(verb: str, full: str) -> Iterator[None]:
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
def reading(full: str, shown: str) -> Iterator[None]:
    """Like `explained`, but a file that does not exist is a `MissingFileError`."""
    with explained("read", full):
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"{shown} is missing") from error
