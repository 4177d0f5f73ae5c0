"""Which rows and sessions of a key are one session: a kernel over sorted keys.

    pieces     what came: spans of one key's rows, each shorter than a gap, so of one session
    stored     the key's open sessions

    key 7:   pieces     |-|          |--|
             stored  |----------|               |-----|
             merged  |------------------|             (not touched)

Spans that touch are one session, also if one begins exactly where the other ends: as in Spark. A
stored session that no piece touches is left out, so what is done costs what came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from millrace.arrays import Int64Array
from millrace.jit import kernel

Spans: TypeAlias = tuple[Int64Array, Int64Array, Int64Array]
"""Starts, ends, and where those of each key begin; the number of all comes last."""


@dataclass(frozen=True)
class MergedSessions:
    """Sessions that something came for, in order of key and time."""

    starts: Int64Array
    ends: Int64Array
    key: Int64Array
    """The number of each one's key."""
    members: Int64Array
    """The spans of all sessions in order of time: numbers of pieces, and after them of stored ones.
    Of spans that begin together, the stored one comes first."""
    bounds: Int64Array
    """Where the members of each session begin; the number of all comes last."""

    def __len__(self) -> int:
        return len(self.starts)


def merged_sessions(pieces: Spans, part: Int64Array, stored: Spans) -> MergedSessions:
    """The sessions of some keys; `part` is the input partition of each piece."""
    return MergedSessions(*_merge(pieces, part, stored))


@kernel
def _merge(
    pieces: Spans, part: Int64Array, stored: Spans
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
    piece_starts, piece_ends, piece_bounds = pieces
    stored_starts, stored_ends, stored_bounds = stored
    n = len(piece_starts)
    m = len(stored_starts)
    time = np.concatenate((piece_starts, stored_starts))
    until = np.concatenate((piece_ends, stored_ends))
    place = np.empty(n + m, np.int64)
    for i in range(n):
        place[i] = part[i]
    for i in range(n, n + m):
        place[i] = -1
    members = np.empty(n + m, np.int64)
    starts = np.empty(n, np.int64)
    ends = np.empty(n, np.int64)
    keys = np.empty(n, np.int64)
    bounds = np.empty(n + 1, np.int64)
    spans = 0
    sessions = 0
    for key in range(len(piece_bounds) - 1):
        first = spans
        last = first
        for i in range(piece_bounds[key], piece_bounds[key + 1]):
            members[last] = i
            last += 1
        for i in range(stored_bounds[key], stored_bounds[key + 1]):
            members[last] = n + i
            last += 1
        if last - first > 32:
            _sort_many(members, first, last, time, place)
        else:
            _sort_few(members, first, last, time, place)
        i = first
        while i < last:
            end = until[members[i]]
            came = members[i] < n
            j = i + 1
            while j < last and time[members[j]] <= end:
                end = max(end, until[members[j]])
                came = came or members[j] < n
                j += 1
            if came:
                bounds[sessions] = spans
                starts[sessions] = time[members[i]]
                ends[sessions] = end
                keys[sessions] = key
                sessions += 1
                for k in range(i, j):
                    members[spans] = members[k]
                    spans += 1
            i = j
    bounds[sessions] = spans
    return (
        starts[:sessions].copy(),
        ends[:sessions].copy(),
        keys[:sessions].copy(),
        members[:spans].copy(),
        bounds[: sessions + 1].copy(),
    )


@kernel
def _sort_few(
    members: Int64Array, first: int, last: int, time: Int64Array, place: Int64Array
) -> None:
    for i in range(first + 1, last):
        span = members[i]
        j = i - 1
        while j >= first and (
            time[members[j]] > time[span]
            or (time[members[j]] == time[span] and place[members[j]] > place[span])
        ):
            members[j + 1] = members[j]
            j -= 1
        members[j + 1] = span


@kernel
def _sort_many(
    members: Int64Array, first: int, last: int, time: Int64Array, place: Int64Array
) -> None:
    spans = members[first:last].copy()
    by_place = spans[np.argsort(place[spans], kind="mergesort")]
    members[first:last] = by_place[np.argsort(time[by_place], kind="mergesort")]
