"""A processor that does what its rows say, and plain Python objects that do the same.

A row carries a list of operations, (state, method, arguments), pickled. The processor runs them on
its handles and emits what each returned; the models run them on lists and dicts. A model forgets
what has expired at the start of an epoch, which is all that TTL is.
"""

from __future__ import annotations

import copy
import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import millrace as mr
from millrace.operators.process.declarations import TimerDeclaration

UTC = dt.UTC
START = dt.datetime(2024, 1, 1, tzinfo=UTC)
TTL = dt.timedelta(seconds=10)

SCHEMA = "k long, script binary, at timestamp"
OUTPUT = "k long, what string, data binary"

Operation = tuple[str, str, tuple[Any, ...]]


def plain(result: Any) -> Any:
    """What a handle's method returned, as something that can be kept and compared."""
    return list(result) if isinstance(result, Iterator) else result


def perform(target: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """Run a method; an exception is a result, too."""
    try:
        return plain(getattr(target, method)(*copy.deepcopy(arguments)))
    except (KeyError, IndexError) as error:
        return type(error).__name__


class Scripted(mr.Processor):
    """Base: declares nothing."""

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for row in rows:
            for state, method, arguments in pickle.loads(row.script):
                result = perform(getattr(self, state), method, arguments)
                yield key.k, "result", pickle.dumps(result)
        yield key.k, "event time", pickle.dumps(ctx.event_time)

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[Any]:
        fired = (timer.name, timer.label, timer.time, ctx.event_time)
        yield key.k, "timer", pickle.dumps(fired)


def _add(accumulator: dict[str, Any], value: int) -> dict[str, Any]:
    return {"n": accumulator["n"] + 1, "all": [*accumulator["all"], value]}


class Values(Scripted):
    nested = mr.Value(
        "struct<a:array<long>,m:map<string,array<decimal(12,3)>>,s:struct<t:timestamp,b:binary>,"
        "d:date,f:double,o:boolean>"
    )
    plain = mr.Value("long", default=7)
    listed = mr.Value("array<string>", default=["none"])
    fading = mr.Value("string", ttl="10 seconds")
    touched = mr.Value("string", ttl="10 seconds", ttl_refresh="read+write")
    eventful = mr.Value("long", ttl=TTL, ttl_time="event")
    best = mr.Reducing("long", max)
    stats = mr.Aggregating(
        "struct<n:long,all:array<long>>",
        create=lambda: {"n": 0, "all": []},
        add=_add,
        merge=lambda a, b: {"n": a["n"] + b["n"], "all": a["all"] + b["all"]},
        result=lambda a: (a["n"], sum(a["all"])),
    )
    anything = mr.Pickled(ttl="20 seconds", ttl_refresh="read+write")


class Maps(Scripted):
    pages = mr.Map("string", "long")
    fading = mr.Map("long", "string", ttl="10 seconds")
    touched = mr.Map("long", "string", ttl="10 seconds", ttl_refresh="read+write")
    eventful = mr.Map("long", "long", ttl="10 seconds", ttl_time="event")
    by_struct = mr.Map("struct<a:long,b:array<string>>", "array<long>")
    tags = mr.Set("string")
    lately = mr.Set("long", ttl="10 seconds", ttl_refresh="read+write")
    days = mr.Set("date", ttl="10 seconds", ttl_time="event")


class Lists(Scripted):
    items = mr.List("struct<x:long,y:string>")
    fading = mr.List("long", ttl="10 seconds")
    eventful = mr.List("long", ttl="10 seconds", ttl_time="event")
    alarm = mr.EventTimeTimer()
    other = mr.EventTimeTimer()
    tick = mr.ProcessingTimeTimer()


class Now:
    """The time of an epoch."""

    def __init__(self) -> None:
        self.times: dict[str, dt.datetime | None] = {"processing": START, "event": None}


class Model:
    """Base: something that expires."""

    def __init__(self, declaration: Any, now: Now) -> None:
        self.declaration = declaration
        is_timer = isinstance(declaration, TimerDeclaration)
        self.has_ttl = not is_timer and declaration.ttl_us is not None
        self.on_read = self.has_ttl and declaration.ttl_refresh == "read+write"
        self._now = now

    def until(self) -> dt.datetime | None:
        if not self.has_ttl:
            return None
        now = self._now.times[self.declaration.ttl_time]
        return None if now is None else now + dt.timedelta(microseconds=self.declaration.ttl_us)

    def is_over(self, until: dt.datetime | None) -> bool:
        if until is None:
            return False
        now = self._now.times[self.declaration.ttl_time]
        return now is not None and until <= now


class ValueModel(Model):
    def __init__(self, declaration: Any, now: Now) -> None:
        super().__init__(declaration, now)
        self.value: Any = None
        self.over: dt.datetime | None = None

    def expire(self) -> None:
        if self.value is not None and self.is_over(self.over):
            self.value = None

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> Any:
        if self.value is None:
            return copy.deepcopy(self.declaration.default)
        if self.on_read:
            self.over = self.until()
        if isinstance(self.declaration, mr.Aggregating):
            assert self.declaration.result_function is not None
            return self.declaration.result_function(self.value)
        return copy.deepcopy(self.value)

    def set(self, value: Any) -> None:
        self.value, self.over = value, self.until()

    def clear(self) -> None:
        self.set(None)

    def add(self, value: Any) -> None:
        declaration = self.declaration
        if isinstance(declaration, mr.Aggregating):
            start = declaration.create_function() if self.value is None else self.value
            self.set(declaration.add_function(start, value))
        else:
            self.set(value if self.value is None else declaration.merge_function(self.value, value))

    def merge(self, value: Any) -> None:
        merge = self.declaration.merge_function
        self.set(value if self.value is None else merge(self.value, value))

    def content(self) -> Any:
        return self.value


def hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple((name, hashable(part)) for name, part in sorted(key.items()))
    return tuple(map(hashable, key)) if isinstance(key, list | tuple) else key


class MapModel(Model):
    """Entries by key: [key as given, value, when it is over]."""

    def __init__(self, declaration: Any, now: Now) -> None:
        super().__init__(declaration, now)
        self.entries: dict[Any, list[Any]] = {}

    def expire(self) -> None:
        self.entries = {k: e for k, e in self.entries.items() if not self.is_over(e[2])}

    def _see(self, key: Any) -> list[Any] | None:
        entry = self.entries.get(hashable(key))
        if entry is not None and self.on_read:
            entry[2] = self.until()
        return entry

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._see(key)
        return default if entry is None else entry[1]

    def __getitem__(self, key: Any) -> Any:
        entry = self._see(key)
        if entry is None:
            raise KeyError(key)
        return entry[1]

    def set(self, key: Any, value: Any) -> None:
        self.entries[hashable(key)] = [key, value, self.until()]

    __setitem__ = set

    def delete(self, key: Any) -> bool:
        return self.entries.pop(hashable(key), None) is not None

    def __delitem__(self, key: Any) -> None:
        del self.entries[hashable(key)]

    def contains(self, key: Any) -> bool:
        return self._see(key) is not None

    __contains__ = contains

    def update(self, other: list[tuple[Any, Any]]) -> None:
        for key, value in other:
            self.set(key, value)

    def _all(self) -> list[list[Any]]:
        for key in list(self.entries):
            self._see(self.entries[key][0])
        return list(self.entries.values())

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, value) for key, value, _ in self._all()]

    def keys(self) -> list[Any]:
        return [key for key, _, _ in self._all()]

    def values(self) -> list[Any]:
        return [value for _, value, _ in self._all()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def clear(self) -> None:
        self.entries = {}

    def content(self) -> Any:
        return [(key, value) for key, value, _ in self.entries.values()]


class SetModel(MapModel):
    def add(self, member: Any) -> bool:
        is_new = hashable(member) not in self.entries
        self.set(member, None)
        return is_new

    def discard(self, member: Any) -> bool:
        return self.delete(member)


class ListModel(Model):
    def __init__(self, declaration: Any, now: Now) -> None:
        super().__init__(declaration, now)
        self.elements: list[list[Any]] = []

    def expire(self) -> None:
        self.elements = [e for e in self.elements if not self.is_over(e[1])]

    def append(self, value: Any) -> None:
        self.elements.append([value, self.until()])

    def extend(self, values: list[Any]) -> None:
        for value in values:
            self.append(value)

    def get(self) -> list[Any]:
        return [value for value, _ in self.elements]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.elements)

    def __bool__(self) -> bool:
        return bool(self.elements)

    def __getitem__(self, index: Any) -> Any:
        return self.get()[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self.elements[index] = [value, self.until()]

    def drop_first(self, count: int) -> None:
        self.elements = self.elements[count:]

    def clear(self) -> None:
        self.elements = []

    def set(self, values: list[Any]) -> None:
        self.clear()
        self.extend(values)

    def content(self) -> Any:
        return self.get()


class TimerModel(Model):
    """The times of one timer by label."""

    def __init__(self, declaration: Any, now: Now) -> None:
        super().__init__(declaration, now)
        self.times: dict[str, dt.datetime] = {}

    def expire(self) -> None:
        pass

    def set(self, time: dt.datetime, label: str = "") -> None:
        self.times[label] = time

    def cancel(self, label: str = "") -> bool:
        return self.times.pop(label, None) is not None

    def get(self, label: str = "") -> dt.datetime | None:
        return self.times.get(label)

    def labels(self) -> list[str]:
        return list(self.times)

    def fire(self) -> list[tuple[dt.datetime, str, str]]:
        """Those that are due, which are then gone."""
        now = self._now.times[self.declaration.time]
        due = [label for label, time in self.times.items() if now is not None and time <= now]
        return [(self.times.pop(label), self.declaration.name, label) for label in due]


MODELS: dict[type, Callable[[Any, Now], Any]] = {
    mr.Value: ValueModel,
    mr.Reducing: ValueModel,
    mr.Aggregating: ValueModel,
    mr.Pickled: ValueModel,
    mr.Map: MapModel,
    mr.Set: SetModel,
    mr.List: ListModel,
    mr.EventTimeTimer: TimerModel,
    mr.ProcessingTimeTimer: TimerModel,
}


class World:
    """All keys of a processor, as plain objects."""

    def __init__(self, processor: type[Scripted]) -> None:
        self.declared = {n: d for n, d in vars(processor).items() if type(d) in MODELS}
        self.now = Now()
        self.keys: dict[int, dict[str, Any]] = {}

    def is_timer(self, name: str) -> bool:
        return isinstance(self.declared[name], TimerDeclaration)

    def at(self, key: int) -> dict[str, Any]:
        if key not in self.keys:
            self.keys[key] = {n: MODELS[type(d)](d, self.now) for n, d in self.declared.items()}
        return self.keys[key]

    def epoch(self, scripts: dict[int, list[Operation]]) -> dict[int, dict[str, list[Any]]]:
        """Per key, what its operations returned and which timers fired."""
        for states in self.keys.values():
            for model in states.values():
                model.expire()
        emitted: dict[int, dict[str, list[Any]]] = {}
        for key, script in scripts.items():
            states = self.at(key)
            emitted.setdefault(key, {})["result"] = [
                perform(states[state], method, arguments) for state, method, arguments in script
            ]
        for key, states in self.keys.items():
            timers = [m for m in states.values() if isinstance(m, TimerModel)]
            fired = sorted(one for timer in timers for one in timer.fire())
            if fired:
                emitted.setdefault(key, {})["timer"] = fired
        return emitted


def reads(processor: type[Scripted]) -> list[Operation]:
    """Operations that show everything there is."""
    shown: list[Operation] = []
    for name, declaration in World(processor).declared.items():
        methods = {
            mr.Map: ["items", "__len__", "__bool__"],
            mr.Set: ["__iter__", "__len__"],
            mr.List: ["get", "__len__"],
            mr.EventTimeTimer: ["labels"],
            mr.ProcessingTimeTimer: ["labels"],
        }.get(type(declaration), ["exists", "get"])
        shown += [(name, method, ()) for method in methods]
    return shown
