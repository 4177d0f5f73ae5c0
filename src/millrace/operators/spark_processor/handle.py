"""`StatefulProcessorHandle`, twice: one that writes down what `init` declares, one that gives it.

Spark's processors declare their states at run time, in `init`. So `init` runs once on the driver,
before anything starts, with a handle that only records; and then, as in Spark, at the beginning of
every epoch in every shard, with a handle that hands out the states.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from pyspark.sql import types as T
from pyspark.sql.streaming import stateful_processor as spark

from millrace.errors import (
    DuplicateNameError,
    StateAccessError,
    TimerError,
    UnsupportedTypeError,
    UsageError,
)
from millrace.operators.process.declarations import (
    Declaration,
    EventTimeTimer,
    List,
    Map,
    ProcessingTimeTimer,
    Value,
)
from millrace.operators.process.handles import NO_ENTRY, CollectionHandle
from millrace.operators.process.processor import Processor
from millrace.operators.spark_processor.states import ListState, MapState, State, ValueState
from millrace.operators.spark_processor.values import Shape, nullable

NONE, PROCESSING, EVENT = "none", "processingtime", "eventtime"
TIME_MODES = (NONE, PROCESSING, EVENT)

TIMER = "$timer"
"""The name of the one timer declaration; a timer's label is its time in milliseconds."""

Parse: TypeAlias = Callable[[str], T.StructType]
Schema: TypeAlias = "T.StructType | str"

_OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_LONGEST_US = (1 << 63) - 1


@dataclass(frozen=True)
class Declared:
    """A state that `init` asked for."""

    name: str
    column: str
    """Its name in Millrace's tables."""
    kind: str
    schemas: tuple[T.StructType, ...]
    ttl_ms: int | None

    def declaration(self) -> Declaration:
        ttl = None if self.ttl_ms is None else dt.timedelta(milliseconds=self.ttl_ms)
        if self.kind == "map":
            return Map(*self.schemas, ttl=ttl)
        return (Value if self.kind == "value" else List)(self.schemas[0], ttl=ttl)

    def state(self) -> State:
        shapes = [Shape(schema) for schema in self.schemas]
        if self.kind == "map":
            return MapState(self.name, *shapes)
        return (ValueState if self.kind == "value" else ListState)(self.name, shapes[0])


def declared_processor(declared: Sequence[Declared], time_mode: str) -> Processor:
    """A Millrace processor with these states, and a timer if there can be any."""
    body: dict[str, Any] = {d.column: d.declaration() for d in declared}
    if time_mode == EVENT:
        body[TIMER] = EventTimeTimer()
    elif time_mode == PROCESSING:
        body[TIMER] = ProcessingTimeTimer()
    return cast(Processor, type("Declared", (Processor,), body)())


