"""A Python dict, and a checkpoint of all of it by pickle: the least that could be done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.bench._backends import ENTRIES, LIVE, RESTORED

State = dict[int, Any]


class Store:
    """`dict`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._total = TOTALS[kind]
        self._fill, self._update, self._read = _ACTIONS[kind]
        self._file = folder / "checkpoint.pickle"
        self._state: State = {}
        self._restored: State = {}
        self._parts: list[State] = []
        self._merged: State = {}

    def fill(self, keys: Int64Array) -> None:
        make, state = self._fill, self._state
        for key in keys.tolist():
            state[key] = make(key)

    def update(self, keys: Int64Array) -> None:
        change, state = self._update, self._state
        for key in keys.tolist():
            state[key] = change(state[key])

    def read(self, keys: Int64Array) -> int:
        look, state = self._read, self._state
        return sum(look(state[key]) for key in keys.tolist())

    def scan(self) -> int:
        return sum(map(self._total, self._state.values()))

    def checkpoint(self) -> int:
        draft = self._file.with_suffix(".draft")
        with draft.open("wb") as file:
            pickle.dump(self._state, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._file)
        return self._file.stat().st_size

    def restore(self) -> None:
        self._restored = self._load()

    def _load(self) -> State:
        state: State = pickle.loads(self._file.read_bytes())
        return state

    def repartition(self, parts: int) -> None:
        self._parts = [{} for _ in range(parts)]
        for key, value in self._load().items():
            self._parts[key % parts][key] = value

    def merge(self) -> None:
        self._merged = {}
        for part in self._parts:
            self._merged.update(part)

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        held = {LIVE: self._state, RESTORED: self._restored}.get(state, self._merged)
        return total_of((held[key] for key in keys.tolist()), self._total, len(keys))

    def close(self) -> None:
        pass


def total_of(states: Iterable[Any], total: Callable[[Any], int], number: int) -> Int64Array:
    """The totals of some states."""
    found: Int64Array = np.fromiter(map(total, states), np.int64, number)
    return found


def nested(number: int) -> dict[str, Any]:
    """What a key's nested state is; that of `bench state-types`."""
    return {"tags": [f"t{number % 10}", "all"], "limits": {"low": [0.5], "high": [float(number)]}}


def high(state: dict[str, Any]) -> int:
    """The number in a nested state."""
    return int(state["limits"]["high"][0])


def _append(state: list[int]) -> list[int]:
    state.append(1)
    return state


def _add(state: dict[int, int]) -> dict[int, int]:
    state[0] += 1
    return state


TOTALS: dict[str, Callable[[Any], int]] = {
    "value": lambda s: s,
    "list": sum,
    "map": lambda s: sum(s.values()),
    "nested": high,
}
_ACTIONS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], Callable[[Any], int]]] = {
    "value": (lambda k: k, lambda s: s + 1, lambda s: s),
    "list": (lambda k: list(range(k, k + ENTRIES)), _append, lambda s: s[-1]),
    "map": (lambda k: dict.fromkeys(range(ENTRIES), k), _add, lambda s: s[1]),
    "nested": (nested, lambda s: nested(high(s) + 1), high),
}
"""Kind -> what fills, updates and reads a state."""
