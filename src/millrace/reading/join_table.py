"""Rows that wait for partners, as a table: those of a join's streams, or of an as-of join's.

Rows that the watermark has passed may still be stored, and are left out; and so are left rows of a
semi or anti join that have had a partner, which are done with. Outer joins say of each row whether
it is `matched`.

A key's rows are in its own key group, one after the other, so a look at a key reads the
fingerprints of its key group. To look a key up is to get the newest of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.keygroups import groups_of
from millrace.log.segment import HI, LO
from millrace.operators.join import layout
from millrace.operators.join.layout import EVENT, KEY_HI, KEY_LO, MATCHED, OWN_COLUMNS
from millrace.operators.operator import MAIN
from millrace.operators.pattern.layout import MASK
from millrace.reading.replicas import gathered, scan
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed

if TYPE_CHECKING:
    from millrace.state.replica import Replica

_MATCHED_TABLES = {MAIN: layout.LEFT_MATCHED, layout.RIGHT_ROWS: layout.RIGHT_MATCHED}


class JoinTable(StateTable):
    """A row per row of a stream that may still get a partner."""

    def _schema(self) -> pa.Schema:
        eviction = self.description.eviction(self.state, self.moment)
        assert eviction is not None
        self._eviction = eviction
        stored = self.description.tables[self.state].schema
        own = [field for field in stored if field.name not in (*OWN_COLUMNS, MASK)]
        matched = _MATCHED_TABLES.get(self.state, "")
        self._matched = matched if matched in self.description.tables else None
        self._flag = None
        if MATCHED in stored.names:
            self._flag = "matched" if "matched" not in stored.names else MATCHED
            own.append(pa.field(self._flag, pa.bool_()))
        return pa.schema(own)

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up."""
        return self.description.key_schema

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        replica = self.snapshot.replica(self.description, self.state, groups)
        for rows in scan(replica, groups, self._needs(columns)):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        replica = followed(self, self.state, keys)
        _, addresses = _rows_of(replica, keys)
        return self._made(columns, gathered(replica, addresses, self._needs(columns)))

    def _look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of the newest row of some keys, in their order, and which of them have one."""
        prints = self.fingerprints(keys)
        replica = followed(self, self.state, prints)
        number, addresses = _rows_of(replica, prints)
        rows = gathered(replica, addresses, [HI, LO, EVENT])
        present = self._present(rows)
        number, addresses = number[present], addresses[present]
        times: Int64Array = rows.column(EVENT).to_numpy()[present]
        order = np.lexsort((times, number))
        newest = np.zeros(len(prints[0]), np.uint64)
        # The last of several values is the one that stays.
        newest[number[order]] = addresses[order]
        found: BoolArray = newest != 0
        shown = self._made(columns, gathered(replica, newest[found], self._needs(columns)))
        where = pa.array(np.cumsum(found) - 1, mask=~found)
        return [column.take(where) for column in shown.columns], found

    def _needs(self, columns: list[str]) -> list[str]:
        """The stored columns that some shown ones are made of."""
        needs = dict.fromkeys([EVENT])
        if self._matched is not None or not SYSTEM.keys().isdisjoint(columns):
            needs |= dict.fromkeys([HI, LO, KEY_LO, KEY_HI])
        for name in columns:
            if name == self._flag:
                needs[MATCHED] = None
            elif name not in SYSTEM:
                needs[name] = None
        return list(needs)

    def _present(self, rows: pa.RecordBatch) -> BoolArray:
        """Which rows may still get a partner that matters."""
        present = ~self._eviction.over(rows.column(EVENT))
        if self._matched is not None and self._flag is None:
            present &= ~self._has_met(rows)
        return present

    def _has_met(self, rows: pa.RecordBatch) -> BoolArray:
        """Which rows have got a partner after the epoch in which they came."""
        assert self._matched is not None
        hi, lo = _words(rows, HI), _words(rows, LO)
        groups = np.unique(groups_of(hi, self.snapshot.trail.key_groups))
        matched = self.snapshot.replica(self.description, self._matched, groups)
        found: BoolArray = matched.find(hi, lo) != 0
        return found

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        present = self._present(rows)
        if not present.all():
            rows = rows.filter(pa.array(present))
        if not columns:
            return rows
        made: dict[str, pa.Array] = {}
        if not SYSTEM.keys().isdisjoint(columns):
            hi, lo = _key_of(rows)
            made |= {HI: pa.array(hi), LO: pa.array(lo), KEY_GROUP: self._groups(hi)}
        if self._flag in columns:
            flags = rows.column(MATCHED).fill_null(False).to_numpy(zero_copy_only=False)
            made[str(self._flag)] = pa.array(flags | self._has_met(rows))
        return self._batch(
            columns, [made[name] if name in made else rows.column(name) for name in columns]
        )


def _rows_of(replica: Replica, keys: Fingerprints) -> tuple[Int64Array, UInt64Array]:
    """The rows of some keys: the number of the key, and the row's address."""
    hi, lo = keys
    numbers: list[Int64Array] = [np.empty(0, np.int64)]
    found: list[UInt64Array] = [np.empty(0, np.uint64)]
    groups = groups_of(hi, replica.key_groups)
    for group in np.unique(groups).tolist():
        addresses = replica.rows(group)
        rows = gathered(replica, addresses, [HI, KEY_LO, KEY_HI])
        row_hi, row_lo = _key_of(rows)
        # In order of the rows' own fingerprints, keys are in order but for the lowest bits.
        order = np.argsort(row_hi, kind="stable")
        mine = np.flatnonzero(groups == group)
        first = np.searchsorted(row_hi, hi[mine], side="left", sorter=order)
        last = np.searchsorted(row_hi, hi[mine], side="right", sorter=order)
        for key, begin, end in zip(mine.tolist(), first.tolist(), last.tolist(), strict=True):
            rows_of_key = order[begin:end]
            rows_of_key = rows_of_key[row_lo[rows_of_key] == lo[key]]
            numbers.append(np.full(len(rows_of_key), key, np.int64))
            found.append(addresses[rows_of_key])
    return np.concatenate(numbers), np.concatenate(found)


def _key_of(rows: pa.RecordBatch) -> Fingerprints:
    """The fingerprints of rows' keys."""
    low = _words(rows, KEY_HI).astype(np.uint64)
    half = np.uint64(32)
    return (_words(rows, HI) >> half << half) | low, _words(rows, KEY_LO)


def _words(rows: pa.RecordBatch, name: str) -> UInt64Array:
    found: UInt64Array = rows.column(name).to_numpy(zero_copy_only=False)
    return found
