"""The state of a window operator as a table: a row per key and window that is not over.

What is stored is panes. Where windows do not overlap, a pane is a window and pages are shown as
they are; else the panes of each window are put together when they are read. Panes that the
watermark has passed may still be stored, and are left out.

A key's panes are in its own key group. Their times are not in the key, so a look at all windows of
a key tries the pane times that its key group has; a look at one window knows its panes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.keygroups import groups_of
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.layout import kept_of
from millrace.operators.operator import MAIN
from millrace.operators.window.layout import PANE, WINDOW, WINDOW_TYPE, window_column
from millrace.operators.window.panes import Windows
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed

if TYPE_CHECKING:
    from millrace.operators.window.assembling import PaneRows
    from millrace.state.replica import Replica

WINDOW_START = "window_start"
"""The last column of a key to look up."""

_TOGETHER = 16
"""Key groups whose panes are put together at once."""


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
        replica = self.snapshot.replica(self.description, MAIN, groups)
        if not self._windows.overlap:
            for rows in scan(replica, groups, self._needs(columns)):
                yield self._made(columns, rows)
            return
        for first in range(0, len(groups), _TOGETHER):
            some = groups[first : first + _TOGETHER]
            addresses = np.concatenate([replica.rows(int(group)) for group in some])
            yield self._made(columns, gathered(replica, addresses, self._needs(columns)))

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        from millrace.operators.window.addresses import at_times

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

    def look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of some windows, in their order, and which of them there are."""
        from millrace.operators.window.addresses import at_times

        *key, start = keys
        starts, known = micros(start)
        hi, lo = self.fingerprints(key)
        known &= (starts - self._windows.offset_us) % self._windows.slide_us == 0
        replica = followed(self, MAIN, (hi, lo))
        each = self._windows.size_us // self._windows.pane_us
        offsets = np.tile(np.arange(each) * self._windows.pane_us, int(known.sum()))
        asked = np.repeat(np.flatnonzero(known), each)
        pane_hi, pane_lo = at_times(hi[asked], lo[asked], starts[asked] + offsets)
        addresses = np.unique(replica.find(pane_hi, pane_lo))
        rows = gathered(replica, addresses[addresses != 0], self._needs([HI, *columns]))
        names = [*dict.fromkeys([HI, LO, WINDOW, *(c for c in columns if c != WINDOW_START)])]
        shown = self._made(names, rows)
        at = self._positions(shown, hi, lo, starts, known)
        where = pa.array(at, mask=at < 0)
        return [
            shown.column(name).take(where) if name != WINDOW_START else start for name in columns
        ], at >= 0

    def _positions(
        self,
        shown: pa.RecordBatch,
        hi: UInt64Array,
        lo: UInt64Array,
        starts: Int64Array,
        known: BoolArray,
    ) -> Int64Array:
        """Where each window that was asked for is among those found; -1 if it is not."""
        found, _ = micros(shown.column(WINDOW).field("start"))
        there = {
            window: row
            for row, window in enumerate(
                zip(
                    shown.column(HI).to_pylist(),
                    shown.column(LO).to_pylist(),
                    found.tolist(),
                    strict=True,
                )
            )
        }
        asked = zip(hi.tolist(), lo.tolist(), starts.tolist(), strict=True)
        at = [there.get(window, -1) for window in asked]
        return np.where(known, np.asarray(at, np.int64), -1)

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
        panes: Int64Array = rows.column(PANE).to_numpy()
        if len(panes) and panes.min() < self._limit:
            rows = rows.filter(pa.array(panes >= self._limit))
        if not columns:
            return rows
        if self._windows.overlap:
            return self._assembled(columns, rows)
        panes = rows.column(PANE).to_numpy()
        made = {WINDOW: window_column(panes + self._windows.size_us, self._windows)}
        for name in columns:
            if name in self._aggregates:
                kept = self._aggregates[name]
                made[name] = kept.result([rows.column(f.name) for f in kept.fields])
            elif name in self.keys:
                made[name] = rows.column(name)
        return self._finished(columns, made, rows, panes)

    def _finished(
        self, columns: list[str], made: dict[str, pa.Array], rows: pa.RecordBatch, panes: Int64Array
    ) -> pa.RecordBatch:
        """Columns in their order, with the key's fingerprint and key group where asked for."""
        if not SYSTEM.keys().isdisjoint(columns):
            from millrace.operators.window.addresses import at_times

            hi, lo = at_times(rows.column(HI).to_numpy(), rows.column(LO).to_numpy(), panes)
            made |= {HI: pa.array(hi), LO: pa.array(lo), KEY_GROUP: self._groups(hi)}
        return self._batch(columns, [made[name] for name in columns])

    def _assembled(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        from millrace.operators.aggregate.combining import combine
        from millrace.operators.window.assembling import assembled

        aggregates = [name for name in columns if name in self._aggregates]
        parts = [self._aggregates[name].fields for name in aggregates]

        def combined(states: list[pa.Array], starts: Int64Array) -> list[pa.Array]:
            found, first = [], 0
            for name, fields in zip(aggregates, parts, strict=True):
                own = states[first : first + len(fields)]
                first += len(fields)
                function, options = self._functions[name]
                found += combine(function, name, own, starts, options)
            return found

        keys = [HI, LO, PANE, *(name for name in columns if name in self.keys)]
        windows = assembled(
            _pane_rows(rows, keys, [f.name for fields in parts for f in fields]),
            self._windows,
            combined,
            self._watermark_us,
        )
        heads = pa.RecordBatch.from_arrays(windows.keys, names=keys)
        made = {name: heads.column(name) for name in keys[3:]}
        made[WINDOW] = window_column(windows.ends, self._windows)
        first = 0
        for name, fields in zip(aggregates, parts, strict=True):
            made[name] = self._aggregates[name].result(windows.states[first : first + len(fields)])
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
