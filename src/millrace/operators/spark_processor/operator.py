"""The operator that runs one of Spark's processors.

An epoch of a shard is a batch of a partition in Spark, and takes the same steps: `init`; in the
first epoch `handleInitialState` for the initial rows; `handleInputRows` for every key with rows;
`handleExpiredTimer` for every timer that is due, also those set in this epoch, in order of time;
`close`. The timers to fire are determined when the input is done: one that a later call deletes
still fires, and one that it sets fires in the next epoch. A timer that fires is still listed, and
is removed after its call.

Rows are late up to the watermark of the previous epoch, while timers see that of this one: Spark
has two watermarks, so that what one operator emits is not late for the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from millrace.arrays import BoolArray, Int64Array
from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.ids import OperatorName
from millrace.operators.input import Input
from millrace.operators.operator import Change, Column, Moment
from millrace.operators.process import spec
from millrace.operators.process.arrivals import Arrivals
from millrace.operators.process.handles import NO_ENTRY
from millrace.operators.process.keyed import Schemas, late_mask
from millrace.operators.process.keyed_states import KeyedStates
from millrace.operators.process.per_key import (
    Caller,
    ExpiredTimers,
    PerKeyOperator,
    current_row,
    explained,
)
from millrace.operators.spark_processor.handle import (
    EVENT,
    NONE,
    PROCESSING,
    TIMER,
    Declared,
    RunningHandle,
    declared_processor,
)
from millrace.operators.spark_processor.row_formats import (
    PandasFormat,
    RowFormat,
    RowObjectFormat,
    Settings,
)
from millrace.operators.spark_processor.values import show_key
from millrace.state.replica import Replica

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
    event_time_column: str
    """The output's event time; empty if it has none."""


class SparkProcessorOperator(PerKeyOperator):
    """Keys, one of Spark's processors, and the schemas around it."""

    program: Program
    compares_with_watermark = False

    def __init__(self, name: OperatorName, schemas: Schemas, program: Program) -> None:
        super().__init__(name, schemas, declared_processor(program.declared, program.time_mode))
        self.program = program

    def spec(self) -> dict[str, Any]:
        return spec.to_json(self.keys, self._states, list(self.program.deleted.values()))

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        if moment.watermark_us is None:
            # Spark's watermark begins at 0.
            moment = dataclasses.replace(moment, watermark_us=0)
        return super().apply(replicas, rows, groups, moment)

    def _caller(self, states: KeyedStates, moment: Moment) -> Caller:
        return _Caller(self, states, moment)

    def _is_late(self, rows: Input, moment: Moment) -> BoolArray | None:
        if not rows.num_rows:
            return None
        return late_mask(pc.less_equal(rows.event_us, moment.late_us or 0))


