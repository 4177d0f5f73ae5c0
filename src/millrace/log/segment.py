"""Segments: immutable Arrow IPC files, one per shard and epoch.

A segment holds *sections*. A section is a set of rows sorted by fingerprint, together with the
range of epochs it stands for:

* a **delta** (epoch - 1, epoch]: the rows this epoch changed;
* a **run** (first, last]: several deltas of these key groups, merged into one;
* a **base** (0, last]: all rows of some key groups.

A section's rows are cut into *pages* (record batches) at key-group boundaries, so a key group can
be read without its neighbours. The file's schema metadata says which rows belong to which key
group. The checksums of the pages, and of everything that is not a page, are in the segment's
*entry* in the manifest: what the manifest does not name does not exist, and what it names can be
verified page by page, when a page is first touched, and also column by column.

Any Arrow reader reads a segment; nothing Millrace-specific is needed but to know which rows count.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from millrace.arrays import Int64Array, UInt32Array
from millrace.errors import (
    CorruptManifestError,
    CorruptSegmentError,
    MissingFileError,
    NewerFormatError,
    StoreError,
)
from millrace.ids import Epoch
from millrace.keygroups import format_ranges, parse_ranges
from millrace.log.copies import SegmentCopy, scratch
from millrace.log.layout import SEGMENTS
from millrace.log.mapping import map_file
from millrace.log.store import Store

FORMAT_VERSION = 1
PAGE_ROWS = 16384
"""A page takes further key groups until it has this many rows."""

SPILL_ROWS = 8 * PAGE_ROWS
"""With more rows than this that are not there yet, a segment is put together in a file."""

INDEX_KEY = b"millrace.index"

HI, LO, DELETED = "_hi", "_lo", "_deleted"
SYSTEM_FIELDS = (
    pa.field(HI, pa.uint64(), nullable=False),
    pa.field(LO, pa.uint64(), nullable=False),
    pa.field(DELETED, pa.bool_(), nullable=False),
)

OWNER_HI, OWNER_LO = "_owner_hi", "_owner_lo"
OWNER_FIELDS = (
    pa.field(OWNER_HI, pa.uint64(), nullable=False),
    pa.field(OWNER_LO, pa.uint64(), nullable=False),
)
"""The fingerprint of the key that a row belongs to, in tables of entries and timers."""


class Rows(Protocol):
    """Rows of which a part may be made only when it is asked for."""

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
    rows: Rows
    """A record batch, or what gives one for each page."""


@dataclass(frozen=True)
class Section:
    """What the manifest says of a section: epochs (first, last], the key groups it speaks for."""

    first: Epoch
    last: Epoch
    covers: str
    rows: int
    first_page: int
    pages: int

    @property
    def is_base(self) -> bool:
        return self.first == 0

    def to_json(self) -> list[Any]:
        return [self.first, self.last, self.covers, self.rows, self.first_page, self.pages]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Section:
        first, last, covers, rows, first_page, pages = data
        return Section(Epoch(first), Epoch(last), covers, rows, first_page, pages)


@dataclass(frozen=True)
class SegmentEntry:
    """A segment as its manifest names it."""

    path: str
    epoch: Epoch
    """The epoch that added it."""
    bytes: int
    frame_hash: int
    """Checksum of all bytes outside the pages."""
    pages: tuple[tuple[int, int, int], ...]
    """(offset, length, checksum) of each page. All checksums are XXH3, 64 bits."""
    sections: tuple[Section, ...]
    columns: tuple[str, ...] = ()
    """Per page, checksums of its header and of each column, so that a column can be read alone;
    empty if the segment was written without. See `_column_sums`."""

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "path": self.path,
            "epoch": self.epoch,
            "bytes": self.bytes,
            "hash": self.frame_hash,
            "pages": [list(page) for page in self.pages],
            "sections": [section.to_json() for section in self.sections],
        }
        if self.columns:
            data["columns"] = list(self.columns)
        return data

    @staticmethod
    def from_json(data: dict[str, Any]) -> SegmentEntry:
        return SegmentEntry(
            path=_within(data["path"]),
            epoch=Epoch(data["epoch"]),
            bytes=data["bytes"],
            frame_hash=data["hash"],
            pages=tuple((o, n, c) for o, n, c in data["pages"]),
            sections=tuple(Section.from_json(s) for s in data["sections"]),
            columns=tuple(data.get("columns", ())),
        )


def _within(path: str) -> str:
    """The path, if it is one of this location's segments: a checksum does not make it safe."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != SEGMENTS or not _NOT_A_PART.isdisjoint(parts) or "\0" in path:
        raise CorruptManifestError(
            f"a manifest names the segment {path!r}, which is not below {SEGMENTS!r} of its "
            "location. Millrace writes no such manifest: do not trust this location."
        )
    return path


