"""The operator that runs one of Spark's processors.

An epoch of a shard is a batch of a partition in Spark, and goes the same way: `init`; in the first
epoch `handleInitialState` for the initial rows; `handleInputRows` for every key with rows;
`handleExpiredTimer` for every timer whose time has come, also those set in this epoch, in order of
time; `close`. The timers to fire are settled when the input is done: one that a later call deletes
fires all the same, and one that it sets fires in the next epoch. A timer that fires is still
listed, and is removed after its call.

Late are rows up to the watermark of the epoch before, while timers see that of this one: Spark has
two, so that what one operator emits is not late for the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from millrace.compat.faces import Face, PandasFace, RowFace, Settings
from millrace.compat.handle import (
    EVENT,
    NONE,
    PROCESSING,
    TIMER,
    Declared,
    RunningHandle,
    declared_processor,
)
from millrace.compat.values import show_key
from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.operators.operator import MAIN, Change, Moment, TableChange
from millrace.processors.batch import Keys
from millrace.processors.handles import _ABSENT
from millrace.processors.operator import ProcessOperator, _Due, few_collections
from millrace.processors.rows import EVENT as EVENT_US
from millrace.processors.rows import Arrived, split_initial, unite
from millrace.processors.session import StateSession
from millrace.state.replica import Replica

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_DOMAINS = {EVENT: "event", PROCESSING: "processing"}


@dataclass(frozen=True)
class Program:
    """What was given to `transform_with_state`, and what the processor's `init` declared."""

    processor: bytes
    class_name: str
    declared: tuple[Declared, ...]
    deleted: dict[str, str]
    """States that `init` deletes, with their names in Millrace's tables."""
    time_mode: str
    in_pandas: bool
    settings: Settings
    initial: tuple[str, ...]
    """The columns of the initial state; none if there is no initial state."""
    event_time_column: str
    """The output's event time; empty if it has none."""


