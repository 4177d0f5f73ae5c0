"""Reading a segment: map it, and verify what is touched when it is first touched.

Of a remote segment, only what was asked for is fetched, into a sparse copy on this machine.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa

from millrace.arrays import UInt32Array
from millrace.errors import (
    CorruptSegmentError,
    MalformedError,
    MissingFileError,
    NewerFormatError,
    StoreError,
)
from millrace.log.copies import SegmentCopy
from millrace.log.mapping import map_file
from millrace.log.pages import check_columns, read_page, read_schema
from millrace.log.segment.entry import INDEX_KEY, SEGMENT_VERSION, SegmentEntry
from millrace.log.segment.group_index import GroupIndex, group_index_of, parse_index
from millrace.log.segment.integrity import (
    column_span,
    frame_hash,
    header_length,
    page_is_whole,
    short_checksum,
)
from millrace.log.store import Store

HEADER = 4096
"""Bytes of a page that are fetched to find where its columns are."""
SMALL = 256 * 1024
"""A remote segment of at most this many bytes is fetched in one request."""
_MISSING = (
    " A retained manifest names it: restore it from a backup, or open an earlier epoch that does "
    "not use it."
)
_ADVICE = (
    " The file changed after it was written: restore it from a backup, or open an earlier epoch "
    "that does not use it."
)


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
        whole = frame_hash(data, entry.pages) == entry.frame_hash
        if not whole and copy is not None:
            copy.fetch(_frame_ranges(entry))
            whole = frame_hash(data, entry.pages) == entry.frame_hash
        if not whole:
            raise CorruptSegmentError(
                f"segment {where} is damaged outside its pages (checksum mismatch).{_ADVICE}"
            )
        self._buffer = pa.py_buffer(data)
        with self._malformed():
            schema = read_schema(self._buffer.slice(min(8, len(data))))
            index = (schema.metadata or {}).get(INDEX_KEY, b"")
            version, self._index = parse_index(index, entry.sections)
        if version > SEGMENT_VERSION:
            raise NewerFormatError(
                f"segment {where} has format {version}; this Millrace reads up to "
                f"{SEGMENT_VERSION}. Upgrade Millrace."
            )
        self.schema = schema.remove_metadata()
        self._group_indexes: dict[int, GroupIndex] = {}
        self._right: set[tuple[int, int]] = set()
        """Parts of pages, the header (0) and columns (from 1), that were verified alone."""
        self.read_bytes = 0
        """Bytes of pages that were read to verify them."""

    @contextlib.contextmanager
    def _malformed(self) -> Iterator[None]:
        try:
            yield
        except MalformedError as error:
            raise self.malformed(error) from error

    def malformed(self, problem: object) -> CorruptSegmentError:
        """What to raise about content that has the right checksum."""
        return CorruptSegmentError(
            f"segment {self._where} is whole but malformed: {problem}. Millrace did not write it: "
            "restore it from a backup, or open an earlier epoch that does not use it."
        )

    def page(self, number: int, names: Collection[str] | None = None) -> pa.RecordBatch:
        """One page, verified, zero-copy; fetched if it is not on this machine yet.

        With `names`, only these columns are; do not read the others. If the segment was
        written without checksums of columns, the whole page is.
        """
        self.check_length()
        offset, length, _ = self.entry.pages[number]
        if names is not None and self.entry.columns:
            return self._check_columns(number, names)
        whole = self._has(number)
        if not whole and self._copy is not None:
            self._copy.fetch([(offset, length)])
            whole = self._has(number)
        if not whole:
            raise CorruptSegmentError(
                f"page {number} of segment {self._where} (bytes {offset} to {offset + length}) is "
                f"damaged (checksum mismatch).{_ADVICE}"
            )
        batch = self._batch(number)
        with self._malformed():
            check_columns(batch)
        return batch

    def _batch(self, number: int) -> pa.RecordBatch:
        """A page of which only the header has been looked at: it has the rows that it must have."""
        offset, length, _ = self.entry.pages[number]
        with self._malformed():
            batch = read_page(self._buffer.slice(offset, length), self.schema)
            for at, section in enumerate(self.entry.sections):
                page = number - section.first_page
                if 0 <= page < section.pages:
                    rows = self.group_index(at).rows_of_page(page)
                    if rows != batch.num_rows:
                        raise MalformedError(f"page {number} has {batch.num_rows} rows, not {rows}")
        return batch

    def _check_columns(self, number: int, names: Collection[str]) -> pa.RecordBatch:
        """A page, after its header and some columns were verified, and fetched if need be."""
        offset, length, _ = self.entry.pages[number]
        sums = np.frombuffer(base64.b64decode(self.entry.columns[number]), np.uint32)
        if len(sums) != 1 + len(self.schema):
            raise self.malformed(f"the manifest has {len(sums)} checksums of page {number}")
        known = (number, 0) in self._right
        if not known and not self._is_right(number, 0, (0, self._header(number)), sums):
            if self._copy is not None:
                self._copy.fetch([(offset, min(length, HEADER))])
                self._copy.fetch([(offset, self._header(number))])
            self._insist(number, 0, (0, self._header(number)), sums)
        batch = self._batch(number)
        fresh = []
        for column, field in enumerate(self.schema, 1):
            if field.name not in names or (number, column) in self._right:
                continue
            span = column_span(batch.column(column - 1), self._buffer.address + offset)
            if not self._is_right(number, column, span, sums):
                if self._copy is not None:
                    self._copy.fetch([(offset + span[0], span[1] - span[0])])
                self._insist(number, column, span, sums)
            fresh.append(field.name)
        with self._malformed():
            check_columns(batch, fresh)
        return batch

    def _header(self, number: int) -> int:
        offset, length, _ = self.entry.pages[number]
        return min(header_length(self._data[offset : offset + length]), length)

    def _is_right(self, number: int, part: int, span: tuple[int, int], sums: UInt32Array) -> bool:
        offset = self.entry.pages[number][0]
        found = short_checksum(self._data[offset + span[0] : offset + span[1]])
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
        """Fetch some columns of some pages to this machine."""
        if self._copy is None:
            return
        for number in numbers:
            self.page(number, names)

    def check_length(self) -> None:
        """Raise if the mapped file was cut short: touching the lost part ends the process (SIGBUS).

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

    def group_index(self, section: int) -> GroupIndex:
        """Where the key groups of a section are."""
        known = self._group_indexes.get(section)
        if known is None:
            with self._malformed():
                known = group_index_of(self._index[section], self.entry.sections[section])
            self._group_indexes[section] = known
        return known


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
        try:
            copy = SegmentCopy(store, entry.path, entry.bytes)
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
    """For a reader that continues with what it has, such as a server."""
    return StoreError(
        f"segment {local} cannot be opened: {error.strerror}. If this process may open too few "
        "files, or map too few, raise its limits (ulimit -n; vm.max_map_count)."
    )
