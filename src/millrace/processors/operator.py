"""The process operator: a user's processor over the keys of a shard.

In one epoch a shard (1) drops late rows, (2) finds the timers that are due, (3) loads the main rows
of all touched keys at once, (4) calls `process` for every key with rows, in order of fingerprint,
(5) calls `on_timer` for the due timers that are still set, in order of time, and (6) collects what
changed. A timer fires once: firing removes it in the same epoch that emits its output.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
import operator
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as T

from millrace import types
from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.operators.operator import Change, Moment, TableChange, TableLayout
from millrace.processors.batch import Context, Keys, Rows, RowSource, Timer
from millrace.processors.convert import to_arrow, to_python
from millrace.processors.layout import TIMER_TABLES, VALUE_KINDS, layout
from millrace.processors.processor import Processor, declarations, timers
from millrace.processors.rows import Arrived, drop_late, empty_rows, state_specs, unite
from millrace.processors.session import StateSession
from millrace.processors.shared.session import SharedStates
from millrace.processors.sweep import sweep_of
from millrace.state.due import DueIndex
from millrace.state.replica import Replica
from millrace.state.writing import Sweep

KIND = "process"

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_Call: TypeAlias = tuple[int, int, str, str, str]
"""A timer that may fire: its time, the number of its key, its domain, name and label."""


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage cycles less often.

    An epoch makes objects for all its keys, which live until its end. Python would look at them
    again and again, a third of the time; cycles that the user's code leaves are still found.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 200_000), before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ProcessOperator:
    """Keys, a processor, and the schemas around it."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        fields: Sequence[Key],
        processor: Processor,
        output: T.StructType,
        event_time: str | None,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.fields = tuple(fields)
        self.processor = processor
        self.output_schema = output
        self.event_time = event_time
        self._states = state_specs(declarations(processor))
        self.tables: dict[str, TableLayout] = layout(self.keys, self._states)
        self._shared = SharedStates(name, processor)
        self._domains = sorted({t.time for t in timers(processor).values()})
        self._due = {domain: DueIndex("time") for domain in self._domains}

    @property
    def runs_without_rows(self) -> bool:
        """Timers fire in epochs without input, too."""
        return bool(self._domains)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [{"name": k.name, "type": types.to_json(k.type)} for k in self.keys],
            "states": self._states,
        }

    def code(self) -> bytes:
        """What a worker needs to run it."""
        parts = (self.name, self.keys, self.fields, self.processor, self.output_schema)
        dumps: Any = cloudpickle.dumps
        return bytes(dumps((ProcessOperator, (*parts, self.event_time))))

    @functools.cached_property
    def _key_class(self) -> Any:
        return namedtuple("Key", [k.name for k in self.keys], rename=True)

    @functools.cached_property
    def _row_class(self) -> Any:
        return namedtuple("Row", [f.name for f in self.fields], rename=True)

    @few_collections()
    def apply(
        self,
        replicas: dict[str, Replica],
        rows: pa.Table,
        groups: Int64Array,
        moment: Moment,
    ) -> Change:
        shared = self._shared.open(rows, replicas, groups, moment)
        rows, late = drop_late(shared.rows, moment, self.event_time)
        arrived = Arrived(rows)
        due = self._find_due(replicas, groups, moment)
        hi, lo, position = unite(
            [arrived.hi, *(d.owner_hi for d in due)], [arrived.lo, *(d.owner_lo for d in due)]
        )
        addresses = replicas[""].find(hi, lo)
        with_rows = position[: len(arrived.hi)]
        keys = Keys(hi, lo, self._key_objects(replicas[""], addresses, arrived, with_rows))
        session = StateSession(self.processor, replicas, self.tables, keys, addresses, moment)
        shared.bind(session.processor)
        runner = _Runner(self, session, moment)
        runner.process(arrived, with_rows, self._row_source(rows, arrived))
        runner.fire(self._calls(due, position[len(arrived.hi) :]))
        session.close()
        shared.close()
        with runner.explaining():
            changes = session.changes()
        changed = {table: TableChange(c.rows, c.added, c.removed) for table, c in changes.items()}
        changed |= shared.changes()
        return Change(changed, runner.output(), {"late": late, "expired": session.expired})

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
        self, main: Replica, addresses: UInt64Array, arrived: Arrived, with_rows: Int64Array
    ) -> list[Any]:
        # In C, and without the length check of `_make`.
        make = functools.partial(tuple.__new__, self._key_class)
        columns = [
            to_python(types.conform(arrived.rows.column(f"_k{i}"), key_type).take(arrived.first))
            for i, key_type in enumerate(self._key_types)
        ]
        given = list(map(make, zip(*columns, strict=True)))
        if len(given) == len(addresses):
            return given
        objects: list[Any] = [None] * len(addresses)
        for number, key in zip(with_rows.tolist(), given, strict=True):
            objects[number] = key
        lacking = [i for i, key in enumerate(objects) if key is None]
        stored = main.gather(addresses[lacking], [k.name for k in self.keys])
        for i, values in zip(lacking, zip(*map(to_python, stored), strict=True), strict=True):
            objects[i] = make(values)
        return objects

    @functools.cached_property
    def _key_types(self) -> list[pa.DataType]:
        return [types.arrow_type(k.type, k.name) for k in self.keys]

    def _row_source(self, rows: pa.Table, arrived: Arrived) -> RowSource:
        def columns() -> list[list[Any]]:
            return [
                to_python(
                    types.conform(rows.column(f"_c{i}"), types.arrow_type(f.type, f.name)).take(
                        arrived.order
                    )
                )
                for i, f in enumerate(self.fields)
            ]

        return RowSource(columns, self._row_class)

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return sweep_of(table, self._states, moment)

    def no_rows(self) -> pa.Table:
        return empty_rows(self.keys, self.fields, self.event_time, self._shared.fields())

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """The main table's keys and values."""
        names = [k.name for k in self.keys]
        names += [s["name"] for s in self._states if s["kind"] in VALUE_KINDS]
        return state.select(names)


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

    def process(self, arrived: Arrived, numbers: Int64Array, source: RowSource) -> None:
        process = self._session.processor.process
        cursor = self._session.cursor
        context = self._context
        keys = self._session.keys.keys
        out, ends = self._rows, self._ends
        listed = numbers.tolist()
        starts = arrived.starts.tolist()
        times = arrived.event_us if arrived.event_us is not None else [None] * len(listed)
        self._owners = listed.copy()
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
                raise self._explained("process", error, key, rows) from error
            ends.append(len(out))

    def fire(self, calls: list[_Call]) -> None:
        processor = self._session.processor
        for time_us, number, domain, name, label in calls:
            self._session.cursor.i = number
            collection = self._session.timers[domain]
            # It may have been set to another time or cancelled since the epoch began.
            if collection._look(collection._here(), (name, label)) != time_us:
                continue
            collection._remove((name, label))
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

    def output(self) -> pa.RecordBatch:
        fields = self._operator.output_schema.fields
        rows = self._rows
        if set(map(type, rows)) - {tuple} or set(map(len, rows)) - {len(fields)}:
            for position, row in enumerate(rows):
                if not isinstance(row, tuple | list) or len(row) != len(fields):
                    raise self._misfit(position, f"it should be a tuple of {len(fields)} values")
        arrays = []
        for i, field in enumerate(fields):
            # One column after the other: zip(*rows) would make an iterator per row.
            column = list(map(operator.itemgetter(i), rows))
            arrow = types.arrow_type(field.dataType, f"output column {field.name!r}")
            try:
                arrays.append(to_arrow(column, arrow, f"output column {field.name!r}"))
            except StateTypeError as error:
                if error.position is None:
                    raise
                raise self._misfit(error.position, str(error)) from error
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])

    def _misfit(self, position: int, reason: str) -> StateTypeError:
        number = self._owners[bisect.bisect_right(self._ends, position)]
        return StateTypeError(
            f"operator {self._operator.name!r} emitted {self._rows[position]!r} for key "
            f"{self._session.keys.keys[number]!r}, which does not fit the output schema "
            f"{self._operator.output_schema.simpleString()}: {reason}"
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
