"""Writing a segment: cut the sections into pages, encode them, describe them in an entry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.ids import Epoch
from millrace.keygroups import format_ranges
from millrace.log.copies import scratch
from millrace.log.layout import SEGMENTS
from millrace.log.segment.entry import INDEX_KEY, SEGMENT_VERSION, Section, SegmentEntry
from millrace.log.segment.integrity import checksum, column_sums, frame_hash

PAGE_ROWS = 16384
"""A page takes further key groups until it has this many rows."""

SPILL_ROWS = 8 * PAGE_ROWS
"""If more rows than this still have to be made, a segment is assembled in a file."""


class RowSource(Protocol):
    """Rows that may be made in parts, when a part is asked for."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def num_rows(self) -> int: ...

    def slice(self, offset: int, length: int) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class SectionData:
    """Rows to write: sorted by fingerprint, `counts[i]` of them in key group `groups[i]`."""

    first: Epoch
    last: Epoch
    covers: Int64Array
    groups: Int64Array
    counts: Int64Array
    rows: RowSource
    """A record batch, or an object that returns one for each page."""


def segment_path(operator: str, epoch: Epoch, shard: int, attempt: str) -> str:
    """A unique name: a repeated or speculative task has another attempt."""
    return f"{SEGMENTS}/{operator}/{epoch:012d}-{shard:04d}-{attempt}.arrow"


def encode_segment(
    path: str, epoch: Epoch, sections: Sequence[SectionData]
) -> tuple[pa.Buffer, SegmentEntry]:
    """The bytes of a segment and its manifest entry.

    Rows are asked for one page at a time. If many of them are made here, the segment is written to
    a file and mapped, so the memory of an epoch does not depend on what it merges.
    """
    cuts: list[tuple[RowSource, int, int]] = []
    described: list[Section] = []
    index: list[dict[str, Any]] = []
    for data in sections:
        first_page = len(cuts)
        page_groups = []
        at = 0
        for first, last, rows in _page_cuts(data.counts):
            cuts.append((data.rows, at, rows))
            page_groups.append(last - first)
            at += rows
        index.append(
            {
                "first": data.first,
                "last": data.last,
                "groups": format_ranges(data.groups.tolist()),
                "rows": data.counts.tolist(),
                "pages": page_groups,
            }
        )
        described.append(
            Section(
                data.first,
                data.last,
                format_ranges(data.covers.tolist()),
                data.rows.num_rows,
                first_page,
                len(page_groups),
            )
        )
    head = json.dumps({"format": SEGMENT_VERSION, "sections": index}, separators=(",", ":"))
    schema = sections[0].rows.schema.with_metadata({INDEX_KEY: head.encode()})
    spans: list[tuple[int, int]] = []
    made_here = sum(rows for of, _, rows in cuts if not isinstance(of, pa.RecordBatch))
    with scratch(made_here > SPILL_ROWS) as (sink, written):
        with pa.ipc.new_file(sink, schema) as writer:
            for of, at, rows in cuts:
                start = sink.tell()
                writer.write_batch(of.slice(at, rows))
                spans.append((start, sink.tell()))
        buffer = written()
    if spans:
        # The writer puts the schema before the first batch only when that batch is written.
        spans[0] = (_schema_end(buffer), spans[0][1])
    view = memoryview(buffer)
    pages = tuple((start, end - start, checksum(view[start:end])) for start, end in spans)
    entry = SegmentEntry(
        path=path,
        epoch=epoch,
        bytes=buffer.size,
        frame_hash=frame_hash(view, pages),
        pages=pages,
        sections=tuple(described),
        columns=tuple(
            column_sums(buffer.slice(start, end - start), schema) for start, end in spans
        ),
    )
    return buffer, entry


def _schema_end(buffer: pa.Buffer) -> int:
    """Where the schema message ends: after magic (8), continuation (4), length (4), metadata."""
    return 16 + int.from_bytes(memoryview(buffer)[12:16], "little")


def _page_cuts(counts: Int64Array) -> list[tuple[int, int, int]]:
    """(first index, last index, rows) of each page: consecutive groups up to PAGE_ROWS rows."""
    cuts = []
    start = rows = 0
    for i, count in enumerate(counts.tolist()):
        rows += count
        if rows >= PAGE_ROWS:
            cuts.append((start, i + 1, rows))
            start, rows = i + 1, 0
    if rows:
        cuts.append((start, len(counts), rows))
    return cuts