class SparkProcessorOperator(ProcessOperator):
    """Keys, one of Spark's processors, and the schemas around it."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        fields: Sequence[Key],
        program: Program,
        output: T.StructType,
        event_time: str | None,
    ) -> None:
        declared = declared_processor(program.declared, program.time_mode)
        super().__init__(name, keys, fields, declared, output, event_time)
        self.program = program
        self._face: Face = PandasFace(program.settings) if program.in_pandas else RowFace()

    def spec(self) -> dict[str, Any]:
        deleted = list(self.program.deleted.values())
        return super().spec() | ({"deleted": deleted} if deleted else {})

    def _arguments(self) -> tuple[Any, ...]:
        parts = (self.name, self.keys, self.fields, self.program, self.output_schema)
        return (*parts, self.event_time)

    @few_collections()
    def apply(
        self,
        replicas: dict[str, Replica],
        rows: pa.Table,
        groups: Int64Array,
        moment: Moment,
    ) -> Change:
        if moment.watermark_us is None:
            # Spark's watermark begins at 0.
            moment = dataclasses.replace(moment, watermark_us=0)
        initial, rows = split_initial(rows)
        rows, late = self._split_late(rows, moment)
        begun, arrived = Arrived(initial), Arrived(rows)
        due = self._find_due(replicas, groups, moment)
        hi, lo, position = unite(
            [begun.hi, arrived.hi, *(d.owner_hi for d in due)],
            [begun.lo, arrived.lo, *(d.owner_lo for d in due)],
        )
        addresses = replicas[MAIN].find(hi, lo)
        first, second = len(begun.hi), len(begun.hi) + len(arrived.hi)
        touched = [(begun, position[:first]), (arrived, position[first:second])]
        keys = Keys(hi, lo, self._key_objects(replicas[MAIN], addresses, touched))
        session = StateSession(self.processor, replicas, self.tables, keys, addresses, moment)
        run = _Run(self, session, moment)
        run.initial(begun, position[:first], self._face)
        run.input(arrived, position[first:second], self._face)
        run.timers(due, position[second:])
        run.close()
        session.close()
        changes = {
            table: TableChange(c.rows, c.added, c.removed) for table, c in session.changes().items()
        }
        expired = session.expired
        session.release()
        output = self._output(run.emitted, moment)
        counters = {"late": late.num_rows, "expired": expired}
        return Change(changes, output, counters, self._late(late))

    def _split_late(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, pa.Table]:
        if self.event_time is None or not rows.num_rows:
            return rows, rows.slice(0, 0)
        fresh = pc.fill_null(pc.greater(rows.column(EVENT_US), moment.late_us or 0), True)
        return rows.filter(fresh), rows.filter(pc.invert(fresh))

    def _output(self, emitted: list[Any], moment: Moment) -> pa.RecordBatch:
        try:
            output = self._face.output(emitted, self.output_schema)
        except StateTypeError as error:
            raise StateTypeError(f"operator {self.name!r}: {error}") from error
        column = self.program.event_time_column
        if column and output.num_rows:
            times = output.column(column).cast(pa.timestamp("us")).cast(pa.int64())
            earliest = pc.min(times).as_py()
            if earliest is not None and earliest <= (moment.late_us or 0):
                raise ProcessorError(
                    f"{self.program.class_name} of operator {self.name!r} emitted a row whose "
                    f"{column!r} is {earliest // 1000} ms, not after the watermark, "
                    f"{(moment.late_us or 0) // 1000} ms. Spark forbids that: a later operator "
                    "would take the row for late."
                )
        return output


class _Run:
    """One life of a processor: from `init` to `close`, over the keys of one epoch."""

    def __init__(
        self, operator: SparkProcessorOperator, session: StateSession, moment: Moment
    ) -> None:
        program = operator.program
        loads: Any = cloudpickle.loads
        self._operator = operator
        self._session = session
        self._processor: StatefulProcessor = loads(program.processor)
        self._domain = _DOMAINS.get(program.time_mode)
        self._now_ms = 0
        self._values = TimerValues(-1, -1)
        if program.time_mode != NONE:
            watermark_us = moment.watermark_us or 0
            self._values = TimerValues(moment.processing_us // 1000, watermark_us // 1000)
            self._now_ms = (
                watermark_us // 1000 if self._domain == "event" else moment.processing_us // 1000
            )
        self._handle = RunningHandle(program.time_mode, program.declared, program.deleted)
        self.emitted: list[Any] = []
        self._guarded("init", lambda: self._processor.init(self._handle))
        self._handle.in_init = False
        for declared in program.declared:
            state = self._handle.states.get(declared.name)
            if state is not None:
                state.bind(getattr(session.processor, declared.column))
        self._timers = session.timers[self._domain] if self._domain is not None else None
        self._handle.bind_timers(self._timers)

    def initial(self, arrived: Arrived, numbers: Int64Array, face: Face) -> None:
        program = self._operator.program
        if not len(numbers):
            return
        keys = self._keys(arrived, face)
        given = face.rows(_ordered(arrived, "_i", program.initial))
        handle_state: Any = self._processor.handleInitialState
        for key, number, first, last in self._cut(arrived, numbers, keys):
            self._session.cursor.i = number
            try:
                for rows in given(first, last):
                    handle_state(key, rows, self._values)
            except Exception as error:
                raise self._explained("handleInitialState", error, key) from error

    def input(self, arrived: Arrived, numbers: Int64Array, face: Face) -> None:
        if not len(numbers):
            return
        keys = self._keys(arrived, face)
        given = face.rows(_ordered(arrived, "_c", [f.name for f in self._operator.fields]))
        handle_rows: Any = self._processor.handleInputRows
        cursor, values, emit = self._session.cursor, self._values, self.emitted.extend
        for key, number, first, last in self._cut(arrived, numbers, keys):
            cursor.i = number
            try:
                emit(handle_rows(key, given(first, last), values))
            except Exception as error:
                raise self._explained("handleInputRows", error, key) from error

    def _keys(self, arrived: Arrived, face: Face) -> list[tuple[Any, ...]]:
        columns = [arrived.rows.column(f"_k{i}") for i in range(len(self._operator.keys))]
        names = [k.name for k in self._operator.keys]
        return face.keys(pa.table(columns, names=names).take(arrived.first))

    def _cut(
        self, arrived: Arrived, numbers: Int64Array, keys: list[tuple[Any, ...]]
    ) -> Iterator[tuple[tuple[Any, ...], int, int, int]]:
        starts = arrived.starts.tolist()
        return zip(keys, numbers.tolist(), starts, starts[1:], strict=False)

    def timers(self, due: list[_Due], numbers: Int64Array) -> None:
        """Fire what is due once the input is done."""
        timers = self._timers
        if timers is None:
            return
        cursor, handle = self._session.cursor, self._handle
        handle_timer: Any = self._processor.handleExpiredTimer
        shown: dict[int, Row] = {}
        for ms, number in self._settled(due, numbers):
            cursor.i = number
            key = shown.get(number)
            if key is None:
                key = shown[number] = self._shown_key(number)
            try:
                self.emitted.extend(
                    handle_timer(
                        key=key, timerValues=self._values, expiredTimerInfo=ExpiredTimerInfo(ms)
                    )
                )
            except Exception as error:
                raise self._explained("handleExpiredTimer", error, key) from error
            handle.deleteTimer(ms)

    def _settled(self, due: list[_Due], numbers: Int64Array) -> list[tuple[int, int]]:
        """Time and key number of all timers whose time has come, in order of time."""
        timers = self._timers
        assert timers is not None
        found: set[tuple[int, int]] = set()
        owner = iter(numbers.tolist())
        for label in (label for d in due for label in d.labels):
            self._session.cursor.i = number = next(owner)
            if timers._look(timers._here(), (TIMER, label)) is not _ABSENT:
                found.add((int(label), number))
        for number, entries in enumerate(timers.entries):
            if entries is not None and entries.changed:
                for (_, label), time_us in entries.changed.items():
                    if time_us is not _ABSENT and int(label) <= self._now_ms:
                        found.add((int(label), number))
        return sorted(found)

    def _shown_key(self, number: int) -> Row:
        keys = self._operator.keys
        parts = zip(keys, self._session.keys.keys[number], strict=True)
        return Row(*[k.name for k in keys])(*[show_key(k.type)(part) for k, part in parts])

    def close(self) -> None:
        """No key is being processed any more: using a state is an error from here on."""
        for state in self._handle.states.values():
            state.release()
        self._handle.bind_timers(None)
        self._guarded("close", self._processor.close)

    def _guarded(self, method: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            raise self._explained(method, error, None) from error

    def _explained(self, method: str, error: Exception, key: Any) -> MillraceError:
        program = self._operator.program
        where = f"{program.class_name}.{method}() of operator {self._operator.name!r}"
        whose = "" if key is None else f", for key {key!r}"
        if isinstance(error, MillraceError):
            return type(error)(f"{error} This was in {where}{whose}.")
        row = _current_row(error, key)
        at = "" if row is None else f", at row {row!r}"
        return ProcessorError(
            f"{where} raised {type(error).__name__}: {error}{whose}{at}. The epoch was not "
            "committed: fix the processor and start the query again."
        )


def _ordered(arrived: Arrived, prefix: str, names: Sequence[str]) -> pa.Table:
    """The rows' own columns under their own names, in order of key."""
    columns = [arrived.rows.column(f"{prefix}{i}") for i in range(len(names))]
    return pa.table(columns, names=list(names)).take(arrived.order)


def _current_row(error: Exception, key: Any) -> Row | None:
    """The row the user's code was at: the last variable of its frames that is a Row."""
    found = None
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, Row) and value is not key:
                found = value
        trace = trace.tb_next
    return found
