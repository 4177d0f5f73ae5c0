"""The join of two streams by key, within an interval of event time.

In an epoch a shard (1) sets late rows aside, (2) puts the new rows of each stream in order, (3)
finds the pairs: new left rows with stored right ones and with new ones, and new right rows with
stored left ones, (4) finds the rows that get no partner any more, by the index of time, and emits
those that have had none if the join is an outer one, and (5) stores the new rows that may still get
one. What is over is not written: see `state.eviction`.

Invariant: a pair is emitted in the epoch in which its second row comes; a row without a partner in
the one epoch whose watermark says that none can come any more. What comes later is late, because
late is what the watermark of the epoch before has passed.

Tables of rows are only ever added to. That a stored row has got its first partner is a row in a
table beside, a few bytes long, and written once.

Known rough edge: a row is looked for in every delta that has its key group and its time. Many
epochs between two merges of a key group therefore cost a search each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.input import Input
from millrace.operators.join import layout
from millrace.operators.join.arrivals import Arrived, Division, divide
from millrace.operators.join.columns import (
    Columns,
    changed_rows,
    nulls,
    output_batch,
    taken,
    united,
)
from millrace.operators.join.late import counted, late_rows
from millrace.operators.join.layout import (
    ANTI,
    EITHER,
    EVENT,
    LEFT,
    LEFT_MATCHED,
    MATCHED,
    RIGHT,
    RIGHT_MATCHED,
    RIGHT_ROWS,
    SEMI,
)
from millrace.operators.join.matching import ALL, FIRST, ONCE, Pages, page_of, pairs, stored_pages
from millrace.operators.join.ordering import tick_bits
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.join.storing import stored_rows
from millrace.operators.join.streams import TwoStreams
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups, sort_order
from millrace.state.time_index import TimeIndex

_NONE = np.empty(0, np.uint64)


class JoinOperator(TwoStreams):
    """Keys, two streams, an interval, and what becomes of rows without a partner."""

    definition: JoinDefinition

    runs_without_rows = True
    """Rows end when the watermark passes, and it may pass without rows."""

    def __init__(
        self, name: OperatorName, definition: JoinDefinition, *, ansi: bool = True
    ) -> None:
        self.how = definition.how
        self.only_left = self.how in (SEMI, ANTI)
        super().__init__(name, definition, only_left=self.only_left)
        self.within = {"lower": definition.lower_us, "upper": definition.upper_us}
        # Rows of both streams are looked for in intervals of this length.
        self.bits = tick_bits(definition.upper_us - definition.lower_us)
        self.tables = layout.tables(self.how, *self.fields)
        self.check_names()

    @staticmethod
    def from_spec(name: OperatorName, data: dict[str, Any], *, ansi: bool = True) -> JoinOperator:
        return JoinOperator(name, JoinDefinition.from_json(data), ansi=ansi)

    def output_watermark(self, watermark_us: int | None) -> int | None:
        if watermark_us is None:
            return None
        # A row may be stored until its partner comes, or until none can come. A left row waits for
        # right ones that are at most `upper` later, a right row for left ones.
        held = {
            LEFT: max(self.definition.upper_us, 0),
            RIGHT: max(-self.definition.lower_us, 0),
        }
        time = self.definition.time
        return watermark_us - (max(held.values()) if time == EITHER else held[time])

    def sweep(self, table: str, moment: Moment) -> Eviction:
        return layout.eviction(table, self.within, moment)

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return _Joining(self, replicas, rows, groups, moment).change()


@dataclass
class _Side:
    """One of the two streams in one epoch."""

    name: str
    table: str
    matched_table: str
    replica: Replica
    matched: Replica | None
    """The table of stored rows that have got a partner; None if that does not matter."""
    new: Arrived
    alone: Int64Array
    columns: Columns
    keys: list[pa.Array]
    """Of the new rows, in their order."""
    own: list[pa.Array]
    """The other columns of the new rows."""
    names: list[str]
    hit: BoolArray
    """Which new rows have a partner."""
    limit: int
    """Rows with an earlier event time are over after the epoch, as far as is known yet."""
    before: int
    """And before it."""
    met: UInt64Array
    """Addresses of stored rows that have got a partner in this epoch, each once."""

    @property
    def stays(self) -> BoolArray:
        return self.new.time >= self.limit


class _Joining:
    """What one shard does in one epoch."""

    def __init__(
        self,
        operator: JoinOperator,
        replicas: dict[str, Replica],
        rows: Input,
        groups: Int64Array,
        moment: Moment,
    ) -> None:
        self._operator = operator
        self._groups = groups
        self._moment = moment
        self._rows = rows
        self._keys = Columns(rows.keys, operator.key_types)
        self._watermark = moment.watermark_us or 0
        self._late = min(moment.late_us or 0, self._watermark)
        divided = divide(rows, moment, (operator.bits, operator.bits))
        self._left = self._side((LEFT, MAIN, LEFT_MATCHED), replicas, divided[0], rows.columns)
        self._right = self._side(
            (RIGHT, RIGHT_ROWS, RIGHT_MATCHED), replicas, divided[1], rows.right
        )
        self._divided = divided
        self._output: list[list[pa.Array]] = []
        """Pieces of the output, each in columns."""

    def _side(
        self,
        names: tuple[str, str, str],
        replicas: dict[str, Replica],
        divided: Division,
        values: tuple[Any, ...],
    ) -> _Side:
        operator = self._operator
        name, table, matched = names
        # Until all rows of the epoch are there, rows are over as they were before it.
        until = self._late if self._moment.more else self._watermark
        kinds, columns = operator.left_types, operator.left_names
        if name == RIGHT:
            kinds, columns = operator.right_types, operator.right_names
        stream = Columns(values, kinds)
        # Pairs are in order of the new rows: columns in the same order are read one after the
        # other.
        position = divided.partners.position
        return _Side(
            name,
            table,
            matched,
            replicas[table],
            replicas.get(matched),
            divided.partners,
            divided.alone,
            stream,
            self._keys.take(position),
            stream.take(position),
            columns,
            np.zeros(len(divided.partners), np.bool_),
            layout.limit(table, operator.within, until),
            layout.limit(table, operator.within, self._late),
            _NONE,
        )

    def change(self) -> Change:
        left, right = self._left, self._right
        if self._operator.only_left:
            self._mark()
        else:
            self._pair()
        tables: dict[str, TableChange] = {}
        for side in (left, right):
            self._finish(side, tables)
        operator = self._operator
        streams = (left.columns, right.columns)
        return Change(
            tables,
            output_batch(self._output, operator.output_schema),
            counted(self._divided, tables[left.table].evicted + tables[right.table].evicted),
            late_rows(operator.side_schemas, self._divided, self._keys, streams),
        )

    def _pair(self) -> None:
        """All pairs of which one row is new."""
        left, right = self._left, self._right
        new, stored = self._find_partners(left, right, ALL)
        self._emit(self._new(left, new), right.replica.gather(stored, right.names))
        right.met = _distinct(right, stored)
        new, other = self._find_partners(left, right, ALL, among_new=True)
        right.hit[other] = True
        self._emit(self._new(left, new), taken(right.own, other))
        new, stored = self._find_partners(right, left, ALL)
        keys, own = self._new(right, new)
        self._emit((keys, left.replica.gather(stored, left.names)), own)
        left.met = _distinct(left, stored)

    def _mark(self) -> None:
        """Which left rows have a partner; a semi join emits those that have got their first."""
        left, right = self._left, self._right
        self._find_partners(left, right, FIRST)
        self._find_partners(left, right, FIRST, among_new=True)
        _, stored = self._find_partners(right, left, ONCE)
        left.met = _distinct(left, stored)
        if self._operator.how == SEMI:
            self._emit(self._new(left, np.flatnonzero(left.hit)), [])
            fresh = left.met[~self._was_matched(left, left.met)]
            self._emit(self._stored(left, fresh), [])

    def _find_partners(
        self, side: _Side, other: _Side, mode: int, *, among_new: bool = False
    ) -> tuple[Int64Array, Any]:
        """New rows of one side that have partners on the other, and where those are."""
        operator = self._operator
        within = (operator.within["lower"], operator.within["upper"])
        if side.name == RIGHT:
            within = (-within[1], -within[0])
        new = side.new
        pages = self._new_page(other) if among_new else self._stored_pages(other, new, within)
        # A row that is over may still be stored or not: it must not make a difference.
        limit = np.iinfo(np.int64).min if among_new else other.before
        found, partners = pairs(
            new.looked_for,
            pages,
            within,
            operator.bits,
            limit,
            other.replica.shift,
            mode,
            side.hit,
        )
        return found, partners.astype(np.int64) if among_new else partners

    def _stored_pages(self, other: _Side, new: Arrived, within: tuple[int, int]) -> Pages:
        replica = other.replica
        counts = count_groups(new.hi, np.uint64(replica.shift), replica.key_groups)
        first = int(new.time.min(initial=np.iinfo(np.int64).max >> 1)) + within[0]
        last = int(new.time.max(initial=np.iinfo(np.int64).min >> 1)) + within[1]
        return stored_pages(replica, np.flatnonzero(counts), max(first, other.before), last)

    def _new_page(self, other: _Side) -> Pages:
        new = other.new
        return page_of(new.place, new.time, new.lo, new.low32, other.replica.key_groups)

    def _finish(self, side: _Side, tables: dict[str, TableChange]) -> None:
        """Rows that get no partner any more, and rows to store."""
        due = TimeIndex(side.replica, EVENT).added_between(
            self._groups, side.before, side.limit - 1
        )
        if side.matched is not None:
            had = self._was_matched(side, due) | np.isin(due, side.met)
            self._emit_lonely(side, due[~had])
            tables[side.matched_table] = self._matched_change(side, due)
        tables[side.table] = self._stored_change(side, len(due))

    def _was_matched(self, side: _Side, addresses: UInt64Array) -> BoolArray:
        """Which stored rows had got a partner before this epoch."""
        assert side.matched is not None
        if not len(addresses):
            return np.zeros(0, np.bool_)
        hi, lo = (c.to_numpy() for c in side.replica.gather(addresses, [HI, LO]))
        found: BoolArray = side.matched.find(hi, lo) != 0
        if MATCHED in side.replica.schema.names:
            (flags,) = side.replica.gather(addresses, [MATCHED])
            found |= flags.fill_null(False).to_numpy(zero_copy_only=False)
        return found

    def _emit_lonely(self, side: _Side, stored: UInt64Array) -> None:
        """Rows that have no partner and get none any more."""
        if self._operator.how == SEMI:
            return
        lonely = np.flatnonzero(~side.hit & ~side.stays)
        # What cannot have a partner need not wait.
        positions = np.concatenate([side.alone, side.new.position[lonely]])
        rows = len(positions) + len(stored)
        if not rows:
            return
        (keys, own), (stored_keys, stored_own) = (
            (self._keys.take(positions), side.columns.take(positions)),
            self._stored(side, stored),
        )
        keys, own = united([keys, stored_keys]), united([own, stored_own])
        operator = self._operator
        if side.name == LEFT:
            right = [] if operator.only_left else nulls(operator.right_types, rows)
            self._emit((keys, own), right)
        else:
            self._emit((keys, nulls(operator.left_types, rows)), own)

    def _matched_change(self, side: _Side, due: UInt64Array) -> TableChange:
        """Stored rows that have got their first partner."""
        assert side.matched is not None
        fresh = side.met[~self._was_matched(side, side.met)]
        hi, lo, time = (c.to_numpy() for c in side.replica.gather(fresh, [HI, LO, EVENT]))
        stay = time >= side.limit
        hi, lo, time = hi[stay], lo[stay], time[stay]
        order = sort_order(hi, lo)
        changed = changed_rows(side.matched, hi[order], lo[order], [pa.array(time[order])])
        gone_hi, gone_lo = (c.to_numpy() for c in side.replica.gather(due, [HI, LO]))
        evicted = int((side.matched.find(gone_hi, gone_lo) != 0).sum()) if len(due) else 0
        return TableChange(changed, len(hi), evicted=evicted)

    def _stored_change(self, side: _Side, evicted: int) -> TableChange:
        """The new rows that may still get a partner."""
        stays = side.stays
        if self._operator.only_left and side.name == LEFT:
            # What has a partner is done with.
            stays &= ~side.hit
        kept = np.flatnonzero(stays)
        own = [pa.array(side.hit[kept])] if MATCHED in side.replica.schema.names else []
        return stored_rows(
            side.replica, side.new, kept, self._moment, [*side.keys, *side.own], own, evicted
        )

    def _new(self, side: _Side, numbers: Int64Array) -> tuple[list[pa.Array], list[pa.Array]]:
        """Keys and columns of new rows."""
        return taken(side.keys, numbers), taken(side.own, numbers)

    def _stored(self, side: _Side, at: UInt64Array) -> tuple[list[pa.Array], list[pa.Array]]:
        """Keys and columns of stored rows."""
        keys = self._operator.key_names
        return side.replica.gather(at, keys), side.replica.gather(at, side.names)

    def _emit(self, left: tuple[list[pa.Array], list[pa.Array]], right: list[pa.Array]) -> None:
        keys, own = left
        if len(keys[0]):
            self._output.append([*keys, *own, *right])


def _distinct(side: _Side, addresses: UInt64Array) -> UInt64Array:
    """Each address once, if it matters which rows have partners."""
    if side.matched is None:
        return _NONE
    found: UInt64Array = np.unique(addresses)
    return found
