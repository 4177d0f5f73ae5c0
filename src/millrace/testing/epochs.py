"""What harnesses share: one operator, real state, a clock and a watermark under your control."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import clock, types
from millrace.arrays import UInt64Array
from millrace.epoch.commit import Commit
from millrace.epoch.local import LocalShards, split
from millrace.epoch.report import OperatorReport
from millrace.epoch.rows import decode
from millrace.errors import UnknownColumnError, UnknownOutputError, UsageError
from millrace.ids import OperatorName, table_name
from millrace.keygroups import Assignment
from millrace.keygroups.hashing import digests, fingerprints
from millrace.keygroups.keys import is_computable
from millrace.keygroups.scheme import UNSALTED
from millrace.log import Journal, open_store
from millrace.operators import Operator
from millrace.operators.operator import MAIN, MAIN_OUTPUT, Column
from millrace.operators.pattern.operator import TIMEOUTS
from millrace.operators.process.convert import encode_key, from_us, to_arrow, to_python, to_us
from millrace.operators.process.outputs import LATE
from millrace.state.replica import Replica

NAME = OperatorName("tested")
KEY_GROUPS = 16
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

Tested = TypeVar("Tested", bound=Operator)


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

    def timeouts(self) -> list[tuple[Any, ...]]:
        """The partial matches whose time was over."""
        if TIMEOUTS not in self._sides:
            raise UnknownOutputError("only a pattern has partial matches.")
        return self._sides[TIMEOUTS]

    def then(self, later: Emitted) -> Emitted:
        """These rows, and those of a later epoch."""
        sides = {name: rows + later._sides[name] for name, rows in self._sides.items()}
        return Emitted([*self, *later], sides)


class OperatorHarness(Generic[Tested]):
    """One operator, on one shard or on several. Each call that runs an epoch returns its output."""

    def __init__(
        self,
        operator: Tested,
        keys: Sequence[Column],
        start: dt.datetime,
        shards: int,
    ) -> None:
        self._keys = tuple(keys)
        store = open_store(f"memory://millrace-{clock.fresh_id()}")
        journal = Journal.create(store, KEY_GROUPS, UNSALTED)
        self._shards = LocalShards(journal, operator, Assignment.even(KEY_GROUPS, shards))
        self._use(operator)
        self._time_us = to_us(start)
        self._watermark_us: int | None = None
        self.counters: dict[str, int] = {}

    def _use(self, operator: Tested) -> None:
        """Run this operator from the next epoch on, over the state that is there."""
        self._operator = self._shards.operator = operator

    def reopen(self) -> None:
        """Start over from what was committed, as a restarted query does."""
        self._shards.restart()

    def rescale(self, shards: int) -> None:
        """Spread the keys over this number of shards from the next epoch on."""
        if not 1 <= shards <= KEY_GROUPS:
            raise UsageError(f"{shards} shards: there can be 1 to {KEY_GROUPS}.")
        self._shards.assignment = Assignment.even(KEY_GROUPS, shards)

    @property
    def now(self) -> dt.datetime:
        """The processing time of the next epoch."""
        return from_us(self._time_us)

    def send(self, rows: Iterable[dict[str, Any]] = ()) -> Emitted:
        """Run an epoch with these rows; returns what it emitted."""
        raise NotImplementedError

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
        return self._shards.journal.store.url

    def state(self, name: str = MAIN) -> list[dict[str, Any]]:
        """The rows of the main table, or of a list, map, set, timer or shared table."""
        if name not in self._operator.tables:
            known = ", ".join(repr(table) for table in self._operator.tables if table)
            raise UsageError(f"there is no table {name!r}; there are the main one, {known}.")
        layout = self._operator.tables[name]
        journal, trail = self._shards.journal, self._shards.trail
        replica = Replica(journal.store, layout.schema, KEY_GROUPS, owned=layout.owned)
        every = np.arange(KEY_GROUPS)
        replica.follow(trail.operator(table_name(NAME, name)), trail.epoch, every)
        rows = replica.read(every)
        hidden = [n for n in rows.schema.names if n.startswith("_")]
        listed: list[dict[str, Any]] = rows.drop_columns(hidden).to_pylist(maps_as_pydicts="strict")
        return listed

    def _fingerprints(self, keys: list[pa.Array]) -> tuple[UInt64Array, UInt64Array]:
        scheme = self._shards.journal.identity.scheme
        if all(is_computable(types.to_json(key.type)) for key in self._keys):
            return fingerprints(keys, scheme)
        # As the columns have them: 1 and 1.0 are the same key if it is a double.
        listed = [to_python(column) for column in keys]
        return digests([encode_key(k) for k in zip(*listed, strict=True)], scheme)

    def _run(self, rows: pa.Table, for_all: pa.Table | None = None) -> Emitted:
        """An epoch with some rows, and with others that every shard gets."""
        output, sides, counters = self._epoch(rows, for_all)
        for name, count in counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        return Emitted(_listed(output), {name: _listed(rows) for name, rows in sides.items()})

    def _epoch(
        self, rows: pa.Table, for_all: pa.Table | None
    ) -> tuple[pa.Table, dict[str, pa.Table], dict[str, int]]:
        parts = split(rows, self._shards.assignment)
        if for_all is not None:
            parts = [pa.concat_tables([part, for_all], promote_options="default") for part in parts]
        times = self._shards.times(self._time_us, self._watermark_us)
        ran = self._shards.run(times, [[decode(part)] for part in parts])
        batch_id, time_ms = self._shards.trail.epoch, self._time_us // 1000
        commit = Commit(run="test", batch_id=batch_id, full=False, time_ms=time_ms)
        found = self._shards.commit(times, [shard.report for shard in ran], commit)
        outputs: dict[str, list[pa.Table]] = {
            name: [types.arrow_schema(schema).empty_table()]
            for name, schema in self._schemas().items()
        }
        for change in (change for shard in ran for change in shard.changes):
            for name, batch in {MAIN_OUTPUT: change.output, **change.sides}.items():
                outputs[name].append(pa.Table.from_batches([batch]))
        tables = {name: pa.concat_tables(parts) for name, parts in outputs.items()}
        counters = OperatorReport.of(found[NAME], 0).counters
        return tables.pop(MAIN_OUTPUT), tables, counters

    def _schemas(self) -> dict[str, T.StructType]:
        """The schemas of all outputs."""
        return {MAIN_OUTPUT: self._operator.output_schema, **self._operator.side_schemas}


def columns_of(described: Sequence[Column], rows: list[dict[str, Any]]) -> tuple[pa.Array, ...]:
    columns = []
    for column in described:
        values = [row.get(column.name) for row in rows]
        arrow = types.arrow_type(column.type, column.name)
        columns.append(to_arrow(values, arrow, f"column {column.name!r}"))
    return tuple(columns)


def _listed(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [to_python(types.conform(column, column.type)) for column in table.columns]
    return list(zip(*columns, strict=True))


def check_columns(names: Sequence[str], known: Iterable[str]) -> None:
    """Raise unless all names are those of columns."""
    listed = list(known)
    for name in names:
        if name not in listed:
            raise UnknownColumnError(
                f"there is no column {name!r}; the columns are {', '.join(listed)}."
            )
