"""Windows of several lengths as a table: a row per key and length, of the newest window.

A feature of a key is the window of some length that ends now. *Now* is the first end of a window
after the newest pane that any key has, and after the watermark: the windows of all keys and lengths
end there. A key that has no row in such a window has no row in the table.

A look-up gives the length and, if it does not mean the newest window, its start. Every window that
is made of kept panes can be looked up; the longest window bounds what is kept. So a short window
can be read long after its end, with what has come for its panes since.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.errors import KeyColumnsError, UsageError
from millrace.log.segment import HI, LO
from millrace.operators.operator import MAIN
from millrace.operators.process.durations import duration_us
from millrace.operators.window.layout import PANE, WINDOW, WINDOW_LENGTH
from millrace.operators.window.panes import Windows, in_words
from millrace.reading.replicas import gathered
from millrace.reading.state_table import Fingerprints, followed
from millrace.reading.windows import WINDOW_START, Asked, WindowTable, micros

if TYPE_CHECKING:
    from millrace.state.replica import Replica


class TileTable(WindowTable):
    """A row per key and length, of the newest window."""

    def _schema(self) -> pa.Schema:
        schema = super()._schema()
        self._lengths = self._windows.of_lengths(self.description.spec["lengths"])
        after = schema.get_field_index(WINDOW) + 1
        return schema.insert(after, pa.field(WINDOW_LENGTH, pa.string()))

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up: its own, the window's length, and its start."""
        *own, start = super().look_up_schema
        return pa.schema([*own, pa.field(WINDOW_LENGTH, pa.string()), start])

    @property
    def optional(self) -> frozenset[str]:
        """Without a start, the newest window is meant."""
        return frozenset([WINDOW_START])

    def warm(self) -> None:
        super().warm()
        _ = self._now

    @functools.cached_property
    def _now(self) -> int:
        """Where the newest windows end."""
        replica = self.snapshot.replica(self.description, MAIN)
        newest = _newest_pane(replica, self._windows, self.snapshot.every)
        newest = self._watermark_us if newest is None else max(newest, self._watermark_us)
        return self._windows.end_after(newest)

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        for rows in self._together(columns, groups):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        from millrace.operators.window.fingerprints import at_times

        hi, lo = keys
        replica = followed(self, MAIN, keys)
        pane = self._windows.pane_us
        panes = np.arange(self._now - self._windows.size_us, self._now, pane)
        times = np.tile(panes[panes >= self._limit], len(hi))
        each = np.repeat(np.arange(len(hi)), len(times) // max(len(hi), 1))
        found = replica.find(*at_times(hi[each], lo[each], times))
        return self._made(columns, gathered(replica, found[found != 0], self._needs(columns)))

    def _needs(self, columns: list[str]) -> list[str]:
        return list(dict.fromkeys([HI, LO, *super()._needs(columns)]))

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        """The newest window of each length from rows of panes."""
        rows = self._kept(rows)
        panes: Int64Array = rows.column(PANE).to_numpy()
        made = []
        for windows in self._lengths:
            own = rows.filter(pa.array(panes >= self._now - windows.size_us))
            since = self._now - windows.slide_us
            made.append(self._assembled(columns, own, windows, since, self._now))
        return pa.concat_batches(made)

    def _look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        *key, length, start = keys
        sizes, known = self._sizes(length)
        starts, given = micros(start)
        starts = np.where(given, starts, self._now - sizes)
        asked = Asked(key, starts, sizes, known)
        return self._looked_up(columns, asked, {WINDOW_LENGTH: length, WINDOW_START: start})

    def _sizes(self, lengths: pa.Array) -> tuple[Int64Array, BoolArray]:
        """Lengths in microseconds, and which of them there are."""
        known = {windows.size_us for windows in self._lengths}
        coded = lengths.dictionary_encode()
        sizes = []
        for text in coded.dictionary.to_pylist():
            size = _micros_of(text)
            if size not in known:
                there = ", ".join(repr(in_words(w.size_us)) for w in self._lengths)
                raise KeyColumnsError(
                    f"{self.title} has no windows of length {text!r}; it has {there}."
                )
            sizes.append(size)
        valid: BoolArray = lengths.is_valid().to_numpy(zero_copy_only=False)
        codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        # A NULL is no length, so there is no such window.
        return np.asarray(sizes or [0], np.int64)[codes], valid


@functools.lru_cache(maxsize=256)
def _micros_of(text: str) -> int:
    """A length in words; 0 if it is none."""
    try:
        return duration_us(text)
    except UsageError:
        return 0


def _newest_pane(replica: Replica, windows: Windows, groups: Int64Array) -> int | None:
    from millrace.state.time_index import TimeIndex

    return TimeIndex(replica, PANE, windows.pane_us).last(groups)
