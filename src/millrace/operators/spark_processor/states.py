"""State variables with the methods of `pyspark.sql.streaming.stateful_processor`.

Each wraps one of Millrace's handles. They derive from Spark's classes, so a processor
that checks what it got finds what it expects; nothing of Spark's own machinery is behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from pyspark.sql.streaming import stateful_processor as spark

from millrace.errors import StateAccessError, StateTypeError
from millrace.operators.process.handles import ListHandle, MapHandle, ValueHandle
from millrace.operators.spark_processor.values import Shape


class _Unbound:
    """Stands in for a state's handle while there is no key: in `init` and in `close`."""

    def __init__(self, name: str, why: str) -> None:
        self._name = name
        self._why = why

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StateAccessError(f"state {self._name!r} was used {self._why}")


_NO_KEY = (
    "while no key is being processed. State belongs to a key: use it in handleInputRows, "
    "handleExpiredTimer and handleInitialState only."
)
_DELETED = "after deleteIfExists() had removed it."


class State:
    """What the three kinds have in common: a name, and a handle while keys are processed."""

    _handle: Any

    def __init__(self, name: str, shape: Shape) -> None:
        self._name = name
        self._show, self._store = shape.show, shape.store
        self.release()

    def bind(self, handle: Any) -> None:
        self._handle = handle

    def release(self) -> None:
        self._handle = _Unbound(self._name, _NO_KEY)

    def remove(self) -> None:
        self._handle = _Unbound(self._name, _DELETED)

    def clear(self) -> None:
        self._handle.clear()


class ValueState(State, spark.ValueState):
    _handle: ValueHandle

    def exists(self) -> bool:
        return self._handle.exists()

    def get(self) -> tuple[Any, ...] | None:
        stored = self._handle.get()
        return None if stored is None else self._show(stored)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._handle.set(self._store(newValue))


class ListState(State, spark.ListState):
    _handle: ListHandle

    def exists(self) -> bool:
        return len(self._handle) > 0

    def get(self) -> Iterator[tuple[Any, ...]]:
        # A generator: like Spark's iterator, it looks when it is first asked.
        for stored in self._handle.get():
            yield self._show(stored)

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:
        self._handle.set(self._several(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._handle.append(self._store(newState))

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:
        self._handle.extend(self._several(newState))

    def _several(self, values: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
        stored = [self._store(value) for value in values]
        if not stored:
            raise StateTypeError(
                f"list state {self._name!r} was given an empty list, which Spark refuses. Use "
                "clear() to empty it."
            )
        return stored


class MapState(State, spark.MapState):
    _handle: MapHandle

    def __init__(self, name: str, key: Shape, value: Shape) -> None:
        super().__init__(name, value)
        self._key = key.store
        self._show_key = key.show
        self._show_row = value.show_row

    def exists(self) -> bool:
        return len(self._handle) > 0

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        stored = self._handle.get(self._key(key))
        return None if stored is None else self._show_row(stored)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._handle.contains(self._key(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._handle.set(self._key(key), self._store(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for key, value in self._handle.items():
            yield self._show_key(key), self._show(value)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        for key in self._handle.keys():  # noqa: SIM118
            yield self._show_key(key)

    def values(self) -> Iterator[tuple[Any, ...]]:
        for value in self._handle.values():
            yield self._show(value)

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._handle.delete(self._key(key))