class _Caller:
    """One life of a processor: from `init` to `close`, over the keys of one epoch."""

    def __init__(
        self, operator: SparkProcessorOperator, states: KeyedStates, moment: Moment
    ) -> None:
        program = operator.program
        loads: Any = cloudpickle.loads
        self._operator = operator
        self._states = states
        self._processor: StatefulProcessor = loads(program.processor)
        self._format: RowFormat = (
            PandasFormat(program.settings) if program.in_pandas else RowObjectFormat()
        )
        self._late_us = moment.late_us or 0
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
        self._emitted: list[Any] = []
        self._guarded("init", lambda: self._processor.init(self._handle))
        self._handle.in_init = False
        for declared in program.declared:
            state = self._handle.states.get(declared.name)
            if state is not None:
                state.bind(getattr(states.processor, declared.column))
        self._timers = states.timers[self._domain] if self._domain is not None else None
        self._handle.bind_timers(self._timers)

    def initial(self, arrived: Arrivals, numbers: Int64Array) -> None:
        if not len(numbers):
            return
        keys = self._keys(arrived)
        columns = _named(self._operator.initial, arrived.input.initial)
        given = self._format.rows(columns.take(arrived.order))
        handle_state: Any = self._processor.handleInitialState
        for key, number, first, last in self._cut(arrived, numbers, keys):
            self._states.cursor.i = number
            try:
                for rows in given(first, last):
                    handle_state(key, rows, self._values)
            except Exception as error:
                raise self._explained("handleInitialState", error, key) from error

    def process(self, arrived: Arrivals, numbers: Int64Array) -> None:
        if not len(numbers):
            return
        keys = self._keys(arrived)
        columns = _named(self._operator.fields, arrived.input.columns)
        given = self._format.rows(columns.take(arrived.order))
        handle_rows: Any = self._processor.handleInputRows
        cursor, values, emit = self._states.cursor, self._values, self._emitted.extend
        for key, number, first, last in self._cut(arrived, numbers, keys):
            cursor.i = number
            try:
                emit(handle_rows(key, given(first, last), values))
            except Exception as error:
                raise self._explained("handleInputRows", error, key) from error

    def _keys(self, arrived: Arrivals) -> list[tuple[Any, ...]]:
        columns = _named(self._operator.keys, arrived.input.keys)
        return self._format.keys(columns.take(arrived.first))

    def _cut(
        self, arrived: Arrivals, numbers: Int64Array, keys: list[tuple[Any, ...]]
    ) -> Iterator[tuple[tuple[Any, ...], int, int, int]]:
        starts = arrived.starts.tolist()
        return zip(keys, numbers.tolist(), starts, starts[1:], strict=False)

    def fire(self, expired: list[ExpiredTimers], numbers: Int64Array) -> None:
        timers = self._timers
        if timers is None:
            return
        cursor, handle = self._states.cursor, self._handle
        handle_timer: Any = self._processor.handleExpiredTimer
        shown: dict[int, Row] = {}
        for ms, number in self._settled(expired, numbers):
            cursor.i = number
            key = shown.get(number)
            if key is None:
                key = shown[number] = self._shown_key(number)
            try:
                self._emitted.extend(
                    handle_timer(
                        key=key, timerValues=self._values, expiredTimerInfo=ExpiredTimerInfo(ms)
                    )
                )
            except Exception as error:
                raise self._explained("handleExpiredTimer", error, key) from error
            handle.deleteTimer(ms)

    def _settled(self, expired: list[ExpiredTimers], numbers: Int64Array) -> list[tuple[int, int]]:
        """Time and key number of all timers whose time has come, in order of time."""
        timers = self._timers
        assert timers is not None
        found: set[tuple[int, int]] = set()
        owner = iter(numbers.tolist())
        for label in (label for timers in expired for label in timers.labels):
            self._states.cursor.i = number = next(owner)
            if timers._lookup(timers._here(), (TIMER, label)) is not NO_ENTRY:
                found.add((int(label), number))
        for number, entries in enumerate(timers.entries):
            if entries is not None and entries.changed:
                for (_, label), time_us in entries.changed.items():
                    if time_us is not NO_ENTRY and int(label) <= self._now_ms:
                        found.add((int(label), number))
        return sorted(found)

    def _shown_key(self, number: int) -> Row:
        keys = self._operator.keys
        parts = zip(keys, self._states.keys.keys[number], strict=True)
        return Row(*[k.name for k in keys])(*[show_key(k.type)(part) for k, part in parts])

    def close(self) -> None:
        for state in self._handle.states.values():
            state.release()
        self._handle.bind_timers(None)
        self._guarded("close", self._processor.close)

    def output(self) -> pa.RecordBatch:
        operator, program = self._operator, self._operator.program
        try:
            output = self._format.output(self._emitted, operator.output_schema)
        except StateTypeError as error:
            raise StateTypeError(f"operator {operator.name!r}: {error}") from error
        column = program.event_time_column
        if column and output.num_rows:
            times = output.column(column).cast(pa.timestamp("us")).cast(pa.int64())
            earliest = pc.min(times).as_py()
            if earliest is not None and earliest <= self._late_us:
                raise ProcessorError(
                    f"{program.class_name} of operator {operator.name!r} emitted a row whose "
                    f"{column!r} is {earliest // 1000} ms, not after the watermark, "
                    f"{self._late_us // 1000} ms. Spark forbids that: a later operator would "
                    "take the row for late."
                )
        return output

    def sides(self) -> dict[str, pa.RecordBatch]:
        """None: `mr.SideOutput` is not part of Spark's interface."""
        return {}

    def _guarded(self, method: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            raise self._explained(method, error, None) from error

    def _explained(self, method: str, error: Exception, key: Any) -> MillraceError:
        where = f"{self._operator.program.class_name}.{method}() of operator"
        row = current_row(error, lambda value: isinstance(value, Row) and value is not key)
        return explained(f"{where} {self._operator.name!r}", error, key, row)


def _named(columns: Sequence[Column], arrays: Sequence[Any]) -> pa.Table:
    return pa.table(list(arrays), names=[column.name for column in columns])
