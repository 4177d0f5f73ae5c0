"""Deduplication: of the rows with equal keys, the first one passes through immediately.

State has the keys that were seen, and not their rows. A key is forgotten when a clock has passed
its expiry: the watermark, or processing time. Nothing is written for that (`state.eviction`).

Rows come as they are, without a partial step in the JVM: Spark would have to sort them to keep one
whole row per key, which costs more than to send duplicates to the shard that drops them.

Invariant: whether a row goes on depends on state as of the epoch's version, and on rows before it
in order of input partition and position. Late rows neither go on nor are remembered.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.ids import OperatorName
from millrace.operators.aggregate.reducing import check_names
from millrace.operators.arrays import whole_numbers
from millrace.operators.dedup.layout import (
    EVENT,
    EXPIRES,
    EXPIRES_AT,
    NEVER,
    eviction,
    passed,
    passed_before,
    table_layout,
)
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Column, Moment, TableChange
from millrace.operators.process.outputs import LATE
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.time_index import TimeIndex


@dataclass(frozen=True)
class _Firsts:
    """The first row of each key that has one in the epoch, in order of fingerprint."""

    positions: Int64Array
    hi: UInt64Array
    lo: UInt64Array
    addresses: UInt64Array
    """Where the key is in state; 0 for one that is not."""
    is_new: BoolArray
    """Whether the key is not remembered, so that its row goes on."""
    is_gone: BoolArray
    """Whether state may still have the key, but has counted it as evicted."""


class DedupOperator:
    """Keys, and how long they are remembered."""

    runs_without_rows = False

    def __init__(
        self,
        name: OperatorName,
        definition: DedupDefinition,
        fields: Sequence[Column] = (),
        computed: Sequence[int] = (),
    ) -> None:
        """`fields` are the columns of the stream: those of the rows that go on.

        `computed` are the numbers of the keys that are expressions; the others are columns of the
        stream, and are not sent twice.
        """
        self.name = name
        self.definition = definition
        self.keys = definition.keys
        self.fields = tuple(fields)
        arrow = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        self._key_fields = [pa.field(k.name, t) for k, t in zip(self.keys, arrow, strict=True)]
        self.tables = {MAIN: table_layout(self._key_fields, definition.time)}
        shown = [] if definition.time == NEVER else [EXPIRES_AT]
        check_names(name, [*(key.name for key in self.keys), *shown])
        self.output_schema = T.StructType([T.StructField(f.name, f.type) for f in self.fields])
        self._arrow = types.arrow_schema(self.output_schema)
        self.side_schemas = {LATE: self.output_schema} if definition.time == EVENT else {}
        self.computed = tuple(computed)
        at = {field.name: i for i, field in enumerate(self.fields)}
        self._sources = [
            None if i in self.computed else at.get(key.name) for i, key in enumerate(self.keys)
        ]

    def spec(self) -> dict[str, Any]:
        return self.definition.to_json()

    @staticmethod
    def from_spec(name: OperatorName, data: dict[str, Any], *, ansi: bool = True) -> DedupOperator:
        return DedupOperator(name, DedupDefinition.from_json(data))

    def code(self) -> bytes:
        """What a worker needs to run it: a spec does not have the columns of rows."""
        arguments = self.name, self.definition, self.fields, self.computed
        return pickle.dumps((DedupOperator, arguments))

    def output_watermark(self, watermark_us: int | None) -> int | None:
        # Rows go on in the epoch in which they come.
        return watermark_us

    def no_rows(self) -> Input:
        nothing = np.empty(0, np.uint64)
        columns = tuple(pa.array([], field.type) for field in self._arrow)
        times = pa.array([], pa.int64()) if self.definition.time == EVENT else None
        keys = tuple(pa.array([], self._key_fields[i].type) for i in self.computed)
        return Input(nothing, nothing, keys, np.empty(0, np.int32), (), columns, times)

    def sweep(self, table: str, moment: Moment) -> Eviction | None:
        return eviction(self.definition.time, moment)

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        replica = replicas[MAIN]
        is_late = self._late(rows, moment)
        firsts = self._firsts(replica, rows, np.flatnonzero(~is_late), moment)
        changed, added = self._remembered(replica, rows, firsts, moment)
        evicted = 0 if moment.more else self._evicted(replica, groups, firsts, moment)
        going = np.sort(firsts.positions[firsts.is_new])
        late = int(is_late.sum())
        counters = {"duplicates": rows.num_rows - late - len(going)}
        if self.definition.time != NEVER:
            counters["evicted"] = evicted
        if late:
            counters["late"] = late
        sides = {LATE: self._rows(rows, np.flatnonzero(is_late))} if late else {}
        table = TableChange(changed, added, evicted=evicted)
        return Change({MAIN: table}, self._rows(rows, going), counters, sides)

    def _late(self, rows: Input, moment: Moment) -> BoolArray:
        """Which rows the watermark of the epoch before has passed; one without a time never."""
        if self.definition.time != EVENT:
            return np.zeros(rows.num_rows, np.bool_)
        assert rows.event_us is not None
        times, known = whole_numbers(rows.event_us)
        # As in Spark, a watermark that is not there yet is 0.
        return known & (times <= (moment.late_us or 0))

    def _firsts(
        self, replica: Replica, rows: Input, positions: Int64Array, moment: Moment
    ) -> _Firsts:
        assert rows.part is not None
        positions = rows.by_part(positions)
        hi, lo = rows.hi[positions], rows.lo[positions]
        order = sort_order(hi, lo)
        heads = order[group_starts(hi[order], lo[order])[:-1]]
        hi, lo = hi[heads], lo[heads]
        addresses = replica.find(hi, lo)
        is_known = addresses != 0
        is_gone = np.zeros(len(hi), np.bool_)
        time = self.definition.time
        if time != NEVER:
            expires, _ = whole_numbers(replica.gather(addresses, [EXPIRES])[0])
            before = passed_before(time, moment)
            is_gone = is_known & (expires <= before)
            # By event time a key counts until the epoch ends in which the watermark passes it.
            is_known &= expires > (before if time == EVENT else passed(time, moment))
        return _Firsts(positions[heads], hi, lo, addresses, ~is_known, is_gone)

    def _remembered(
        self, replica: Replica, rows: Input, firsts: _Firsts, moment: Moment
    ) -> tuple[pa.RecordBatch, int]:
        """The rows of keys that are new, and how many keys more there are."""
        staying = firsts.is_new
        arrays: list[pa.Array] = []
        if self.definition.time != NEVER:
            expires = self._expiries(rows, firsts.positions, moment)
            if not moment.more:
                # Rows of a key that is forgotten in the same epoch need not be written.
                staying = staying & (expires > passed(self.definition.time, moment))
            arrays.append(pa.array(expires[staying]))
        chosen = pa.array(firsts.positions[staying])
        computed = iter(rows.keys)
        keys = []
        for field, source in zip(self._key_fields, self._sources, strict=True):
            column = next(computed) if source is None else rows.columns[source]
            keys.append(types.conform(column, field.type).take(chosen))
        hi, lo = firsts.hi[staying], firsts.lo[staying]
        deleted = pa.array(np.zeros(len(hi), np.bool_))
        columns = [pa.array(hi), pa.array(lo), deleted, *keys, *arrays]
        changed = pa.RecordBatch.from_arrays(columns, schema=replica.schema)
        added = staying & ((firsts.addresses == 0) | firsts.is_gone)
        return changed, int(added.sum())

    def _expiries(self, rows: Input, positions: Int64Array, moment: Moment) -> Int64Array:
        ttl = self.definition.ttl_us
        if self.definition.time != EVENT:
            return np.full(len(positions), passed(self.definition.time, moment) + ttl, np.int64)
        assert rows.event_us is not None
        times, _ = whole_numbers(rows.event_us)
        # A key without event time is forgotten when the watermark moves.
        earliest = passed_before(EVENT, moment) + 1
        expiries: Int64Array = np.maximum(times[positions] + ttl, earliest)
        return expiries

    def _evicted(
        self, replica: Replica, groups: Int64Array, firsts: _Firsts, moment: Moment
    ) -> int:
        """The keys whose time the epoch has passed, but for those that have come again."""
        time = self.definition.time
        if time == NEVER:
            return 0
        first, last = passed_before(time, moment) + 1, passed(time, moment)
        found = TimeIndex(replica, EXPIRES).between(groups, first, last)
        again = firsts.addresses[firsts.is_new & (firsts.addresses != 0)]
        return len(found) - int(np.isin(found, again).sum()) if len(again) else len(found)

    def _rows(self, rows: Input, positions: Int64Array) -> pa.RecordBatch:
        """Some rows as they came."""
        chosen = pa.array(positions)
        arrays = [
            types.conform(column, field.type).take(chosen)
            for column, field in zip(rows.columns, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
