"""Pairs of rows: new rows of one stream looked for among rows of the other, page by page.

Rows of a page are in order of key and tick (see `addresses`), and so are the rows that are looked
for. So each page is gone through once, side by side with the rows of its keys: a search for one row
begins where that for the last one ended. It costs what it finds, plus a step or two per row and
page that holds the key's neighbourhood, however many rows the key has outside of the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrays import BoolArray, Int64Array, UInt32Array, UInt64Array
from millrace.errors import MalformedError
from millrace.jit import WORD, inlined, kernel, load_u32, load_u64, word_at
from millrace.log.segment import HI
from millrace.operators.join.layout import EVENT, KEY_HI, KEY_LO
from millrace.operators.join.ordering import KEY_BITS, tick
from millrace.state.addresses import ROW_BITS
from millrace.state.owners import ENTRY_MASK
from millrace.state.replica import Replica
from millrace.state.time_index import TimeIndex

ALL, FIRST, ONCE = 0, 1, 2
"""Which pairs are wanted: all; one of each row that is looked for; one of each row of a page."""

PAGE = np.dtype(
    [
        ("chunk", np.uint64),
        ("rows", np.int64),
        ("hi", np.uint64),  # pointers to the first row's values
        ("event", np.uint64),
        ("key_lo", np.uint64),
        ("key_hi", np.uint64),
        ("first", np.int64),  # the first and the last event time
        ("last", np.int64),
    ],
    align=True,
)
"""A page of rows, as kernels see it."""


@dataclass(frozen=True)
class Pages:
    """Pages to look in. Those of a replica live until it follows the log."""

    pages: np.ndarray[tuple[int], np.dtype[np.void]]
    used: BoolArray
    """For each page, the key groups whose rows in it count."""
    held: tuple[object, ...] = ()
    """What must live as long as the pages are looked in."""


def stored_pages(replica: Replica, groups: Int64Array, first: int, last: int) -> Pages:
    """The pages of a table that have rows of some key groups with event times in an interval."""
    replica.touch(groups)
    wanted = set(groups.tolist())
    spans = TimeIndex(replica, EVENT).spans()
    found: list[tuple[int, list[int]]] = []
    for chunk, users in replica.users():
        begin, end = spans[chunk]
        if begin <= last and end >= first:
            mine = [group for group in users if group in wanted]
            if mine:
                found.append((chunk, mine))
    pages = np.zeros(len(found), PAGE)
    used = np.zeros((len(found), replica.key_groups), np.bool_)
    if found:
        chunks = np.asarray([chunk for chunk, _ in found])
        pages["chunk"] = chunks
        pages["rows"] = [len(replica.column(chunk, HI)) for chunk, _ in found]
        for name, column in (("hi", HI), ("event", EVENT), ("key_lo", KEY_LO), ("key_hi", KEY_HI)):
            pages[name] = replica.pointers(column)[chunks]
            if not pages[name].all():
                raise MalformedError(f"a page of rows has no column {column!r}")
        pages["first"] = [spans[chunk][0] for chunk, _ in found]
        pages["last"] = [spans[chunk][1] for chunk, _ in found]
        for i, (_, mine) in enumerate(found):
            used[i, mine] = True
    return Pages(pages, used)


def page_of(
    places: UInt64Array,
    events: Int64Array,
    key_lo: UInt64Array,
    key_hi: UInt32Array,
    key_groups: int,
) -> Pages:
    """Rows in memory, in the order of a page, as chunk 0."""
    pages = np.zeros(1 if len(places) else 0, PAGE)
    columns = (places, events, key_lo, key_hi)
    if len(places):
        pointers = (column.ctypes.data for column in columns)
        pages[0] = (0, len(places), *pointers, events.min(), events.max())
    return Pages(pages, np.ones((len(pages), key_groups), np.bool_), columns)


def pairs(
    looked_for: tuple[UInt64Array, UInt64Array, Int64Array],
    pages: Pages,
    interval: tuple[int, int],
    bits: int,
    limit: int,
    shift: int,
    mode: int,
    hit: BoolArray,
) -> tuple[Int64Array, UInt64Array]:
    """Rows that have partners in some pages: the number of the row, and the partner's address.

    Looked for are rows with the fingerprint of their key (hi, lo) and their event time, in order of
    place. Partners have times that are later by at least and at most the interval's ends, and not
    before the limit. Rows that are found to have a partner are marked in `hit`.
    """
    if not len(pages.pages) or not len(hit):
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    return _pairs(
        *looked_for, pages.pages, pages.used, interval, bits, limit, np.uint64(shift), mode, hit
    )


@inlined
def _at_or_after(pointer: np.uint64, rows: int, near: int, hi: np.uint64) -> int:
    """The first row of a page whose `hi` is not below this one, searched for from a row on."""
    low = near
    high = near
    step = 1
    if near < rows and word_at(pointer, np.uint64(near)) < hi:
        # After `low`; gallop until something is not below.
        high = near + step
        while high < rows and word_at(pointer, np.uint64(high)) < hi:
            low = high
            step += step
            high = low + step
        low += 1
        high = min(high, rows)
    else:
        low = near - step
        while low >= 0 and word_at(pointer, np.uint64(low)) >= hi:
            high = low
            step += step
            low = high - step
        low = max(low + 1, 0)
    while low < high:
        middle = (low + high) >> 1
        if word_at(pointer, np.uint64(middle)) < hi:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _pairs(
    hi: UInt64Array,
    lo: UInt64Array,
    times: Int64Array,
    pages: np.ndarray[tuple[int], np.dtype[np.void]],
    used: BoolArray,
    interval: tuple[int, int],
    bits: int,
    limit: int,
    shift: np.uint64,
    mode: int,
    hit: BoolArray,
) -> tuple[Int64Array, UInt64Array]:
    n = len(hi)
    room = n + 64
    rows = np.empty(room, np.int64)
    found = np.empty(room, np.uint64)
    count = 0
    marked = np.empty(0, np.bool_)
    for p in range(len(pages)):
        page = pages[p]
        size = page["rows"]
        if mode == ONCE:
            marked = np.zeros(size, np.bool_)
        first_key = load_u64(page["hi"]) >> KEY_BITS
        last_key = word_at(page["hi"], np.uint64(size - 1)) >> KEY_BITS
        # The first row whose key may be in the page.
        i = 0
        end = n
        while i < end:
            middle = (i + end) >> 1
            if (hi[middle] >> KEY_BITS) < first_key:
                i = middle + 1
            else:
                end = middle
        near = 0
        while i < n and (hi[i] >> KEY_BITS) <= last_key:
            row = i
            i += 1
            begin = max(times[row] + interval[0], limit)
            until = times[row] + interval[1]
            if (
                begin > until
                or begin > page["last"]
                or until < page["first"]
                or (mode == FIRST and hit[row])
                or not used[p, np.int64(hi[row] >> shift)]
            ):
                continue
            key = hi[row] & ~ENTRY_MASK
            low32 = np.uint32(hi[row] & np.uint64(0xFFFFFFFF))
            from_tick = tick(begin, bits)
            to_tick = tick(until, bits)
            # Ticks wrap around, so an interval may be in two parts.
            parts = 1 if from_tick <= to_tick else 2
            for part in range(parts):
                bottom = from_tick if part == 0 else np.uint64(0)
                top = ENTRY_MASK if part + 1 < parts else to_tick
                at = _at_or_after(page["hi"], size, near, key | bottom)
                near = at
                while at < size and word_at(page["hi"], np.uint64(at)) <= (key | top):
                    offset = np.uint64(at) * WORD
                    time = np.int64(load_u64(page["event"] + offset))
                    if (
                        begin <= time <= until
                        and load_u64(page["key_lo"] + offset) == lo[row]
                        and load_u32(page["key_hi"] + np.uint64(at) * np.uint64(4)) == low32
                    ):
                        wanted = True
                        if mode == ONCE:
                            wanted = not marked[at]
                            marked[at] = True
                        hit[row] = True
                        if wanted:
                            if count == room:
                                room *= 2
                                more_rows = np.empty(room, np.int64)
                                more_rows[:count] = rows
                                rows = more_rows
                                more_found = np.empty(room, np.uint64)
                                more_found[:count] = found
                                found = more_found
                            rows[count] = row
                            found[count] = (page["chunk"] << np.uint64(ROW_BITS)) | np.uint64(at)
                            count += 1
                        if mode == FIRST:
                            break
                    at += 1
                if mode == FIRST and hit[row]:
                    break
    return rows[:count].copy(), found[:count].copy()
