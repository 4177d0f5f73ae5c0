"""Testing a processor without Spark: real state, a clock and a watermark under your control.

    harness = mr.testing.Harness(
        Visits(), key="user", schema="user string, page string, at timestamp",
        output="user string, visits long", event_time="at",
    )
    harness.send([{"user": "ann", "page": "/", "at": noon}])
    harness.advance_watermark(noon + mr.minutes(31))      # timers fire, late rows are late

Broadcast rows come along: `harness.send(rows, broadcast={"rules": {"key": value}})`.

Each call is an epoch and returns the rows it emitted: as a list those of the main output, with
`.side("alerts")` those of a side output, with `.late()` the input rows that were too late. State
goes through the same tables, segments and merges as in a query; only Spark is missing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pyspark.sql import types as T

from millrace import clock, types
from millrace.ddl import parse_schema
from millrace.errors import UnknownColumnError, UnknownOutputError, UsageError
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, groups_of
from millrace.keygroups.hashing import UInt64Array, fingerprints, is_computable
from millrace.log import Journal, OperatorCommit, SegmentEntry, open_store
from millrace.log.segment import HI, LO, segment_path
from millrace.operators.aggregate import PART, Key
from millrace.operators.operator import MAIN, Change, Moment, runs_every_epoch, table_name
from millrace.processors.convert import encode_key, from_us, to_arrow, to_python, to_us
from millrace.processors.making import make_operator
from millrace.processors.outputs import LATE
from millrace.processors.processor import Processor
from millrace.processors.rows import EVENT, IS_INITIAL
from millrace.processors.shared.broadcast import KEY, VALUE
from millrace.processors.shared.session import broadcasts, side_column, side_type
from millrace.processors.whole_batch import BatchProcessor
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

Broadcasts: TypeAlias = Mapping[str, Mapping[Any, Any] | Iterable[tuple[Any, Any]]]
"""Broadcast rows by state: keys and values, in order."""

_NAME = OperatorName("tested")
_KEY_GROUPS = 16
_INDEX_BUDGET = 1 << 30
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Emitted(list[tuple[Any, ...]]):
    """The rows of the main output, and those beside it."""

    def __init__(
        self, rows: Iterable[tuple[Any, ...]], sides: dict[str, list[tuple[Any, ...]]]
    ) -> None:
        super().__init__(rows)
        self._sides = sides

    def side(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a side output."""
        if name not in self._sides or name == LATE:
            known = ", ".join(repr(side) for side in self._sides if side != LATE) or "none"
            raise UnknownOutputError(f"there is no side output {name!r}; there are: {known}.")
        return self._sides[name]

    def late(self) -> list[tuple[Any, ...]]:
        """The rows that were too late, as they came."""
        if LATE not in self._sides:
            raise UnknownOutputError("without event_time= no row is late.")
        return self._sides[LATE]

    def then(self, later: Emitted) -> Emitted:
        """These rows, and those of a later epoch."""
        sides = {name: rows + later._sides[name] for name, rows in self._sides.items()}
        return Emitted([*self, *later], sides)


