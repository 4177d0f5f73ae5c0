"""Rows in order of a time, so that an epoch looks at those that are due and not at all of them.

The order is by page of the table: pages do not change, so each is sorted at most once, when the
first of its rows is due; until then only its first and last time are known. A page that is due as a
whole in a few looks is not sorted at all. The replica's other
indexes say whether a row still counts: it may have been overwritten or deleted since. So a look
costs what it finds, a row that was overwritten is met once, and state that is not due costs nothing
but a comparison per page.

Timers, window panes and whatever else leaves state when time passes use this one index. What it
knows of pages is kept with the replica, so that making a `TimeIndex` costs nothing.

Known rough edge: a process that opens a state reads the column once, and sorts the pages that hold
something due.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt32Array, UInt64Array
from millrace.log.segment import HI, LO
from millrace.state.addresses import address_of
from millrace.state.columns import words
from millrace.state.replica import Replica

_NEVER = np.iinfo(np.int64).max
_ALWAYS = np.iinfo(np.int64).min
_RADIX = 1 << 16
"""Up to this many different times are sorted by radix."""
SCANS = 8
"""A page is scanned this often before it is sorted, which takes as long as dozens of scans."""


class _Page:
    """The times of a page: their span, and once something is due, the rows in order of time."""

    def __init__(self, times: Int64Array) -> None:
        known = times[times != _NEVER]
        self.first = int(known.min()) if len(known) else _NEVER
        self.last = int(known.max()) if len(known) else _ALWAYS
        self.done = 0
        """Before this position no row counts any more."""
        self._scans = 0
        self._order: UInt32Array | None = None
        self._values = self._starts = np.empty(0, np.int64)

    def sort(self, times: Int64Array, step: int) -> None:
        if self._order is not None:
            return
        order: Int64Array
        if (self.last - self.first) // step < _RADIX - 1:
            never = times == _NEVER
            steps = (np.where(never, self.first, times) - self.first) // step
            steps[never] = _RADIX - 1
            order = np.argsort(steps.astype(np.uint16), kind="stable")
        else:
            order = np.argsort(times, kind="stable")
        # The times of different rows may share a step: only equal ones are put together.
        ordered = times[order]
        if step > 1 and (ordered[1:] < ordered[:-1]).any():
            order = np.argsort(times, kind="stable")
            ordered = times[order]
        changes = np.flatnonzero(np.diff(ordered)) + 1
        self._starts = np.concatenate(([0], changes)) if len(ordered) else changes
        self._values = ordered[self._starts]
        self._order = order.astype(np.uint32)

    def between(self, first: int, last: int) -> tuple[int, int]:
        """The positions, in order of time, of rows with times from `first` to `last`."""
        assert self._order is not None
        starts = np.append(self._starts, len(self._order))
        begin = starts[np.searchsorted(self._values, first, side="left")]
        end = starts[np.searchsorted(self._values, last, side="right")]
        return int(begin), int(end)

    def is_mostly(self, first: int, last: int) -> bool:
        """Whether an interval is a good part of the page's, so that soon nothing of it is left."""
        return 4 * (min(last, self.last) - max(first, self.first)) >= self.last - self.first

    def between_scanned(self, times: Int64Array, first: int, last: int) -> UInt64Array | None:
        """The rows with times from `first` to `last`, without sorting; None if that is due."""
        if self._order is not None or self._scans == SCANS:
            return None
        self._scans += 1
        return np.flatnonzero((times >= first) & (times <= last)).astype(np.uint64)

    def rows(self, begin: int, end: int) -> UInt64Array:
        assert self._order is not None
        return self._order[begin:end].astype(np.uint64)

    @property
    def bytes(self) -> int:
        order = 0 if self._order is None else self._order.nbytes
        return order + self._values.nbytes + self._starts.nbytes


