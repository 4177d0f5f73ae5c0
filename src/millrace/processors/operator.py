"""The process operator: a user's processor over the keys of a shard.

In one epoch a shard (1) opens the shared states and sets late rows aside, (2) finds the timers that
are due, (3) loads the main rows of all touched keys at once, (4) calls `process` for every key with
rows, in order of fingerprint, (5) calls `on_timer` for the due timers that are still set, in order
of time, and (6) collects what changed. A timer fires once: firing removes it in the same epoch that
emits its output. In the very first epoch `on_initial_state` comes before `process`, for the keys it
is about.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.operators.operator import Change, Moment, TableChange
from millrace.processors.batch import Context, Keys, Rows, RowSource, Timer
from millrace.processors.convert import to_python
from millrace.processors.keyed import KeyedOperator
from millrace.processors.layout import TIMER_TABLES
from millrace.processors.outputs import RowOutlet, row_batch, side_outputs
from millrace.processors.processor import INITIAL, Processor, timers
from millrace.processors.rows import Arrived, split_initial, split_late, unite
from millrace.processors.session import StateSession
from millrace.state.due import DueIndex
from millrace.state.replica import Replica

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_Call: TypeAlias = tuple[int, int, str, str, str]
"""A timer that may fire: its time, the number of its key, its domain, name and label."""


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage cycles less often.

    An epoch makes objects for all its keys, which live until its end. Python would look at them
    again and again, a third of the time. Cycles that the user's code leaves are still found, among
    the latest objects; a look at older ones, which can take half as long as an epoch, waits until
    the epoch's are gone.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 500_000), 1_000_000, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ProcessOperator(KeyedOperator):
    """Keys, a processor, and the schemas around it."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        fields: Sequence[Key],
        processor: Processor,
        output: T.StructType,
        event_time: str | None,
        initial: Sequence[Key] = (),
    ) -> None:
        super().__init__(name, keys, fields, processor, output, event_time, initial)
        self.processor = processor
        self._domains = sorted({t.time for t in timers(processor).values()})
        self._due = {domain: DueIndex("time") for domain in self._domains}

    @property
    def runs_without_rows(self) -> bool:
        """Timers fire in epochs without input, too."""
        return bool(self._domains)

    @functools.cached_property
    def _key_class(self) -> Any:
        return namedtuple("Key", [k.name for k in self.keys], rename=True)

    @few_collections()
    def apply(
        self,
        replicas: dict[str, Replica],
        rows: pa.Table,
        groups: Int64Array,
        moment: Moment,
    ) -> Change:
        shared = self._shared.open(rows, replicas, groups, moment)
        initial, rows = split_initial(shared.rows)
        rows, late = split_late(rows, moment, self.event_time)
        begun, arrived = Arrived(initial), Arrived(rows)
        due = self._find_due(replicas, groups, moment)
        hi, lo, position = unite(
            [begun.hi, arrived.hi, *(d.owner_hi for d in due)],
            [begun.lo, arrived.lo, *(d.owner_lo for d in due)],
        )
        addresses = replicas[""].find(hi, lo)
        first, second = len(begun.hi), len(begun.hi) + len(arrived.hi)
        touched = [(begun, position[:first]), (arrived, position[first:second])]
        keys = Keys(hi, lo, self._key_objects(replicas[""], addresses, touched))
        session = StateSession(self.processor, replicas, self.tables, keys, addresses, moment)
        shared.bind(session.processor)
        runner = _Runner(self, session, moment)
        runner.call(INITIAL, begun, position[:first], self._row_source(begun, "_i", self.initial))
        runner.call(
            "process", arrived, position[first:second], self._row_source(arrived, "_c", self.fields)
        )
        runner.fire(self._calls(due, position[second:]))
        session.close()
        shared.close()
        runner.close()
        with runner.explaining():
            changes = session.changes()
        expired = session.expired
        session.release()
        changed = {table: TableChange(c.rows, c.added, c.removed) for table, c in changes.items()}
        changed |= shared.changes()
        counters = {"late": late.num_rows, "expired": expired}
        return Change(changed, runner.output(), counters, runner.sides() | self._late(late))

    def _find_due(
        self, replicas: dict[str, Replica], groups: Int64Array, moment: Moment
    ) -> list[_Due]:
        found = []
        for domain in self._domains:
            now = moment.of(domain)
            if now is not None:
                replica = replicas[TIMER_TABLES[domain]]
                found.append(_Due(domain, replica, self._due[domain].due(replica, groups, now)))
        return found

    def _calls(self, due: list[_Due], numbers: Int64Array) -> list[_Call]:
        """The timers that may fire, in order of time, then of key."""
        owner = iter(numbers.tolist())
        calls = [
            (time, next(owner), d.domain, name, label)
            for d in due
            for time, name, label in zip(d.times, d.names, d.labels, strict=True)
        ]
        return sorted(calls)

    def _key_objects(
        self, main: Replica, addresses: UInt64Array, touched: list[tuple[Arrived, Int64Array]]
    ) -> list[Any]:
        """The key of every touched row of the main table: from the rows that came, or stored."""
        # In C, and without the length check of `_make`.
        make = functools.partial(tuple.__new__, self._key_class)
        objects: list[Any] = [None] * len(addresses)
        for arrived, numbers in touched:
            if not len(numbers):
                continue
            columns = [
                to_python(types.conform(arrived.rows.column(f"_k{i}"), t).take(arrived.first))
                for i, t in enumerate(self._key_types)
            ]
            given = list(map(make, zip(*columns, strict=True)))
            if len(given) == len(addresses):
                return given
            for number, key in zip(numbers.tolist(), given, strict=True):
                objects[number] = key
        lacking = [i for i, key in enumerate(objects) if key is None]
        stored = main.gather(addresses[lacking], [k.name for k in self.keys])
        for i, values in zip(lacking, zip(*map(to_python, stored), strict=True), strict=True):
            objects[i] = make(values)
        return objects

    @functools.cached_property
    def _key_types(self) -> list[pa.DataType]:
        return [types.arrow_type(k.type, k.name) for k in self.keys]

    def _row_source(self, arrived: Arrived, prefix: str, fields: Sequence[Key]) -> RowSource:
        def columns() -> list[list[Any]]:
            return [
                to_python(
                    types.conform(
                        arrived.rows.column(f"{prefix}{i}"), types.arrow_type(f.type, f.name)
                    ).take(arrived.order)
                )
                for i, f in enumerate(fields)
            ]

        return RowSource(columns, _row_class(tuple(f.name for f in fields)))


