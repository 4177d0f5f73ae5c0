"""The operator that runs a `mr.Processor`, key by key.

A timer fires once: firing removes it in the same epoch that emits its output. A timer that a call
of the same epoch has moved or cancelled does not fire.
"""

from __future__ import annotations

import bisect
import functools
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array
from millrace.errors import MillraceError, StateTypeError
from millrace.operators.operator import Column, Moment
from millrace.operators.process.arrivals import Arrivals
from millrace.operators.process.context import Context, Rows, RowSource, Timer
from millrace.operators.process.convert import to_python
from millrace.operators.process.keyed_states import KeyedStates
from millrace.operators.process.outputs import RowOutlet, row_batch, side_outputs
from millrace.operators.process.per_key import (
    Caller,
    ExpiredTimers,
    PerKeyOperator,
    current_row,
    explained,
)
from millrace.operators.process.processor import INITIAL

_Timer: TypeAlias = tuple[int, int, str, str, str]
"""A timer that may fire: its time, the number of its key, its domain, name and label."""


class ProcessOperator(PerKeyOperator):
    """Keys, a processor, and the schemas around it."""

    def _caller(self, states: KeyedStates, moment: Moment) -> Caller:
        return _Caller(self, states, moment)


def _ordered(expired: list[ExpiredTimers], numbers: Int64Array) -> list[_Timer]:
    """The timers that may fire, in order of time, then of key."""
    owner = iter(numbers.tolist())
    found = [
        (time, next(owner), timers.domain, name, label)
        for timers in expired
        for time, name, label in zip(timers.times, timers.names, timers.labels, strict=True)
    ]
    return sorted(found)


def _row_source(arrived: Arrivals, columns: Sequence[Any], fields: Sequence[Column]) -> RowSource:
    def listed() -> list[list[Any]]:
        return [
            to_python(types.conform(column, types.arrow_type(f.type, f.name)).take(arrived.order))
            for column, f in zip(columns, fields, strict=True)
        ]

    return RowSource(listed, _row_class(tuple(f.name for f in fields)))


@functools.lru_cache(maxsize=64)
def _row_class(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)


class _Caller:
    """Calls the user's code, and keeps track of whose output is whose for error messages."""

    def __init__(self, operator: ProcessOperator, states: KeyedStates, moment: Moment) -> None:
        self._operator = operator
        self._states = states
        self._context = Context(moment)
        self._rows: list[Any] = []
        self._owners: list[int] = []
        self._ends: list[int] = []
        self._outlets: dict[str, RowOutlet] = {}
        for name in side_outputs(operator.processor):
            self._outlets[name] = RowOutlet(name, states.cursor)
            setattr(states.processor, name, self._outlets[name])

    def initial(self, arrived: Arrivals, numbers: Int64Array) -> None:
        source = _row_source(arrived, arrived.input.initial, self._operator.initial)
        self._call(INITIAL, arrived, numbers, source)

    def process(self, arrived: Arrivals, numbers: Int64Array) -> None:
        source = _row_source(arrived, arrived.input.columns, self._operator.fields)
        self._call("process", arrived, numbers, source)

    def _call(self, method: str, arrived: Arrivals, numbers: Int64Array, source: RowSource) -> None:
        """Call a method for every key with rows."""
        process = getattr(self._states.processor, method)
        cursor = self._states.cursor
        context = self._context
        keys = self._states.keys.keys
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

    def fire(self, expired: list[ExpiredTimers], numbers: Int64Array) -> None:
        processor = self._states.processor
        for time_us, number, domain, name, label in _ordered(expired, numbers):
            self._states.cursor.i = number
            collection = self._states.timers[domain]
            # It may have been set to another time or cancelled since the epoch began.
            if not collection.loader.take(collection, number, name, label, time_us):
                continue
            key = self._context.key = self._states.keys.keys[number]
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
        known = {id(row) for row in rows or ()}
        row = current_row(error, lambda value: id(value) in known)
        where = f"{type(self._operator.processor).__name__}.{method}()"
        return explained(f"{where} of operator {self._operator.name!r}", error, key, row)

    def close(self) -> None:
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
            f"{self._states.keys.keys[owner]!r}, which does not fit {where} schema "
            f"{schema.simpleString()}: {reason}"
        )
