"""Which columns of each mapped page have been verified, for readers that need only some of them.

A task needs all columns of the rows it touches, and verifies a page as a whole. A reader may want
one column of millions of rows. Then a page is opened with the columns that find rows; the others
are verified, and fetched from a remote store, when they are first needed.

Invariant: no byte of a column is used before `check` has been called for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from millrace.log.copies import READERS
from millrace.log.segment import DELETED, HI, LO, OWNER_HI, OWNER_LO, Segment


class VerifiedColumns:
    """Which page each chunk is, and which of its columns have been verified."""

    def __init__(self, schema: pa.Schema, owned: bool) -> None:
        self._schema = schema
        self.always = frozenset((HI, LO, DELETED, *((OWNER_HI, OWNER_LO) if owned else ())))
        """The columns that find rows: verified when a page is opened."""
        self._pages: dict[int, tuple[Segment, int, set[str]]] = {}

    def page(self, segment: Segment, number: int) -> pa.RecordBatch:
        """A page with the columns that find rows; all of it, if they cannot be verified alone."""
        return segment.page(number, self.always if self._by_column(segment) else None)

    def _by_column(self, segment: Segment) -> bool:
        # A column whose type has become wider is converted when the page is opened.
        known = {field.name: field.type for field in self._schema}
        same = all(known.get(field.name, field.type) == field.type for field in segment.schema)
        return same and bool(segment.entry.columns)

    def opened(self, chunk: int, segment: Segment, number: int) -> None:
        verified = self.always if self._by_column(segment) else self._schema.names
        self._pages[chunk] = (segment, number, set(verified))

    def check(self, chunk: int, names: Collection[str]) -> None:
        """Verify those columns of a chunk that have not been verified yet."""
        if chunk == 0:
            return
        segment, number, verified = self._pages[chunk]
        missing = [name for name in names if name not in verified]
        if missing:
            segment.page(number, missing)
            verified.update(missing)

    def fetch(self, chunks: Sequence[int], names: Collection[str]) -> None:
        """Verify columns of several chunks, many at a time: most of it is waiting."""
        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(lambda chunk: self.check(chunk, names), chunks):
                pass
