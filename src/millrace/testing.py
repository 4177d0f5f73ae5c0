"""Testing a processor without Spark: real state, a clock and a watermark under your control.

    harness = mr.testing.Harness(
        Visits(), key="user", schema="user string, page string, at timestamp",
        output="user string, visits long", event_time="at",
    )
    harness.send([{"user": "ann", "page": "/", "at": noon}])
    harness.advance_watermark(noon + mr.minutes(31))      # timers fire, late rows are late

Send broadcast rows with them: `harness.send(rows, broadcast={"rules": {"key": value}})`.

Each call is an epoch and returns the rows it emitted: as a list those of the main output, with
`.side("alerts")` those of a side output, with `.late()` the input rows that were too late. State
goes through the same tables, segments and merges as in a query; only Spark is missing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import clock, types
from millrace.arrays import UInt64Array
from millrace.ddl import parse_schema
from millrace.epoch.commit import Commit, Times, collect_reports, commit_epoch
from millrace.epoch.report import OperatorReport
from millrace.epoch.rows import decode, encode
from millrace.epoch.shard import ShardTask, group_ranges, has_work, idle_report, open_shard
from millrace.errors import UnknownColumnError, UnknownOutputError, UsageError
from millrace.ids import Epoch, OperatorName, Shard, table_name
from millrace.keygroups import Assignment, groups_of
from millrace.keygroups.hashing import digests, fingerprints
from millrace.keygroups.keys import is_computable
from millrace.keygroups.scheme import UNSALTED
from millrace.log import Journal, open_store
from millrace.log.segment import HI
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, MAIN_OUTPUT, Column
from millrace.operators.process.convert import encode_key, from_us, to_arrow, to_python, to_us
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.outputs import LATE
from millrace.operators.process.processor import Processor
from millrace.operators.process.shared.broadcast import KEY, VALUE
from millrace.operators.process.shared.states import broadcasts, side_type
from millrace.operators.process.whole_batch import BatchProcessor
from millrace.state.cache import ReplicaCache
from millrace.state.replica import Replica

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
            Schemas(
                [Column(n, by_name[n].dataType) for n in names],
                [Column(f.name, f.dataType) for f in fields],
                parse_schema(output),
                event_time,
            ),
            processor,
            None if initial_schema is None else parse_schema(initial_schema),
        )
        self._initial = list(initial_state or ())
        self._journal = Journal.create(
            open_store(f"memory://millrace-{clock.fresh_id()}"), _KEY_GROUPS, UNSALTED
        )
        self._trail = self._journal.trail(Epoch(0))
        self._assignment = Assignment.even(_KEY_GROUPS, shards)
        self._time_us = to_us(start)
        self._watermark_us: int | None = None
        self.counters: dict[str, int] = {}
        self.reopen()

    def reopen(self) -> None:
        """Start over from what was committed, as a restarted query does."""
        self._caches: dict[int, ReplicaCache] = {}
        """Each shard is a process of its own."""

    def rescale(self, shards: int) -> None:
        """Spread the keys over this number of shards from the next epoch on."""
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
        table = encode(self._input(list(rows)))
        if self._trail.epoch == 0 and self._initial:
            initial = encode(self._initial_input())
            table = pa.concat_tables([initial, table], promote_options="default")
        output, sides, counters = self._epoch(table, self._broadcast_rows(broadcast or {}))
        for name, count in counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        return Emitted(_listed(output), {name: _listed(rows) for name, rows in sides.items()})

    def advance_watermark(self, to: dt.datetime) -> Emitted:
        """Move event time forward and run an epoch without rows."""
        us = to_us(to)
        if self._watermark_us is not None and us < self._watermark_us:
            raise UsageError(
                f"the watermark is at {from_us(self._watermark_us)} and cannot go back."
            )
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
        layout = self._operator.tables[name]
        replica = Replica(self._journal.store, layout.schema, _KEY_GROUPS, owned=layout.owned)
        every = np.arange(_KEY_GROUPS)
        replica.follow(self._trail.operator(table_name(_NAME, name)), self._trail.epoch, every)
        rows = replica.read(every)
        hidden = [n for n in rows.schema.names if n.startswith("_")]
        listed: list[dict[str, Any]] = rows.drop_columns(hidden).to_pylist(maps_as_pydicts="strict")
        return listed

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        """An epoch's rows; the initial state is not among them."""
        operator = self._operator
        event_us = None
        if operator.event_time is not None:
            times = [row.get(operator.event_time) for row in rows]
            event_us = pa.array([None if t is None else to_us(t) for t in times], pa.int64())
        is_initial = pa.array([False] * len(rows), pa.bool_()) if operator.initial else None
        columns = _columns(operator.fields, rows)
        routed = self._routed(rows)
        return replace(routed, columns=columns, event_us=event_us, is_initial=is_initial)

    def _initial_input(self) -> Input:
        rows = self._initial
        is_initial = pa.array([True] * len(rows), pa.bool_())
        columns = _columns(self._operator.initial, rows)
        return replace(self._routed(rows), initial=columns, is_initial=is_initial)

    def _routed(self, rows: list[dict[str, Any]]) -> Input:
        """What all rows have: keys and fingerprints."""
        keys = _columns(self._operator.keys, rows)
        hi, lo = self._fingerprints(list(keys))
        return Input(hi, lo, keys, np.zeros(len(rows), np.int32))

    def _fingerprints(self, keys: list[pa.Array]) -> tuple[UInt64Array, UInt64Array]:
        scheme = self._journal.identity.scheme
        if all(is_computable(types.to_json(key.type)) for key in self._operator.keys):
            return fingerprints(keys, scheme)
        # As the columns have them: 1 and 1.0 are the same key if it is a double.
        listed = [to_python(column) for column in keys]
        return digests([encode_key(k) for k in zip(*listed, strict=True)], scheme)

    def _broadcast_rows(self, broadcast: Broadcasts) -> pa.Table:
        """Broadcast rows as every shard gets them."""
        declared = broadcasts(self._operator.processor)
        for name in broadcast:
            if name not in declared:
                raise UsageError(
                    f"broadcast={{{name!r}: ...}}: the processor declares no such broadcast state; "
                    f"it declares {', '.join(map(repr, declared)) or 'none'}."
                )
        kinds = {name: side_type(declaration) for name, declaration in declared.items()}
        parts = []
        for name in declared:
            given = broadcast.get(name, ())
            items = list(given.items() if isinstance(given, Mapping) else given)
            pairs = [dict(zip((KEY, VALUE), item, strict=True)) for item in items]
            side = to_arrow(pairs, kinds[name], f"a row of broadcast state {name!r}")
            # Nothing but the state's own column; what must have a value is zero.
            zero = np.zeros(len(pairs), np.uint64)
            sides = (side if n == name else pa.nulls(len(pairs), kinds[n]) for n in declared)
            part = np.zeros(len(pairs), np.int32)
            parts.append(encode(Input(zero, zero, (), part, broadcast=tuple(sides))))
        return pa.concat_tables(
            [encode(self._operator.no_rows()), *parts], promote_options="default"
        )

    def _epoch(
        self, rows: pa.Table, broadcast: pa.Table
    ) -> tuple[pa.Table, dict[str, pa.Table], dict[str, int]]:
        times = Times.after(self._trail, self._time_us, self._watermark_us)
        hi = np.asarray(rows.column(HI).to_numpy()).view(np.uint64)
        owner = np.asarray(self._assignment.owners)[groups_of(hi, _KEY_GROUPS)]
        task = self._task()
        moment = times.moment(self._assignment)
        reports = []
        outputs: dict[str, list[pa.Table]] = {
            name: [types.arrow_schema(schema).empty_table()]
            for name, schema in self._schemas().items()
        }
        for shard in map(Shard, range(self._assignment.shards)):
            part = rows.filter(pa.array(owner == shard))
            part = pa.concat_tables([part, broadcast], promote_options="default")
            if not has_work(self._operator, part.num_rows):
                reports.append(idle_report(task, shard, times.epoch))
                continue
            cache = self._caches.setdefault(shard, ReplicaCache())
            opened = open_shard(task, self._operator, shard, moment, cache)
            change = opened.apply(decode(part) if part.num_rows else None)
            for name, batch in {MAIN_OUTPUT: change.output, **change.sides}.items():
                outputs[name].append(pa.Table.from_batches([batch]))
            reports.append(opened.seal())
        assignments = {_NAME: self._assignment}
        found = collect_reports(times.epoch, assignments, reports)
        commit = Commit(
            run="test", batch_id=self._trail.epoch, full=False, time_ms=self._time_us // 1000
        )
        commit_epoch(
            self._journal, self._trail, times, [self._operator], assignments, found, commit
        )
        tables = {name: pa.concat_tables(parts) for name, parts in outputs.items()}
        counters = OperatorReport.of(found[_NAME], 0).counters
        return tables.pop(MAIN_OUTPUT), tables, counters

    def _schemas(self) -> dict[str, T.StructType]:
        """The schemas of all outputs."""
        return {MAIN_OUTPUT: self._operator.output_schema, **self._operator.side_schemas}

    def _task(self) -> ShardTask:
        return ShardTask(
            location=self._journal.store.url,
            query=self._journal.identity.query,
            operator=_NAME,
            spec="",
            code=None,
            key_groups=_KEY_GROUPS,
            groups=group_ranges(self._assignment),
            index_budget=_INDEX_BUDGET,
            ansi=True,
            scheme=self._journal.identity.scheme,
        )


def _columns(described: Sequence[Column], rows: list[dict[str, Any]]) -> tuple[pa.Array, ...]:
    columns = []
    for column in described:
        values = [row.get(column.name) for row in rows]
        arrow = types.arrow_type(column.type, column.name)
        columns.append(to_arrow(values, arrow, f"column {column.name!r}"))
    return tuple(columns)


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