_NOT_A_PART = frozenset(("", ".", ".."))


HEADER = 4096
"""Bytes of a page that are fetched to find where its columns are."""
SMALL = 256 * 1024
"""A remote segment of at most this many bytes is fetched in one request."""


def segment_path(operator: str, epoch: Epoch, shard: int, attempt: str) -> str:
    """A name that nothing else uses: a re-run or a speculative task draws another attempt."""
    return f"{SEGMENTS}/{operator}/{epoch:012d}-{shard:04d}-{attempt}.arrow"


def encode_segment(
    path: str, epoch: Epoch, sections: Sequence[SectionData]
) -> tuple[pa.Buffer, SegmentEntry]:
    """The bytes of a segment and its manifest entry.

    Rows are asked for one page at a time. If many were not there before, the segment is in a file
    that is mapped, so that the memory of an epoch does not depend on what it merges.
    """
    cuts: list[tuple[Rows, int, int]] = []
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
    head = json.dumps({"format": FORMAT_VERSION, "sections": index}, separators=(",", ":"))
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
    pages = tuple((start, end - start, _checksum(view[start:end])) for start, end in spans)
    entry = SegmentEntry(
        path=path,
        epoch=epoch,
        bytes=buffer.size,
        frame_hash=_frame_hash(view, pages),
        pages=pages,
        sections=tuple(described),
        columns=tuple(
            _column_sums(buffer.slice(start, end - start), schema) for start, end in spans
        ),
    )
    return buffer, entry


def _column_sums(page: pa.Buffer, schema: pa.Schema) -> str:
    """Checksums of a page's header and of its columns, in order: 32 bits each, in base64."""
    view = memoryview(page)
    spans = [(0, _header_length(view)), *_column_spans(page, schema)]
    sums = b"".join(_short_checksum(view[a:b]).to_bytes(4, "little") for a, b in spans)
    return base64.b64encode(sums).decode()


def _header_length(page: memoryview) -> int:
    """Where the buffers begin: after continuation (4), length (4) and metadata."""
    return 8 + int.from_bytes(page[4:8], "little")


def _column_spans(page: pa.Buffer, schema: pa.Schema) -> list[tuple[int, int]]:
    """From where to where each column's buffers lie in a page; only its header is looked at."""
    spans = []
    for column in pa.ipc.read_record_batch(page, schema).columns:
        buffers = [buffer for buffer in column.buffers() if buffer is not None and buffer.size]
        first = min((buffer.address for buffer in buffers), default=page.address)
        last = max((buffer.address + buffer.size for buffer in buffers), default=page.address)
        spans.append((first - page.address, last - page.address))
    return spans


def _short_checksum(view: memoryview) -> int:
    return _checksum(view) & 0xFFFFFFFF


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


