"""What a manifest says of a segment's file, checked: its path, its pages, its checksums.

The entry itself is in `segment`; here is what its parts must be, so that nothing outside of the
location is opened, and nothing outside of the file is read.
"""

from __future__ import annotations

import base64
from typing import Any

from millrace.errors import MalformedError
from millrace.fields import UINT64, integer, items, text
from millrace.log.layout import SEGMENTS


def pages_of(data: list[Any], size: int) -> tuple[tuple[int, int, int], ...]:
    """Pages that follow each other within a file."""
    pages = []
    following = 0
    for page in data:
        offset, length, checksum = items(page, "a page", 3)
        integer(offset, "the offset of a page", following, size)
        integer(length, "the length of a page", 1, size - offset)
        pages.append((offset, length, integer(checksum, "a page's checksum", 0, UINT64)))
        following = offset + length
    return tuple(pages)


def sums_of(encoded: Any) -> str:
    """Checksums of columns, if they are any."""
    try:
        whole = len(base64.b64decode(text(encoded, "a page's columns"), validate=True)) % 4 == 0
    except ValueError as error:
        raise MalformedError(f"the checksums of a page's columns: {error}") from error
    if not whole:
        raise MalformedError("the checksums of a page's columns are cut short")
    return str(encoded)


def path_within(path: str) -> str:
    """The path, if it is one of this location's segments: a checksum does not make it safe."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != SEGMENTS or not _NOT_A_PART.isdisjoint(parts) or "\0" in path:
        raise MalformedError(
            f"it names the segment {path!r}, which is not below {SEGMENTS!r} of its location. Do "
            "not trust this location"
        )
    return path


_NOT_A_PART = frozenset(("", ".", ".."))