@functools.lru_cache(maxsize=64)
def _row_class(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)


class _Due:
    """Timers whose time has come."""

    def __init__(self, domain: str, replica: Replica, addresses: UInt64Array) -> None:
        names = ["_owner_hi", "_owner_lo", "timer", "label", "time"]
        hi, lo, timer, label, time = replica.gather(addresses, names)
        self.domain = domain
        self.owner_hi: UInt64Array = hi.to_numpy(zero_copy_only=False).astype(np.uint64)
        self.owner_lo: UInt64Array = lo.to_numpy(zero_copy_only=False).astype(np.uint64)
        self.names: list[str] = timer.to_pylist()
        self.labels: list[str] = label.to_pylist()
        self.times: list[int] = time.to_pylist()


class _Runner:
    """Calls the user's code, and keeps track of whose output is whose for error messages."""

    def __init__(self, operator: ProcessOperator, session: StateSession, moment: Moment) -> None:
        self._operator = operator
        self._session = session
        self._context = Context(moment)
        self._rows: list[Any] = []
        self._owners: list[int] = []
        self._ends: list[int] = []
        self._outlets: dict[str, RowOutlet] = {}
        for name in side_outputs(operator.processor):
            self._outlets[name] = RowOutlet(name, session.cursor)
            setattr(session.processor, name, self._outlets[name])

    def call(self, method: str, arrived: Arrived, numbers: Int64Array, source: RowSource) -> None:
        """Call a method for every key with rows."""
        process = getattr(self._session.processor, method)
        cursor = self._session.cursor
        context = self._context
        keys = self._session.keys.keys
        out, ends = self._rows, self._ends
        listed = numbers.tolist()
        starts = arrived.starts.tolist()
        times = arrived.event_us if arrived.event_us is not None else [None] * len(listed)
        self._owners += listed
        first = 0
        for number, last, time in zip(listed, starts[1:], times, strict=True):
            cursor.i = number
            context.key = key = keys[number]
            context._event_us = time
            rows = Rows(source, first, last)
            first = last
            try:
                result = process(key, rows, context)
                if result is not None:
                    out.extend(result)
            except Exception as error:
                raise self._explained(method, error, key, rows) from error
            ends.append(len(out))

    def fire(self, calls: list[_Call]) -> None:
        processor = self._session.processor
        for time_us, number, domain, name, label in calls:
            self._session.cursor.i = number
            collection = self._session.timers[domain]
            # It may have been set to another time or cancelled since the epoch began.
            if not collection.loader.take(collection, number, name, label, time_us):
                continue
            key = self._context.key = self._session.keys.keys[number]
            self._context._event_us = time_us
            try:
                result = processor.on_timer(key, Timer(name, label, time_us), self._context)
                if result is not None:
                    self._rows.extend(result)
            except Exception as error:
                raise self._explained("on_timer", error, key, None) from error
            self._owners.append(number)
            self._ends.append(len(self._rows))

    def _explained(
        self, method: str, error: Exception, key: Any, rows: Rows | None
    ) -> MillraceError:
        row = _current_row(error, rows)
        at = f", at row {row!r}" if row is not None else ""
        where = f"{type(self._operator.processor).__name__}.{method}() of operator"
        if isinstance(error, MillraceError):
            return type(error)(
                f"{error} This was in {where} {self._operator.name!r}, for key {key!r}{at}."
            )
        return ProcessorError(
            f"{where} {self._operator.name!r} raised {type(error).__name__}: {error}; for key "
            f"{key!r}{at}. The epoch was not committed: fix the processor and start the query "
            "again."
        )

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say whose state it was that did not fit its type."""
        try:
            yield
        except StateTypeError as error:
            raise StateTypeError(
                f"{error} This was for key {error.key!r} of operator {self._operator.name!r}."
            ) from error

    def close(self) -> None:
        """Nothing is being processed any more: emitting is an error from here on."""
        for outlet in self._outlets.values():
            outlet.close()

    def output(self) -> pa.RecordBatch:
        def misfit(position: int, reason: str) -> StateTypeError:
            owner = self._owners[bisect.bisect_right(self._ends, position)]
            return self._misfit(self._rows[position], owner, "the output", schema, reason)

        schema = self._operator.output_schema
        return row_batch(self._rows, schema, misfit)

    def sides(self) -> dict[str, pa.RecordBatch]:
        return {name: self._side(name, o) for name, o in self._outlets.items() if o.rows}

    def _side(self, name: str, outlet: RowOutlet) -> pa.RecordBatch:
        def misfit(position: int, reason: str) -> StateTypeError:
            row, owner = outlet.rows[position], outlet.owners[position]
            return self._misfit(row, owner, f"side output {name!r} with its", schema, reason)

        schema = self._operator.side_schemas[name]
        return row_batch(outlet.rows, schema, misfit)

    def _misfit(
        self, row: Any, owner: int, where: str, schema: T.StructType, reason: str
    ) -> StateTypeError:
        return StateTypeError(
            f"operator {self._operator.name!r} emitted {row!r} for key "
            f"{self._session.keys.keys[owner]!r}, which does not fit {where} schema "
            f"{schema.simpleString()}: {reason}"
        )


def _current_row(error: Exception, rows: Rows | None) -> Any:
    """The row the user's code was at: a local variable of its frames that is one of the rows."""
    if rows is None:
        return None
    known = {id(row): row for row in rows}
    trace = error.__traceback__
    found = None
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            found = known.get(id(value), found)
        trace = trace.tb_next
    return found
