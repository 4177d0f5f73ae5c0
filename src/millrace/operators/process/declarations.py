"""What a processor declares: its states and timers, as class attributes.

A declaration says the kind, the types and the TTL; it holds no data. When a shard runs the
processor, each declaration is replaced on the instance by a handle of the same name. Touching a
declaration itself, outside of `process`, is an error that says so.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import types as T

from millrace.ddl import parse_type
from millrace.errors import StateAccessError, UnsupportedTypeError, UsageError
from millrace.operators.process.durations import duration_us
from millrace.operators.process.kinds import EVENT_TIME, PROCESSING_TIME

ON_WRITE, ON_READ_AND_WRITE = "write", "read+write"


class Declaration:
    """Base of all states and timers."""

    kind = ""
    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def spec(self) -> dict[str, Any]:
        """What the location keeps of it, to read the state and to recognise a change."""
        raise NotImplementedError

    # For a type checker `self.count` is the declaration, while at run time it is the handle: these
    # return Any, so that code after `self.count.get()` does not count as unreachable.
    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # What copying and pickling ask for; states have no private attributes.
            raise AttributeError(attribute)
        self._refuse(attribute)

    def _refuse(self, attribute: str) -> NoReturn:
        raise StateAccessError(
            f"{self.kind} {self.name!r}.{attribute} was used outside of process() and on_timer(). "
            "State belongs to a key: use it only while a key is being processed."
        )

    def __getitem__(self, _: object) -> Any:
        self._refuse("__getitem__")

    def __setitem__(self, _: object, value: object) -> None:
        self._refuse("__setitem__")

    def __delitem__(self, _: object) -> None:
        self._refuse("__delitem__")

    def __contains__(self, _: object) -> bool:
        self._refuse("__contains__")

    def __iter__(self) -> Any:
        self._refuse("__iter__")

    def __len__(self) -> int:
        self._refuse("__len__")


class StateDeclaration(Declaration):
    """A state with a TTL."""

    def __init__(
        self,
        ttl: str | dt.timedelta | None,
        ttl_time: str,
        ttl_refresh: str,
    ) -> None:
        self.ttl_us = None if ttl is None else duration_us(ttl)
        if ttl_time not in (EVENT_TIME, PROCESSING_TIME):
            raise UsageError(f"ttl_time={ttl_time!r} must be 'event' or 'processing'.")
        if ttl_refresh not in (ON_WRITE, ON_READ_AND_WRITE):
            raise UsageError(f"ttl_refresh={ttl_refresh!r} must be 'write' or 'read+write'.")
        self.ttl_time = ttl_time
        self.ttl_refresh = ttl_refresh

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "types": [t.jsonValue() for t in self.types()]}

    def types(self) -> list[T.DataType]:
        raise NotImplementedError


class Value(StateDeclaration):
    """One value per key. `default` is what `get` gives while there is none."""

    kind = "value"

    def __init__(
        self,
        type: str | T.DataType,
        default: Any = None,
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__(ttl, ttl_time, ttl_refresh)
        self.type = parse_type(type)
        self.default = default

    def types(self) -> list[T.DataType]:
        return [self.type]


class Reducing(Value):
    """A value that grows by a merge function: `Reducing("double", max)`."""

    kind = "reducing"

    def __init__(
        self,
        type: str | T.DataType,
        merge: Callable[[Any, Any], Any],
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__(type, ttl=ttl, ttl_time=ttl_time, ttl_refresh=ttl_refresh)
        if not callable(merge):
            raise UsageError(f"Reducing() takes a merge function of two values, not {merge!r}.")
        self.merge_function = merge


class Aggregating(Value):
    """An accumulator: `create()`, `add(accumulator, value)`, `result(accumulator)`."""

    kind = "aggregating"

    def __init__(
        self,
        type: str | T.DataType,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        result: Callable[[Any], Any] | None = None,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__(type, ttl=ttl, ttl_time=ttl_time, ttl_refresh=ttl_refresh)
        for what, function in (("create", create), ("add", add)):
            if not callable(function):
                raise UsageError(f"Aggregating() takes a function {what}=, not {function!r}.")
        self.create_function = create
        self.add_function = add
        self.merge_function = merge
        self.result_function = result


class Pickled(Value):
    """Any Python object, pickled. An explicit choice: only Python can read it, and unpickling runs
    code, so a reader must allow it."""

    kind = "pickled"

    def __init__(
        self,
        default: Any = None,
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__("binary", default, ttl=ttl, ttl_time=ttl_time, ttl_refresh=ttl_refresh)


class List(StateDeclaration):
    """Elements in order; appending one writes one."""

    kind = "list"

    def __init__(
        self,
        type: str | T.DataType,
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
    ) -> None:
        super().__init__(ttl, ttl_time, ON_WRITE)
        self.type = parse_type(type)

    def types(self) -> list[T.DataType]:
        return [self.type]


class Map(StateDeclaration):
    """Entries by key; changing one writes one."""

    kind = "map"

    def __init__(
        self,
        key_type: str | T.DataType,
        value_type: str | T.DataType,
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__(ttl, ttl_time, ttl_refresh)
        self.key_type = entry_key("Map", key_type)
        self.value_type = parse_type(value_type)

    def types(self) -> list[T.DataType]:
        return [self.key_type, self.value_type]


class Set(StateDeclaration):
    """Members; adding one writes one."""

    kind = "set"

    def __init__(
        self,
        type: str | T.DataType,
        *,
        ttl: str | dt.timedelta | None = None,
        ttl_time: str = PROCESSING_TIME,
        ttl_refresh: str = ON_WRITE,
    ) -> None:
        super().__init__(ttl, ttl_time, ttl_refresh)
        self.type = entry_key("Set", type)

    def types(self) -> list[T.DataType]:
        return [self.type]


def entry_key(kind: str, type: str | T.DataType) -> T.DataType:
    """The type of a map's keys or a set's members: anything but a map, which has no order."""
    parsed = parse_type(type)
    pending = [parsed]
    while pending:
        part = pending.pop()
        if isinstance(part, T.MapType):
            raise UnsupportedTypeError(
                f"{kind}: {parsed.simpleString()} holds a map, and maps cannot be compared. Use an "
                "array of structs."
            )
        if isinstance(part, T.ArrayType):
            pending.append(part.elementType)
        elif isinstance(part, T.StructType):
            pending += [field.dataType for field in part.fields]
    return parsed


class TimerDeclaration(Declaration):
    """A timer per key, and per label if labels are used."""

    time = ""

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind}


class EventTimeTimer(TimerDeclaration):
    """Fires when the watermark has reached its time."""

    kind = "event-time timer"
    time = EVENT_TIME


class ProcessingTimeTimer(TimerDeclaration):
    """Fires when the epoch's processing time has reached its time."""

    kind = "processing-time timer"
    time = PROCESSING_TIME