class _Handle(spark.StatefulProcessorHandle):
    """The calls that declare states, which differ only in what they pass on."""

    def __init__(self, time_mode: str) -> None:
        self._time_mode = time_mode

    def _state(self, name: str, kind: str, schemas: list[Schema], ttl: int | None) -> Any:
        raise NotImplementedError

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> spark.ValueState:
        return cast(ValueState, self._state(stateName, "value", [schema], ttlDurationMs))

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> spark.ListState:
        return cast(ListState, self._state(stateName, "list", [schema], ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> spark.MapState:
        schemas = [userKeySchema, valueSchema]
        return cast(MapState, self._state(stateName, "map", schemas, ttlDurationMs))

    def _check_timers(self, call: str) -> None:
        if self._time_mode == NONE:
            raise TimerError(
                f"{call}() was called, and timeMode is 'None'. Timers need timeMode "
                "'ProcessingTime' or 'EventTime'."
            )


class DeclaringHandle(_Handle):
    """What `init` gets on the driver."""

    def __init__(self, time_mode: str, key_names: Sequence[str], parse: Parse) -> None:
        super().__init__(time_mode)
        self._key_names = key_names
        self._parse = parse
        self._found: dict[str, tuple[Declared, State]] = {}
        self.deleted: dict[str, str] = {}
        """Names that were given to deleteIfExists, with their names in Millrace's tables."""

    @property
    def declared(self) -> tuple[Declared, ...]:
        return tuple(declared for declared, _ in self._found.values())

    def _state(self, name: str, kind: str, schemas: list[Schema], ttl: int | None) -> State:
        if not str(name).strip():
            raise UsageError(f"a state is called {name!r}; its name must not be blank.")
        if name in self._found:
            raise DuplicateNameError(f"init() declares the state {name!r} twice.")
        if name in self.deleted:
            raise UsageError(
                f"init() calls deleteIfExists({name!r}) and then declares {name!r} again: the "
                "state would be emptied at every epoch. Give the new state another name."
            )
        if ttl is not None and ttl < 0:
            raise UsageError(f"state {name!r}: ttlDurationMs={ttl} must be above 0.")
        if ttl and self._time_mode != PROCESSING:
            raise UsageError(
                f"state {name!r} has a TTL, which needs timeMode 'ProcessingTime', as in Spark."
            )
        parsed = tuple(nullable(self._struct(name, schema)) for schema in schemas)
        # Spark takes a TTL of 0 as none.
        declared = Declared(name, self._column(name), kind, parsed, ttl or None)
        state = declared.state()
        self._found[name] = declared, state
        return state

    def _struct(self, name: str, schema: Schema) -> T.StructType:
        parsed = self._parse(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, T.StructType):
            raise UnsupportedTypeError(
                f"the schema of state {name!r} is {schema!r}; it must be a StructType or a string "
                "such as 'count long'."
            )
        return parsed

    def _column(self, name: str) -> str:
        if _OWN_NAME.fullmatch(name) and name not in self._key_names:
            return name
        return "state-" + quote(name, safe="").replace(".", "%2E")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._no_timers("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._no_timers("deleteTimer")

    def listTimers(self) -> Iterator[int]:
        self._no_timers("listTimers")
        return iter(())

    def _no_timers(self, call: str) -> None:
        self._check_timers(call)
        raise TimerError(f"{call}() was called in init(), where there is no key to set one for.")

    def deleteIfExists(self, stateName: str) -> None:
        self.deleted[stateName] = self._column(stateName)
        found = self._found.pop(stateName, None)
        if found is not None:
            found[1].remove()


class RunningHandle(_Handle):
    """What `init` gets in a shard, and what the processor keeps for its timers."""

    def __init__(
        self, time_mode: str, declared: Sequence[Declared], deleted: Collection[str]
    ) -> None:
        super().__init__(time_mode)
        self._declared = {d.name: d for d in declared}
        self._deleted = frozenset(deleted)
        self._timers: CollectionHandle | None = None
        self.states: dict[str, State] = {}
        self.in_init = True

    def _state(self, name: str, kind: str, schemas: list[Schema], ttl: int | None) -> State:
        if not self.in_init:
            raise StateAccessError(
                f"the state {name!r} was asked for outside of init(). Declare all states there."
            )
        declared = self._declared.get(name)
        if declared is None and name in self._deleted:
            # Declared and then deleted in the same init(): it cannot be used.
            return Declared(name, name, kind, (T.StructType(),) * len(schemas), None).state()
        if declared is None or declared.kind != kind:
            raise StateAccessError(
                f"init() asked for the {kind} state {name!r} in a shard, but not on the driver. "
                "It must declare the same states wherever and whenever it runs."
            )
        state = self.states[name] = declared.state()
        return state

    def deleteIfExists(self, stateName: str) -> None:
        if not self.in_init:
            raise StateAccessError(f"deleteIfExists({stateName!r}) was called outside of init().")

    def bind_timers(self, timers: CollectionHandle | None) -> None:
        """Timers are set for the key at the cursor from here on; None: no longer."""
        self._timers = timers

    def _collection(self, call: str) -> CollectionHandle:
        self._check_timers(call)
        if self._timers is None:
            raise TimerError(f"{call}() was called while no key is being processed.")
        return self._timers

    def registerTimer(self, expiryTimestampMs: int) -> None:
        timers = self._collection("registerTimer")
        ms = operator.index(expiryTimestampMs)
        here, key = timers._here(), (TIMER, str(ms))
        if timers._lookup(here, key) is NO_ENTRY:
            timers._put(here, key, min(ms * 1000, _LONGEST_US))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        timers = self._collection("deleteTimer")
        timers._remove((TIMER, str(operator.index(expiryTimestampMs))))

    def listTimers(self) -> Iterator[int]:
        return _times(self._collection("listTimers"))


def _times(timers: CollectionHandle) -> Iterator[int]:
    # A generator: like Spark's iterator, it looks when it is first asked.
    yield from sorted(int(label) for (_, label), _ in timers._items())
