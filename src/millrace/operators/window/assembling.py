"""Windows put together from panes, on whole arrays. Shards and readers do it with this.

Rows of panes come in any order; windows come out in an order that depends on their fingerprints
alone. It needs the kernels, but not PySpark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.operators.window.fingerprints import at_times
from millrace.operators.window.panes import Windows, counted
from millrace.state.sorting import group_starts, sort_order

Combine: TypeAlias = Callable[[list[pa.Array], Int64Array], list[pa.Array]]
"""Columns of states, and where each window's begin, to columns of one state per window."""


@dataclass(frozen=True)
class PaneRows:
    """Rows of state: their fingerprints, panes, keys and aggregates."""

    hi: UInt64Array
    lo: UInt64Array
    panes: Int64Array
    keys: list[pa.Array]
    states: list[pa.Array]

    def __len__(self) -> int:
        return len(self.hi)

    def take(self, positions: Int64Array) -> PaneRows:
        chosen = pa.array(positions)
        return PaneRows(
            self.hi[positions],
            self.lo[positions],
            self.panes[positions],
            [column.take(chosen) for column in self.keys],
            [column.take(chosen) for column in self.states],
        )

    def and_then(self, others: PaneRows) -> PaneRows:
        """These rows, then others."""
        if not len(others):
            return self
        if not len(self):
            return others
        return PaneRows(
            np.concatenate((self.hi, others.hi)),
            np.concatenate((self.lo, others.lo)),
            np.concatenate((self.panes, others.panes)),
            _concatenated(self.keys, others.keys),
            _concatenated(self.states, others.states),
        )


def _concatenated(first: list[pa.Array], second: list[pa.Array]) -> list[pa.Array]:
    return [pa.concat_arrays([a, b]) for a, b in zip(first, second, strict=True)]


@dataclass(frozen=True)
class WindowRows:
    """Windows of keys: their ends, keys and aggregates."""

    ends: Int64Array
    keys: list[pa.Array]
    states: list[pa.Array]


def assembled(
    rows: PaneRows,
    windows: Windows,
    combine: Combine,
    after_us: int,
    until_us: int | None = None,
    *,
    only: tuple[UInt64Array, UInt64Array] | None = None,
    in_order: bool = True,
) -> WindowRows:
    """The windows of some panes that end after a time, and not after another.

    A window has the panes that are given of it. `only` has the fingerprints of the windows that are
    wanted, sorted; None: all. With `in_order`, states are combined in the order of their panes,
    which `first` and `last` ask for.
    """
    if not windows.overlap:
        ends = windows.last_end(rows.panes)
        inside = ends > after_us
        if until_us is not None:
            inside &= ends <= until_us
        if not inside.all():
            rows, ends = rows.take(np.flatnonzero(inside)), ends[inside]
        return WindowRows(ends, rows.keys, rows.states)
    if in_order:
        rows = rows.take(np.argsort(rows.panes, kind="stable"))
    if only is None and until_us is not None and windows.end_once(after_us, until_us):
        return _of_one_end(rows, windows, combine, windows.end_after(after_us))
    which, ends = windows.ends(rows.panes, after_us, until_us)
    hi, lo = key_fingerprints(rows)
    hi, lo = at_times(hi[which], lo[which], ends)
    if only is not None:
        wanted = np.flatnonzero(positions(hi, lo, *only) >= 0)
        which, ends, hi, lo = which[wanted], ends[wanted], hi[wanted], lo[wanted]
    order = sort_order(hi, lo)
    starts = group_starts(hi[order], lo[order])
    heads = order[starts[:-1]]
    rest = pa.array(which[order])
    first = pa.array(which[heads])
    return WindowRows(
        ends[heads],
        [column.take(first) for column in rows.keys],
        combine([column.take(rest) for column in rows.states], starts),
    )


def _of_one_end(rows: PaneRows, windows: Windows, combine: Combine, end_us: int) -> WindowRows:
    """One window of each key: the usual case, in which nothing has to be repeated."""
    inside = (rows.panes >= end_us - windows.size_us) & (rows.panes < end_us)
    if not inside.all():
        rows = rows.take(np.flatnonzero(inside))
    hi, lo = key_fingerprints(rows)
    order = sort_order(hi, lo)
    starts = group_starts(hi[order], lo[order])
    heads = pa.array(order[starts[:-1]])
    every = pa.array(order)
    return WindowRows(
        np.full(len(heads), end_us),
        [column.take(heads) for column in rows.keys],
        combine([column.take(every) for column in rows.states], starts),
    )


def key_fingerprints(rows: PaneRows) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprints of the keys of some rows."""
    return at_times(rows.hi, rows.lo, rows.panes)


def windows_around(
    rows: PaneRows, windows: Windows, after_us: int
) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprints of the windows that some panes are in and that end after a time, sorted."""
    which, ends = windows.ends(rows.panes, after_us)
    hi, lo = key_fingerprints(rows)
    return _distinct(*at_times(hi[which], lo[which], ends))


def panes_around(
    rows: PaneRows, windows: Windows, after_us: int
) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprints of all panes that these windows may have, sorted."""
    pane_us = windows.pane_us
    first_end = np.maximum(windows.first_end(rows.panes), windows.end_after(after_us))
    last_end = windows.last_end(rows.panes)
    spans = (last_end - first_end + windows.size_us) // pane_us
    which, number = counted(np.where(first_end <= last_end, spans, 0))
    panes = (first_end - windows.size_us)[which] + number * pane_us
    hi, lo = key_fingerprints(rows)
    return _distinct(*at_times(hi[which], lo[which], panes))


def _distinct(hi: UInt64Array, lo: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    order = sort_order(hi, lo)
    heads = order[group_starts(hi[order], lo[order])[:-1]]
    return hi[heads], lo[heads]


def positions(
    hi: UInt64Array, lo: UInt64Array, known_hi: UInt64Array, known_lo: UInt64Array
) -> Int64Array:
    """Where each fingerprint is among sorted ones; -1 if it is not."""
    at = np.searchsorted(known_hi, hi)
    found = np.full(len(hi), -1, np.int64)
    rest = np.arange(len(hi))
    # Fingerprints that agree in one half are rare: mostly one round.
    while len(rest):
        rest = rest[at[rest] < len(known_hi)]
        rest = rest[known_hi[at[rest]] == hi[rest]]
        same = known_lo[at[rest]] == lo[rest]
        found[rest[same]] = at[rest[same]]
        rest = rest[~same]
        at[rest] += 1
    return found
