"""Pages of which only some columns are read.

A task needs all columns of the rows it touches, and verifies a page as a whole. A reader may want
one column of millions of rows: then a page is opened with the columns that find rows, and others
are verified, and on a remote store fetched, when they are first asked for.

Invariant: no byte of a column is used before `check` has been called for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from millrace.log.pages import READERS
from millrace.log.segment import DELETED, HI, LO, Segment
from millrace.state.owners import OWNER_HI, OWNER_LO


class LazyPages:
    """Which page each chunk is, and which of its columns are right."""

    def __init__(self, schema: pa.Schema, owned: bool) -> None:
        self._schema = schema
        self.always = frozenset((HI, LO, DELETED, *((OWNER_HI, OWNER_LO) if owned else ())))
        """What finds rows."""
        self._pages: dict[int, tuple[Segment, int, set[str]]] = {}

    def page(self, segment: Segment, number: int) -> pa.RecordBatch:
        """A page with what finds rows; all of it, if there is no way to have less."""
        return segment.page(number, self.always if self._is_lazy(segment) else None)

    def _is_lazy(self, segment: Segment) -> bool:
        # A column whose type has become wider is converted when the page is opened.
        known = {field.name: field.type for field in self._schema}
        same = all(known.get(field.name, field.type) == field.type for field in segment.schema)
        return same and bool(segment.entry.columns)

    def opened(self, chunk: int, segment: Segment, number: int) -> None:
        right = self.always if self._is_lazy(segment) else self._schema.names
        self._pages[chunk] = (segment, number, set(right))

    def check(self, chunk: int, names: Collection[str]) -> None:
        """Verify columns of a chunk that were not yet."""
        if chunk == 0:
            return
        segment, number, right = self._pages[chunk]
        missing = [name for name in names if name not in right]
        if missing:
            segment.page(number, missing)
            right.update(missing)

    def fetch(self, chunks: Sequence[int], names: Collection[str]) -> None:
        """Verify columns of several chunks, many at a time: most of it is waiting."""
        with ThreadPoolExecutor(READERS) as readers:
            for _ in readers.map(lambda chunk: self.check(chunk, names), chunks):
                pass
