"""Timers in order of time, so that an epoch looks at those that expired and not at all of them.

Each page of the table of timers is sorted by time once, when it is first seen. From then on it has
a position before which every timer has fired. The replica's index says whether a row still counts:
it may have been overwritten or cancelled since.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.log.segment import HI, LO
from millrace.state.addresses import address_of
from millrace.state.columns import words
from millrace.state.replica import Replica

_NEVER = np.iinfo(np.int64).max


class _SortedPage:
    def __init__(self, times: Int64Array) -> None:
        self.order = np.argsort(times, kind="stable")
        self.times = times[self.order]
        self.done = 0


class TimerIndex:
    """An order by time over the pages of a replica's table."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._pages: dict[tuple[int, int], _SortedPage] = {}

    def expired(self, replica: Replica, groups: Int64Array, now: int) -> UInt64Array:
        """Addresses of the rows of some key groups whose time has come."""
        replica.touch(groups)
        chunks = replica.chunks()
        # A chunk's number is used again; its serial number is not.
        self._pages = {key: page for key, page in self._pages.items() if key in chunks}
        own = np.zeros(replica.key_groups, np.bool_)
        own[groups] = True
        found = []
        for key, batch in chunks.items():
            page = self._pages.get(key)
            if page is None:
                # A deleted row has no time.
                times = batch.column(self._column).fill_null(_NEVER).to_numpy()
                page = self._pages[key] = _SortedPage(times)
            last = int(np.searchsorted(page.times, now, side="right"))
            rows = page.order[page.done : last].astype(np.uint64)
            if not len(rows):
                continue
            addresses = address_of(key[0], 0) | rows
            hi, lo = words(batch, HI)[rows], words(batch, LO)[rows]
            mine = own[(hi >> np.uint64(replica.shift)).astype(np.int64)]
            live = np.zeros(len(rows), np.bool_)
            live[mine] = replica.find(hi[mine], lo[mine]) == addresses[mine]
            # Rows of key groups that are not asked for now may be asked for later.
            pending = live | ~mine
            page.done = page.done + int(np.argmax(pending)) if pending.any() else last
            found.append(addresses[live])
        return np.concatenate(found) if found else np.empty(0, np.uint64)
