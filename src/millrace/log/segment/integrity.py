"""Checksums of a segment: of its pages, of the columns in a page, of all that is not a page.

All are XXH3. Pages and frame have 64 bits, columns 32.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pyarrow as pa
import xxhash

from millrace.log.segment.entry import SegmentEntry


def checksum(view: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(view)


def frame_hash(view: memoryview, pages: Sequence[tuple[int, int, int]]) -> int:
    digest = xxhash.xxh3_64()
    at = 0
    for offset, length, _ in pages:
        digest.update(view[at:offset])
        at = offset + length
    digest.update(view[at:])
    return digest.intdigest()


def page_is_whole(entry: SegmentEntry, number: int, data: bytes | memoryview) -> bool:
    """Whether a page of a file is what the manifest says; the file may be cut short."""
    offset, length, expected = entry.pages[number]
    return checksum(memoryview(data)[offset : offset + length]) == expected


def with_parts(entry: SegmentEntry, old: bytes, new: bytes) -> bytes | None:
    """A file with the whole pages of an old one, and the rest of a new one of the same layout.

    None if that is not the file that the manifest describes.
    """
    made = bytearray(new)
    for number, (offset, length, _) in enumerate(entry.pages):
        if page_is_whole(entry, number, old):
            made[offset : offset + length] = old[offset : offset + length]
    view = memoryview(made)
    whole = (
        len(made) == entry.bytes
        and frame_hash(view, entry.pages) == entry.frame_hash
        and all(page_is_whole(entry, number, view) for number in range(len(entry.pages)))
    )
    return bytes(made) if whole else None


def column_sums(page: pa.Buffer, schema: pa.Schema) -> str:
    """Checksums of a page's header and of its columns, in order: 32 bits each, in base64."""
    view = memoryview(page)
    spans = [(0, header_length(view)), *column_spans(page, schema)]
    sums = b"".join(short_checksum(view[a:b]).to_bytes(4, "little") for a, b in spans)
    return base64.b64encode(sums).decode()


def header_length(page: memoryview) -> int:
    """Where the buffers begin: after continuation (4), length (4) and metadata."""
    return 8 + int.from_bytes(page[4:8], "little")


def column_spans(page: pa.Buffer, schema: pa.Schema) -> list[tuple[int, int]]:
    """The start and end of each column's buffers in a page; reads only the page's header."""
    columns = pa.ipc.read_record_batch(page, schema).columns
    return [column_span(column, page.address) for column in columns]


def column_span(column: pa.Array, start: int) -> tuple[int, int]:
    """The start and end of a column's buffers in a page that starts at an address."""
    buffers = [buffer for buffer in column.buffers() if buffer is not None and buffer.size]
    first = min((buffer.address for buffer in buffers), default=start)
    last = max((buffer.address + buffer.size for buffer in buffers), default=start)
    return first - start, last - start


def short_checksum(view: memoryview) -> int:
    return checksum(view) & 0xFFFFFFFF