def _checksum(view: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(view)


def _frame_hash(view: memoryview, pages: Sequence[tuple[int, int, int]]) -> int:
    digest = xxhash.xxh3_64()
    at = 0
    for offset, length, _ in pages:
        digest.update(view[at:offset])
        at = offset + length
    digest.update(view[at:])
    return digest.intdigest()


def page_is_whole(entry: SegmentEntry, number: int, data: bytes | memoryview) -> bool:
    """Whether a page of a file is what the manifest says; the file may be cut short."""
    offset, length, checksum = entry.pages[number]
    return _checksum(memoryview(data)[offset : offset + length]) == checksum


def with_parts(entry: SegmentEntry, old: bytes, new: bytes) -> bytes | None:
    """A file with the whole pages of an old one, and the rest of a new one of the same layout.

    None if that is not the file which the manifest describes.
    """
    made = bytearray(new)
    for number, (offset, length, _) in enumerate(entry.pages):
        if page_is_whole(entry, number, old):
            made[offset : offset + length] = old[offset : offset + length]
    view = memoryview(made)
    whole = (
        len(made) == entry.bytes
        and _frame_hash(view, entry.pages) == entry.frame_hash
        and all(page_is_whole(entry, number, view) for number in range(len(entry.pages)))
    )
    return bytes(made) if whole else None


@dataclass(frozen=True)
class Places:
    """Where a section's rows are: arrays of equal length, one element per key group, ascending."""

    groups: Int64Array
    pages: Int64Array
    """Which of the section's pages, from 0."""
    starts: Int64Array
    """The key group's first row in that page."""
    rows: Int64Array

    def find(self, group: int) -> int | None:
        """The element of a key group; None if it has no rows here."""
        at = int(np.searchsorted(self.groups, group))
        return at if at < len(self.groups) and self.groups[at] == group else None


class Segment:
    """An open segment. Pages are verified when first read, and are views of the mapped file."""

    def __init__(
        self,
        entry: SegmentEntry,
        data: memoryview,
        where: str,
        copy: SegmentCopy | None = None,
        inode: int | None = None,
    ) -> None:
        self.entry = entry
        self._where = where
        self._inode = inode
        """Of the mapped file; None if what is mapped is this machine's own copy."""
        self._data = data
        self._copy = copy
        if len(data) != entry.bytes:
            raise CorruptSegmentError(
                f"segment {where} has {len(data)} bytes, its manifest says {entry.bytes}.{_ADVICE}"
            )
        whole = _frame_hash(data, entry.pages) == entry.frame_hash
        if not whole and copy is not None:
            copy.fetch(_frame_ranges(entry))
            whole = _frame_hash(data, entry.pages) == entry.frame_hash
        if not whole:
            raise CorruptSegmentError(
                f"segment {where} is damaged outside its pages (checksum mismatch).{_ADVICE}"
            )
        self._buffer = pa.py_buffer(data)
        schema = pa.ipc.read_schema(self._buffer.slice(8))
        index = json.loads(schema.metadata[INDEX_KEY])
        if index["format"] > FORMAT_VERSION:
            raise NewerFormatError(
                f"segment {where} has format {index['format']}; this Millrace reads up to "
                f"{FORMAT_VERSION}. Upgrade Millrace."
            )
        self.schema = schema.remove_metadata()
        self._index = index["sections"]
        self._places: dict[int, Places] = {}
        self._right: set[tuple[int, int]] = set()
        """Parts of pages, the header (0) and columns (from 1), that were verified alone."""
        self.read_bytes = 0
        """Bytes of pages that were looked at, to verify them."""

    def page(self, number: int, names: Collection[str] | None = None) -> pa.RecordBatch:
        """One page, verified, zero-copy; fetched if it is not on this machine yet.

        With `names`, only these columns are; the others must not be looked at. If the segment was
        written without checksums of columns, the whole page is.
        """
        self.check_length()
        offset, length, _ = self.entry.pages[number]
        if names is not None and self.entry.columns:
            self._check_columns(number, names)
            return pa.ipc.read_record_batch(self._buffer.slice(offset, length), self.schema)
        whole = self._has(number)
        if not whole and self._copy is not None:
            self._copy.fetch([(offset, length)])
            whole = self._has(number)
        if not whole:
            raise CorruptSegmentError(
                f"page {number} of segment {self._where} (bytes {offset} to {offset + length}) is "
                f"damaged (checksum mismatch).{_ADVICE}"
            )
        return pa.ipc.read_record_batch(self._buffer.slice(offset, length), self.schema)

    def _check_columns(self, number: int, names: Collection[str]) -> None:
        """Verify a page's header and some columns, and fetch what is not there."""
        offset, length, _ = self.entry.pages[number]
        sums = np.frombuffer(base64.b64decode(self.entry.columns[number]), np.uint32)
        known = (number, 0) in self._right
        if not known and not self._is_right(number, 0, (0, self._header(number)), sums):
            if self._copy is not None:
                self._copy.fetch([(offset, min(length, HEADER))])
                self._copy.fetch([(offset, self._header(number))])
            self._insist(number, 0, (0, self._header(number)), sums)
        spans = None
        for column, field in enumerate(self.schema, 1):
            if field.name not in names or (number, column) in self._right:
                continue
            if spans is None:
                spans = _column_spans(self._buffer.slice(offset, length), self.schema)
            span = spans[column - 1]
            if not self._is_right(number, column, span, sums):
                if self._copy is not None:
                    self._copy.fetch([(offset + span[0], span[1] - span[0])])
                self._insist(number, column, span, sums)

    def _header(self, number: int) -> int:
        offset, length, _ = self.entry.pages[number]
        return min(_header_length(self._data[offset : offset + length]), length)

    def _is_right(self, number: int, part: int, span: tuple[int, int], sums: UInt32Array) -> bool:
        offset = self.entry.pages[number][0]
        found = _short_checksum(self._data[offset + span[0] : offset + span[1]])
        if found != sums[part]:
            return False
        self.read_bytes += span[1] - span[0]
        self._right.add((number, part))
        return True

    def _insist(self, number: int, part: int, span: tuple[int, int], sums: UInt32Array) -> None:
        if not self._is_right(number, part, span, sums):
            offset = self.entry.pages[number][0]
            what = f"column {self.schema.names[part - 1]!r}" if part else "the header"
            raise CorruptSegmentError(
                f"{what} of page {number} of segment {self._where} (bytes {offset + span[0]} to "
                f"{offset + span[1]}) is damaged (checksum mismatch).{_ADVICE}"
            )

    def fetch_columns(self, numbers: Iterable[int], names: Collection[str]) -> None:
        """Have some columns of some pages on this machine."""
        if self._copy is None:
            return
        for number in numbers:
            self.page(number, names)

    def check_length(self) -> None:
        """Raise if the mapped file was cut short: to touch what is gone ends the process (SIGBUS).

        A file that was deleted, or replaced by another, is still there for those who have it
        mapped.
        """
        if self._inode is None:
            return
        try:
            now = os.stat(self._where)
        except FileNotFoundError:
            return
        if now.st_ino == self._inode and now.st_size < self.entry.bytes:
            raise CorruptSegmentError(
                f"segment {self._where} has been cut to {now.st_size} bytes while it was in use; "
                f"its manifest says {self.entry.bytes}.{_ADVICE}"
            )

    def _has(self, number: int) -> bool:
        self.read_bytes += self.entry.pages[number][1]
        return page_is_whole(self.entry, number, self._data)

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch what is missing of some pages, in as few requests as possible."""
        if self._copy is None:
            return
        missing = [n for n in numbers if not self._has(n)]
        if missing:
            self._copy.fetch([self.entry.pages[n][:2] for n in missing])

    def places(self, section: int) -> Places:
        """Where the key groups of a section are."""
        known = self._places.get(section)
        if known is None:
            index = self._index[section]
            rows = np.asarray(index["rows"], np.int64)
            per_page = np.asarray(index["pages"], np.int64)
            pages = np.repeat(np.arange(len(per_page)), per_page)
            before = np.cumsum(rows) - rows
            firsts = np.cumsum(per_page) - per_page
            starts = before - before[firsts][pages]
            known = Places(parse_ranges(index["groups"]), pages, starts, rows)
            self._places[section] = known
        return known


_MISSING = (
    " A retained manifest names it: restore it from a backup, or open an earlier epoch that does "
    "not use it."
)
_ADVICE = (
    " The file changed after it was written: restore it from a backup, or open an earlier epoch "
    "that does not use it."
)


def _frame_ranges(entry: SegmentEntry) -> list[tuple[int, int]]:
    """(offset, length) of what is not in a page; of a small segment, all of it."""
    if entry.bytes <= SMALL:
        return [(0, entry.bytes)]
    ranges = []
    at = 0
    for offset, length, _ in entry.pages:
        ranges.append((at, offset - at))
        at = offset + length
    return [*ranges, (at, entry.bytes - at)]


def open_segment(store: Store, entry: SegmentEntry) -> Segment:
    """Map a segment if the store is local, else what this machine has of it."""
    local = store.local_path(entry.path)
    where = local or f"{store.url}/{entry.path}"
    if local is None:
        copy = SegmentCopy(store, entry.path, entry.bytes)
        try:
            return Segment(entry, copy.data, where, copy)
        except MissingFileError as error:
            raise MissingFileError(f"segment {where} is missing.{_MISSING}") from error
    try:
        descriptor = os.open(local, os.O_RDONLY)
    except FileNotFoundError as error:
        raise MissingFileError(f"segment {local} is missing.{_MISSING}") from error
    except OSError as error:
        raise _cannot_map(local, error) from error
    try:
        status = os.fstat(descriptor)
        mapped = map_file(descriptor, status.st_size)
    except OSError as error:
        raise _cannot_map(local, error) from error
    finally:
        os.close(descriptor)
    return Segment(entry, mapped, where, inode=status.st_ino if status.st_size else None)


def _cannot_map(local: str, error: OSError) -> StoreError:
    """For a reader that goes on with what it has, such as a server."""
    return StoreError(
        f"segment {local} cannot be opened: {error.strerror}. If this process may open too few "
        "files, or map too few, raise its limits (ulimit -n; vm.max_map_count)."
    )
