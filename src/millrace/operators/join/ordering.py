"""The fingerprint of a row of state that is one of many rows of a key, each with a time.

Rows of a join are kept as they came, and no two of them are the same row even if all their columns
are equal. The first 40 bits of a row's `hi` are its key's, so it is in the key's key group and next
to the other rows of the key. The low 24 bits are the row's *tick*: its time in units of 2^n
microseconds, without the high bits. So within a key, rows of a page are in order of time as far as
a tick tells, and those of an interval are found by searching, however many others the key has. `lo`
is the row's number: no two rows of a key group have the same.

What is lost of the key's own fingerprint is stored in two columns, `KEY_LO` and `KEY_HI`.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.jit import inlined, kernel
from millrace.operators.window.fingerprints import mixed, unmixed
from millrace.state.owners import ENTRY_BITS, ENTRY_MASK

TICKS_IN_INTERVAL = 1 << 10
"""An interval has about this many ticks: what is read in vain is at most two ticks' rows."""

LEAST_TICK_BITS = 6
"""A tick is 64 microseconds at least, so that ticks wrap around only every 18 minutes."""

_NUMBER_BITS = 32
_SMALL = 32
"""So few rows with the same tick are sorted by insertion."""


def tick_bits(interval_us: int) -> int:
    """How long a tick is, given how long the interval is in which rows are looked for."""
    return max(LEAST_TICK_BITS, (interval_us // TICKS_IN_INTERVAL).bit_length() - 1)


@inlined
def tick(time: int, bits: int) -> np.uint64:
    """When a row was, as far as its place tells."""
    return np.uint64(time >> bits) & ENTRY_MASK


@kernel
def row_places(hi: UInt64Array, times: Int64Array, bits: int) -> UInt64Array:
    """The `hi` of rows, given those of their keys and their times."""
    out = np.empty(len(hi), np.uint64)
    for i in range(len(hi)):
        out[i] = (hi[i] & ~ENTRY_MASK) | tick(times[i], bits)
    return out


def numbered(places: UInt64Array, epoch: int, before: int) -> tuple[UInt64Array, Int64Array]:
    """The `lo` of new rows, given their `hi` in ascending order, and the order by both.

    `before` is how many rows of the epoch have got a number. Rows with the same `hi` are numbered
    in the order in which they are given.
    """
    return _numbered(places, np.uint64((epoch << _NUMBER_BITS) + before))


@kernel
def _numbered(places: UInt64Array, first: np.uint64) -> tuple[UInt64Array, Int64Array]:
    n = len(places)
    lo = np.empty(n, np.uint64)
    order = np.empty(n, np.int64)
    for i in range(n):
        # Not the number itself: indexes take the low bits of `lo` for random ones.
        lo[i] = mixed(first + np.uint64(i))
        order[i] = i
    start = 0
    while start < n:
        end = start + 1
        while end < n and places[end] == places[start]:
            end += 1
        if end - start > _SMALL:
            order[start:end] = start + np.argsort(lo[start:end])
        else:
            for i in range(start + 1, end):
                row = order[i]
                j = i - 1
                while j >= start and lo[order[j]] > lo[row]:
                    order[j + 1] = order[j]
                    j -= 1
                order[j + 1] = row
        start = end
    return lo, order


@kernel
def numbers(lo: UInt64Array) -> UInt64Array:
    """The numbers of rows, given their `lo`: in the order in which they came, if of one key."""
    out = np.empty(len(lo), np.uint64)
    for i in range(len(lo)):
        out[i] = unmixed(lo[i])
    return out


KEY_BITS = np.uint64(ENTRY_BITS)
"""Below these bits of `hi`, rows of one key differ."""