class TimeIndex:
    """An order by time over the pages of a replica's table."""

    def __init__(self, replica: Replica, column: str, step: int = 1) -> None:
        """Times of the column are usually multiples of `step` apart; that makes sorting quick."""
        self._replica = replica
        self._column = column
        self._step = step
        # Kept by the replica, which must not be kept by what it keeps.
        self._pages: dict[tuple[int, int], _Page] = replica.page_orders.setdefault(column, {})

    def due(self, groups: Int64Array, now: int) -> UInt64Array:
        """Addresses of the rows of some key groups whose time has come, however long ago."""
        return self._find(groups, _ALWAYS, now, from_done=True)

    def between(self, groups: Int64Array, first: int, last: int) -> UInt64Array:
        """Addresses of the rows of some key groups with times from `first` to `last`."""
        if first > last:
            return np.empty(0, np.uint64)
        return self._find(groups, first, last, from_done=False)

    def added_between(self, groups: Int64Array, first: int, last: int) -> UInt64Array:
        """The same of a table whose rows are never changed or deleted: no row has to be found.

        Most pages of such a table are due as a whole in a few epochs, so they are not sorted.
        """
        replica = self._replica
        if first > last:
            return np.empty(0, np.uint64)
        replica.touch(groups)
        own = np.zeros(replica.key_groups, np.bool_)
        own[groups] = True
        chunks = replica.chunks()
        users = dict(replica.users())
        found = [np.empty(0, np.uint64)]
        for key, page in self._known().items():
            if page.first > last or page.last < first:
                continue
            times = self._times(key[0])
            rows = page.between_scanned(times, first, last)
            if rows is None:
                page.sort(times, self._step)
                rows = page.rows(*page.between(first, last))
            counts = np.zeros(replica.key_groups, np.bool_)
            counts[list(users[key[0]])] = True
            counts &= own
            group = words(chunks[key], HI)[rows] >> np.uint64(replica.shift)
            found.append(address_of(key[0], 0) | rows[counts[group.astype(np.int64)]])
        return np.concatenate(found)

    def last(self, groups: Int64Array) -> int | None:
        """The last time of the pages of some key groups, whether its row still counts or not."""
        self._replica.touch(groups)
        last = max((page.last for page in self._known().values()), default=_ALWAYS)
        return None if last == _ALWAYS else last

    def spans(self) -> dict[int, tuple[int, int]]:
        """The first and the last time of each page in use, by chunk number."""
        return {key[0]: (page.first, page.last) for key, page in self._known().items()}

    def _known(self) -> dict[tuple[int, int], _Page]:
        """The pages in use."""
        chunks = self._replica.chunks()
        # A chunk's number is used again; its serial number is not.
        for gone in [key for key in self._pages if key not in chunks]:
            del self._pages[gone]
        for new in [key for key in chunks if key not in self._pages]:
            self._pages[new] = _Page(self._times(new[0]))
        return self._pages

    def _find(self, groups: Int64Array, first: int, last: int, *, from_done: bool) -> UInt64Array:
        replica = self._replica
        replica.touch(groups)
        chunks = replica.chunks()
        looked: list[tuple[_Page, int, int]] = []
        found, hi, lo = [], [], []
        for key, page in self._known().items():
            batch = chunks[key]
            if page.first > last or page.last < first:
                continue
            times = self._times(key[0])
            begin = end = 0
            if not from_done and page.is_mostly(first, last):
                rows = page.between_scanned(times, first, last)
            else:
                rows = None
            if rows is None:
                page.sort(times, self._step)
                begin, end = page.between(first, last)
                if from_done:
                    begin = page.done
                rows = page.rows(begin, max(begin, end))
            if not len(rows):
                continue
            found.append(address_of(key[0], 0) | rows)
            hi.append(words(batch, HI)[rows])
            lo.append(words(batch, LO)[rows])
            looked.append((page, begin, end))
        if not found:
            return np.empty(0, np.uint64)
        addresses = np.concatenate(found)
        own = np.zeros(replica.key_groups, np.bool_)
        own[groups] = True
        all_hi, all_lo = np.concatenate(hi), np.concatenate(lo)
        mine = own[(all_hi >> np.uint64(replica.shift)).astype(np.int64)]
        live = np.zeros(len(addresses), np.bool_)
        live[mine] = replica.find(all_hi[mine], all_lo[mine]) == addresses[mine]
        if from_done:
            # Rows of key groups that are not asked for now may be asked for later.
            pending = live | ~mine
            start = 0
            for page, begin, end in looked:
                left = pending[start : start + end - begin]
                page.done = begin + int(np.argmax(left)) if left.any() else end
                start += end - begin
        return addresses[live]

    def _times(self, chunk: int) -> Int64Array:
        # A deleted row has no time.
        times: Int64Array = self._replica.column(chunk, self._column).fill_null(_NEVER).to_numpy()
        return times
