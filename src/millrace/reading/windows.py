"""The state of a window operator as a table: a row per key and window that is not over.

What is stored is panes. Where windows do not overlap, a pane is a window and pages are shown as
they are; else the panes of each window are put together when they are read. Panes that the
watermark has passed may still be stored, and are left out.

A key's panes are in its own key group. Their times are not in the key, so a look at all windows of
a key tries the pane times that its key group has; a look at one window knows its panes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.keygroups import groups_of
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.layout import kept_of
from millrace.operators.operator import MAIN
from millrace.operators.window.layout import (
    PANE,
    WINDOW,
    WINDOW_LENGTH,
    WINDOW_TYPE,
    length_column,
    struct_column,
    window_column,
)
from millrace.operators.window.panes import Windows, counted
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed

if TYPE_CHECKING:
    from millrace.operators.window.assembling import PaneRows
    from millrace.state.replica import Replica

WINDOW_START = "window_start"
"""The last column of a key to look up."""

_TOGETHER = 16
"""Key groups whose panes are put together at once."""


@dataclass(frozen=True)
class Asked:
    """Windows to look up: columns of the key, and starts and sizes in microseconds."""

    key: Sequence[pa.Array]
    starts: Int64Array
    sizes: Int64Array
    known: BoolArray
    """Which of them there can be."""


class WindowTable(StateTable):
    """A row per key and window that is not over."""

    def _schema(self) -> pa.Schema:
        spec = self.description.spec
        self._windows = Windows.from_json(spec["window"])
        self._watermark_us = self.moment.watermark_us or 0
        self._limit = self._windows.over_before(self._watermark_us)
        self._aggregates = dict(kept_of(spec))
        self._functions = {a["name"]: (a["function"], a["options"]) for a in spec["aggregates"]}
        results = [pa.field(name, kept.type) for name, kept in self._aggregates.items()]
        return pa.schema([*self.description.key_schema, pa.field(WINDOW, WINDOW_TYPE), *results])

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up: its own, and the window's start."""
        return pa.schema([*self.description.key_schema, (WINDOW_START, WINDOW_TYPE[0].type)])

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        if not self._windows.overlap:
            replica = self.snapshot.replica(self.description, MAIN, groups)
            for rows in scan(replica, groups, self._needs(columns)):
                yield self._made(columns, rows)
            return
        for rows in self._together(columns, groups):
            yield self._made(columns, rows)

    def _together(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        """The rows of some key groups at a time, with all panes of a key in one batch."""
        replica = self.snapshot.replica(self.description, MAIN, groups)
        for first in range(0, len(groups), _TOGETHER):
            some = groups[first : first + _TOGETHER]
            addresses = np.concatenate([replica.rows(int(group)) for group in some])
            yield gathered(replica, addresses, self._needs(columns))

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        from millrace.operators.window.fingerprints import at_times

        hi, lo = keys
        replica = followed(self, MAIN, keys)
        panes = self._panes(replica, np.unique(groups_of(hi, self.snapshot.trail.key_groups)))
        each = len(panes)
        times = np.tile(panes, len(hi))
        found = replica.find(*at_times(np.repeat(hi, each), np.repeat(lo, each), times))
        return self._made(columns, gathered(replica, found[found != 0], self._needs(columns)))

    def _panes(self, replica: Replica, groups: Int64Array) -> Int64Array:
        """The times of all panes of some key groups."""
        addresses = np.concatenate([replica.rows(int(group)) for group in groups])
        (panes,) = replica.gather(addresses, [PANE])
        times: Int64Array = np.unique(panes.to_numpy(zero_copy_only=False))
        return times[times >= self._limit]

    def _look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of some windows, in their order, and which of them there are."""
        *key, start = keys
        starts, known = micros(start)
        sizes = np.full(len(starts), self._windows.size_us)
        asked = Asked(key, starts, sizes, known)
        return self._looked_up(columns, asked, {WINDOW_START: start})

    def _looked_up(
        self, columns: list[str], asked: Asked, given: dict[str, pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Each window from its own panes, which follow from its start and size."""
        from millrace.operators.window.fingerprints import at_times

        windows = self._windows
        hi, lo = self.fingerprints(asked.key)
        known = asked.known & ((asked.starts - windows.offset_us) % windows.slide_us == 0)
        # Panes before the limit are gone, so a window that begins before it is not whole.
        known &= asked.starts >= self._limit
        replica = followed(self, MAIN, (hi, lo))
        which, number = counted(np.where(known, asked.sizes // windows.pane_us, 0))
        panes = asked.starts[which] + number * windows.pane_us
        addresses = replica.find(*at_times(hi[which], lo[which], panes))
        there = addresses != 0
        counts = np.bincount(which[there], minlength=len(known))
        found: BoolArray = counts > 0
        begins = np.concatenate(([0], np.cumsum(counts[found])))
        names = [name for name in columns if name not in given]
        rows = gathered(replica, addresses[there], self._needs(names))
        made = {
            name: rows.column(name).take(pa.array(begins[:-1])) for name in self._keys_in(names)
        }
        starts, ends = asked.starts[found], (asked.starts + asked.sizes)[found]
        made[WINDOW] = struct_column(starts, ends)
        for name in names:
            if name in self._aggregates:
                kept = self._aggregates[name]
                states = [rows.column(field.name) for field in kept.fields]
                made[name] = kept.result(self._combined(name, states, begins))
        where = pa.array(np.cumsum(found) - 1, mask=~found)
        return [given[n] if n in given else made[n].take(where) for n in columns], found

    def _keys_in(self, columns: list[str]) -> list[str]:
        return [name for name in columns if name in self.keys]

    def _combined(self, name: str, states: list[pa.Array], starts: Int64Array) -> list[pa.Array]:
        """One state of an aggregate for each group of rows."""
        from millrace.operators.aggregate.combining import combine

        function, options = self._functions[name]
        return combine(function, name, states, starts, options)

    def _needs(self, columns: list[str]) -> list[str]:
        """The stored columns that some shown ones are made of."""
        needs = dict.fromkeys([PANE])
        if self._windows.overlap or not SYSTEM.keys().isdisjoint(columns):
            needs |= dict.fromkeys([HI, LO])
        for name in columns:
            if name in self._aggregates:
                needs |= dict.fromkeys(field.name for field in self._aggregates[name].fields)
            elif name in self.keys:
                needs[name] = None
        return list(needs)

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Windows from rows of panes."""
        rows = self._kept(rows)
        if not columns:
            return rows
        if self._windows.overlap:
            return self._assembled(columns, rows, self._windows, self._watermark_us)
        panes: Int64Array = rows.column(PANE).to_numpy()
        made = {WINDOW: window_column(panes + self._windows.size_us, self._windows)}
        for name in columns:
            if name in self._aggregates:
                kept = self._aggregates[name]
                made[name] = kept.result([rows.column(f.name) for f in kept.fields])
            elif name in self.keys:
                made[name] = rows.column(name)
        return self._finished(columns, made, rows, panes)

    def _kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows without those that the watermark has passed."""
        panes: Int64Array = rows.column(PANE).to_numpy()
        if len(panes) and panes.min() < self._limit:
            return rows.filter(pa.array(panes >= self._limit))
        return rows

    def _finished(
        self, columns: list[str], made: dict[str, pa.Array], rows: pa.RecordBatch, panes: Int64Array
    ) -> pa.RecordBatch:
        """Columns in their order, with the key's fingerprint and key group where asked for."""
        if not SYSTEM.keys().isdisjoint(columns):
            from millrace.operators.window.fingerprints import at_times

            hi, lo = at_times(rows.column(HI).to_numpy(), rows.column(LO).to_numpy(), panes)
            made |= {HI: pa.array(hi), LO: pa.array(lo), KEY_GROUP: self._groups(hi)}
        return self._batch(columns, [made[name] for name in columns])

    def _assembled(
        self,
        columns: list[str],
        rows: pa.RecordBatch,
        windows: Windows,
        after_us: int,
        until_us: int | None = None,
    ) -> pa.RecordBatch:
        """The windows of some panes that end after a time, and not after another."""
        from millrace.operators.window.assembling import assembled

        aggregates = [name for name in columns if name in self._aggregates]
        parts = [self._aggregates[name].fields for name in aggregates]

        def combined(states: list[pa.Array], starts: Int64Array) -> list[pa.Array]:
            found, first = [], 0
            for name, fields in zip(aggregates, parts, strict=True):
                found += self._combined(name, states[first : first + len(fields)], starts)
                first += len(fields)
            return found

        keys = [HI, LO, PANE, *self._keys_in(columns)]
        shown = assembled(
            _pane_rows(rows, keys, [f.name for fields in parts for f in fields]),
            windows,
            combined,
            after_us,
            until_us,
        )
        heads = pa.RecordBatch.from_arrays(shown.keys, names=keys)
        made = {name: heads.column(name) for name in keys[3:]}
        made[WINDOW] = window_column(shown.ends, windows)
        made[WINDOW_LENGTH] = length_column(windows, len(shown.ends))
        first = 0
        for name, fields in zip(aggregates, parts, strict=True):
            made[name] = self._aggregates[name].result(shown.states[first : first + len(fields)])
            first += len(fields)
        return self._finished(columns, made, heads, heads.column(PANE).to_numpy())


def _pane_rows(rows: pa.RecordBatch, keys: list[str], states: list[str]) -> PaneRows:
    from millrace.operators.window.assembling import PaneRows

    return PaneRows(
        rows.column(HI).to_numpy(),
        rows.column(LO).to_numpy(),
        rows.column(PANE).to_numpy(),
        [rows.column(name) for name in keys],
        [rows.column(name) for name in states],
    )


def micros(times: pa.Array) -> tuple[Int64Array, BoolArray]:
    """Times in microseconds, and which of them there are."""
    numbers = times.cast(WINDOW_TYPE[0].type).cast(pa.int64())
    valid: BoolArray = numbers.is_valid().to_numpy(zero_copy_only=False)
    return numbers.fill_null(0).to_numpy(zero_copy_only=False), valid