class Harness:
    """One processor, on one shard or on several."""

    def __init__(
        self,
        processor: Processor | BatchProcessor,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        output: str | T.StructType,
        event_time: str | None = None,
        start: dt.datetime = _START,
        shards: int = 1,
        initial_state: Iterable[dict[str, Any]] | None = None,
        initial_schema: str | T.StructType | None = None,
    ) -> None:
        if (initial_state is None) != (initial_schema is None):
            raise UsageError("initial_state= and initial_schema= go together: rows and their type.")
        fields = parse_schema(schema).fields
        by_name = {f.name: f for f in fields}
        names = [key] if isinstance(key, str) else list(key)
        for name in [*names, *([event_time] if event_time else [])]:
            if name not in by_name:
                raise UnknownColumnError(
                    f"there is no column {name!r}; the columns are {', '.join(by_name)}."
                )
        self._operator = make_operator(
            _NAME,
            [Key(n, by_name[n].dataType) for n in names],
            [Key(f.name, f.dataType) for f in fields],
            processor,
            parse_schema(output),
            event_time,
            None if initial_schema is None else parse_schema(initial_schema),
        )
        self._initial = list(initial_state or ())
        self._journal = Journal.create(
            open_store(f"memory://millrace-{clock.fresh_id()}"), _KEY_GROUPS
        )
        self._trail = self._journal.trail(Epoch(0))
        self._every = np.arange(_KEY_GROUPS)
        self._assignment = Assignment.even(_KEY_GROUPS, shards)
        self._time_us = to_us(start)
        self._watermark_us: int | None = None
        self.counters: dict[str, int] = {}
        self.reopen()

    def reopen(self) -> None:
        """Start over from what was committed, as a restarted query does."""
        self._shards: dict[int, dict[str, Replica]] = {}

    def rescale(self, shards: int) -> None:
        """Spread the keys over so many shards from the next epoch on."""
        if not 1 <= shards <= _KEY_GROUPS:
            raise UsageError(f"{shards} shards: there can be 1 to {_KEY_GROUPS}.")
        self._assignment = Assignment.even(_KEY_GROUPS, shards)

    @property
    def now(self) -> dt.datetime:
        """The processing time of the next epoch."""
        return from_us(self._time_us)

    def send(
        self, rows: Iterable[dict[str, Any]] = (), *, broadcast: Broadcasts | None = None
    ) -> Emitted:
        """Run an epoch with these rows; returns what it emitted.

        `broadcast` has the broadcast rows of the epoch, by state: a dict or a list of keys and
        values; None as a value removes the entry.
        """
        table = self._table(list(rows))
        if self._trail.epoch == 0 and self._initial:
            table = pa.concat_tables([self._initial_table(), table], promote_options="default")
        output, sides, counters = self._epoch(table, self._broadcast_rows(broadcast or {}))
        for name, count in counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        return Emitted(_listed(output), {name: _listed(rows) for name, rows in sides.items()})

    def advance_watermark(self, to: dt.datetime) -> Emitted:
        """Move event time forward and run an epoch without rows."""
        us = to_us(to)
        if self._watermark_us is not None and us < self._watermark_us:
            raise UsageError(f"the watermark is at {from_us(self._watermark_us)} and only rises.")
        self._watermark_us = us
        return self.send()

    def advance_time(self, by: dt.timedelta) -> Emitted:
        """Let processing time go by and run an epoch without rows."""
        self._time_us += by // dt.timedelta(microseconds=1)
        return self.send()

    @property
    def location(self) -> str:
        """Where the state is: `mr.open(harness.location)` reads it as that of a query."""
        return self._journal.store.url

    def state(self, name: str = MAIN) -> list[dict[str, Any]]:
        """The rows of the main table, or of a list, map, set, timer or shared table."""
        if name not in self._operator.tables:
            known = ", ".join(repr(table) for table in self._operator.tables if table)
            raise UsageError(f"there is no table {name!r}; there are the main one, {known}.")
        replica = self._open([name])[name]
        self._follow({name: replica}, self._every)
        rows = replica.read(self._every)
        hidden = [n for n in rows.schema.names if n.startswith("_")]
        listed: list[dict[str, Any]] = rows.drop_columns(hidden).to_pylist(maps_as_pydicts="strict")
        return listed

    def _open(self, tables: Iterable[str]) -> dict[str, Replica]:
        store = self._journal.store
        layouts = {table: self._operator.tables[table] for table in tables}
        return {
            table: Replica(store, layout.schema, _KEY_GROUPS, owned=layout.owned)
            for table, layout in layouts.items()
        }

    def _follow(self, replicas: dict[str, Replica], groups: npt.NDArray[np.int64]) -> None:
        for table, replica in replicas.items():
            log = self._trail.operator(table_name(_NAME, table))
            everywhere = self._operator.tables[table].everywhere
            replica.follow(log, self._trail.epoch, self._every if everywhere else groups)

    def _table(self, rows: list[dict[str, Any]]) -> pa.Table:
        operator = self._operator
        columns = self._routed(rows) | _columns("_c", operator.fields, rows)
        if operator.initial:
            columns[IS_INITIAL] = pa.array([False] * len(rows), pa.bool_())
        if operator.event_time is not None:
            times = [row.get(operator.event_time) for row in rows]
            columns[EVENT] = pa.array([None if t is None else to_us(t) for t in times], pa.int64())
        return pa.table(columns)

    def _initial_table(self) -> pa.Table:
        rows = self._initial
        columns = self._routed(rows) | _columns("_i", self._operator.initial, rows)
        return pa.table(columns | {IS_INITIAL: pa.array([True] * len(rows))})

    def _routed(self, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
        """The columns that all rows have: keys and fingerprints."""
        columns = _columns("_k", self._operator.keys, rows)
        hi, lo = self._fingerprints(list(columns.values()))
        columns[HI] = pa.array(hi.view(np.int64))
        columns[LO] = pa.array(lo.view(np.int64))
        columns[PART] = pa.array(np.zeros(len(rows), np.int32))
        return columns

    def _fingerprints(self, keys: list[pa.Array]) -> tuple[UInt64Array, UInt64Array]:
        key_types = [key.type for key in self._operator.keys]
        if all(map(is_computable, key_types)):
            return fingerprints(keys, key_types)
        # As the columns have them: 1 and 1.0 are the same key if it is a double.
        listed = [to_python(column) for column in keys]
        digests = [xxhash.xxh3_128_intdigest(encode_key(k)) for k in zip(*listed, strict=True)]
        words = np.asarray([[d >> 64, d & (2**64 - 1)] for d in digests], np.uint64).reshape(-1, 2)
        return words[:, 0].copy(), words[:, 1].copy()

    def _broadcast_rows(self, broadcast: Broadcasts) -> pa.Table:
        """Broadcast rows as every shard gets them."""
        declared = broadcasts(self._operator.processor)
        for name in broadcast:
            if name not in declared:
                raise UsageError(
                    f"broadcast={{{name!r}: ...}}: the processor declares no such broadcast state; "
                    f"it declares {', '.join(map(repr, declared)) or 'none'}."
                )
        nothing = self._operator.no_rows()
        parts = [nothing]
        for number, (name, declaration) in enumerate(declared.items()):
            given = broadcast.get(name, ())
            items = list(given.items() if isinstance(given, Mapping) else given)
            pairs = [dict(zip((KEY, VALUE), item, strict=True)) for item in items]
            side = to_arrow(pairs, side_type(declaration), f"a row of broadcast state {name!r}")
            # Nothing but the state's own column; columns that must have a value, have zero.
            columns = {
                field.name: pa.nulls(len(pairs), field.type)
                if field.name not in (HI, LO, PART)
                else pa.array(np.zeros(len(pairs)), field.type)
                for field in nothing.schema
            }
            columns[side_column(number)] = side
            parts.append(pa.table(columns, schema=nothing.schema))
        return pa.concat_tables(parts)

    def _epoch(
        self, rows: pa.Table, broadcast: pa.Table
    ) -> tuple[pa.Table, dict[str, pa.Table], dict[str, int]]:
        epoch = Epoch(self._trail.epoch + 1)
        moment = Moment(epoch, self._time_us, self._watermark_us, assignment=self._assignment)
        hi = np.asarray(rows.column(HI).to_numpy()).view(np.uint64)
        owner = np.asarray(self._assignment.owners)[groups_of(hi, _KEY_GROUPS)]
        segments: dict[OperatorName, list[SegmentEntry]] = {}
        outputs: list[pa.RecordBatch] = []
        sides = {
            name: [types.arrow_schema(schema).empty_table()]
            for name, schema in self._operator.side_schemas.items()
        }
        counters: dict[str, int] = {}
        for shard in range(self._assignment.shards):
            part = rows.filter(pa.array(owner == shard))
            part = pa.concat_tables([part, broadcast], promote_options="default")
            if not part.num_rows and not runs_every_epoch(self._operator) and shard:
                continue
            change = self._shard(Shard(shard), part, moment, segments)
            outputs.append(change.output)
            for name, batch in change.sides.items():
                sides[name].append(pa.Table.from_batches([batch]))
            for name, count in change.counters.items():
                counters[name] = counters.get(name, 0) + count
        self._journal.commit(
            self._trail,
            run="test",
            batch_id=epoch - 1,
            watermark_ms=None if self._watermark_us is None else self._watermark_us // 1000,
            operators={
                name: OperatorCommit(self._assignment, tuple(entries), 0)
                for name, entries in segments.items()
            },
            specs={_NAME: self._operator.spec()},
            full=False,
            time_ms=self._time_us // 1000,
        )
        beside = {name: pa.concat_tables(tables) for name, tables in sides.items()}
        return pa.Table.from_batches(outputs), beside, counters

    def _shard(
        self,
        shard: Shard,
        rows: pa.Table,
        moment: Moment,
        segments: dict[OperatorName, list[SegmentEntry]],
    ) -> Change:
        """What a task does: apply the rows, and write the changes of each table."""
        if shard not in self._shards:
            self._shards[shard] = self._open(self._operator.tables)
        replicas = self._shards[shard]
        groups = self._assignment.groups_of(shard)
        self._follow(replicas, groups)
        change = self._operator.apply(replicas, rows, groups, moment)
        for table, changed in change.tables.items():
            name = table_name(_NAME, table)
            path = segment_path(name, Epoch(moment.epoch), shard, clock.fresh_id()[:12])
            sweep = self._operator.sweep(table, moment)
            written = compose_segment(
                replicas[table], path, changed.rows, groups, _INDEX_BUDGET, sweep
            )
            self._journal.store.put(path, memoryview(written.buffer))
            segments.setdefault(name, []).append(written.entry)
            swept = change.counters.get("expired", 0) + written.swept_rows
            change.counters["expired"] = swept
        return change


def _columns(prefix: str, described: Sequence[Key], rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {}
    for i, column in enumerate(described):
        values = [row.get(column.name) for row in rows]
        arrow = types.arrow_type(column.type, column.name)
        columns[f"{prefix}{i}"] = to_arrow(values, arrow, f"column {column.name!r}")
    return columns


def _listed(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [to_python(types.conform(column, column.type)) for column in table.columns]
    return list(zip(*columns, strict=True))


def run(
    processor: Processor | BatchProcessor,
    rows: Iterable[dict[str, Any]],
    *,
    key: str | Sequence[str],
    schema: str | T.StructType,
    output: str | T.StructType,
    event_time: str | None = None,
    watermark: dt.datetime | None = None,
    initial_state: Iterable[dict[str, Any]] | None = None,
    initial_schema: str | T.StructType | None = None,
    broadcast: Broadcasts | None = None,
    shards: int = 1,
) -> Emitted:
    """What a processor emits for some rows in one epoch, and then, if given, at a watermark."""
    harness = Harness(
        processor,
        key=key,
        schema=schema,
        output=output,
        event_time=event_time,
        shards=shards,
        initial_state=initial_state,
        initial_schema=initial_schema,
    )
    emitted = harness.send(rows, broadcast=broadcast)
    if watermark is not None:
        emitted = emitted.then(harness.advance_watermark(watermark))
    return emitted
