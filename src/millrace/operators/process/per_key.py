"""Operators that call a processor key by key: the course of an epoch.

In one epoch a shard (1) opens the shared states and sets late rows aside, (2) finds the timers that
have expired, (3) loads the main rows of all touched keys at once, (4) calls the processor for the
rows of the initial state, then for every key with rows, in order of fingerprint, then for the
expired timers, in order of time, and (5) collects what changed. The `Caller` decides what a call
looks like: there is one for `mr.Processor` and one for Spark's processors.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.ids import OperatorName
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Moment
from millrace.operators.process.arrivals import Arrivals, unite
from millrace.operators.process.convert import to_python
from millrace.operators.process.cursor import Keys
from millrace.operators.process.keyed import KeyedOperator, Schemas
from millrace.operators.process.keyed_states import KeyedStates
from millrace.operators.process.layout import TIMER_TABLES
from millrace.operators.process.processor import Processor, timers
from millrace.state.replica import Replica
from millrace.state.time_index import TimeIndex


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Let Python collect garbage cycles less often.

    An epoch makes objects for all its keys, which live until its end. Python would scan them
    over and over, a third of the time. Cycles that the user's code leaves are still found, among
    the latest objects; a scan of older ones, which can take half as long as an epoch, waits until
    the epoch's are gone.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 500_000), 1_000_000, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ExpiredTimers:
    """Timers of one kind of time whose time has come."""

    def __init__(self, domain: str, replica: Replica, addresses: UInt64Array) -> None:
        names = ["_owner_hi", "_owner_lo", "timer", "label", "time"]
        hi, lo, timer, label, time = replica.gather(addresses, names)
        self.domain = domain
        self.owner_hi: UInt64Array = hi.to_numpy(zero_copy_only=False).astype(np.uint64)
        self.owner_lo: UInt64Array = lo.to_numpy(zero_copy_only=False).astype(np.uint64)
        self.names: list[str] = timer.to_pylist()
        self.labels: list[str] = label.to_pylist()
        self.times: list[int] = time.to_pylist()


class Caller(Protocol):
    """Calls a processor in one epoch and keeps what it emits. `numbers` are numbers of keys."""

    def initial(self, arrived: Arrivals, numbers: Int64Array) -> None:
        """Call the processor for the rows of the initial state."""

    def process(self, arrived: Arrivals, numbers: Int64Array) -> None:
        """Call the processor for every key with rows."""

    def fire(self, expired: list[ExpiredTimers], numbers: Int64Array) -> None:
        """Call the processor for the expired timers that are still set."""

    def close(self) -> None:
        """The last key is done: emitting is an error from here on."""

    def output(self) -> pa.RecordBatch: ...

    def sides(self) -> dict[str, pa.RecordBatch]: ...


def explained(where: str, error: Exception, key: Any, row: Any) -> MillraceError:
    """What a user's method raised, with the key and, if it is known, the row it was at."""
    whose = "" if key is None else f", for key {key!r}"
    at = "" if row is None else f", at row {row!r}"
    if isinstance(error, MillraceError):
        return type(error)(f"{error} This was in {where}{whose}{at}.")
    return ProcessorError(
        f"{where} raised {type(error).__name__}: {error}{whose}{at}. The epoch was not committed: "
        "fix the processor and start the query again."
    )


def current_row(error: Exception, is_row: Callable[[Any], bool]) -> Any:
    """The row the user's code was at: the last local variable of its frames that is a row."""
    found = None
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if is_row(value):
                found = value
        trace = trace.tb_next
    return found


class PerKeyOperator(KeyedOperator):
    """Keys, a processor that is called for each of them, and the schemas around it."""

    def __init__(self, name: OperatorName, schemas: Schemas, processor: Processor) -> None:
        super().__init__(name, schemas, processor)
        self.processor = processor
        self._domains = sorted({t.time for t in timers(processor).values()})

    @property
    def runs_without_rows(self) -> bool:
        """Timers fire in epochs without input, too."""
        return bool(self._domains)

    def _caller(self, states: KeyedStates, moment: Moment) -> Caller:
        raise NotImplementedError

    @few_collections()
    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        shared = self._shared.open(rows, replicas, groups, moment)
        arrived = self._arrived(rows, shared.is_broadcast, moment)
        initial, coming = arrived.initial, arrived.rows
        expired = self._expired_timers(replicas, groups, moment)
        hi, lo, position = unite(
            [initial.hi, coming.hi, *(timers.owner_hi for timers in expired)],
            [initial.lo, coming.lo, *(timers.owner_lo for timers in expired)],
        )
        first, second = len(initial.hi), len(initial.hi) + len(coming.hi)
        addresses = replicas[MAIN].find(hi, lo)
        touched = [(initial, position[:first]), (coming, position[first:second])]
        objects = self._key_objects(replicas[MAIN], addresses, touched)
        states = KeyedStates(self.processor, replicas, Keys(hi, lo, addresses, objects), moment)
        shared.bind(states.processor)
        caller = self._caller(states, moment)
        caller.initial(initial, position[:first])
        caller.process(coming, position[first:second])
        caller.fire(expired, position[second:])
        caller.close()
        states.close()
        shared.close()
        with self._naming_the_key():
            changed = states.changes()
        counters = {"late": arrived.late_count, "expired": states.expired}
        states.release()
        changed |= shared.changes()
        return Change(changed, caller.output(), counters, caller.sides() | arrived.sides)

    def _expired_timers(
        self, replicas: dict[str, Replica], groups: Int64Array, moment: Moment
    ) -> list[ExpiredTimers]:
        found = []
        for domain in self._domains:
            now = moment.of(domain)
            if now is not None:
                replica = replicas[TIMER_TABLES[domain]]
                addresses = TimeIndex(replica, "time").due(groups, now)
                found.append(ExpiredTimers(domain, replica, addresses))
        return found

    @functools.cached_property
    def _key_class(self) -> Any:
        return namedtuple("Key", [k.name for k in self.keys], rename=True)

    def _key_objects(
        self, main: Replica, addresses: UInt64Array, touched: list[tuple[Arrivals, Int64Array]]
    ) -> list[Any]:
        """The key of every touched row of the main table: from the rows that came, or stored."""
        # In C, and without the length check of `_make`.
        make = functools.partial(tuple.__new__, self._key_class)
        objects: list[Any] = [None] * len(addresses)
        for arrived, numbers in touched:
            if not len(numbers):
                continue
            columns = [
                to_python(types.conform(column, t).take(arrived.first))
                for column, t in zip(arrived.input.keys, self._key_types, strict=True)
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

    @contextlib.contextmanager
    def _naming_the_key(self) -> Iterator[None]:
        """Say whose state it was that did not fit its type."""
        try:
            yield
        except StateTypeError as error:
            raise StateTypeError(
                f"{error} This was for key {error.key!r} of operator {self.name!r}."
            ) from error
