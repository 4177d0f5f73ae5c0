"""Millrace with the user's Python for each key: a processor on the state layer, without Spark.

An update is the operator's part of an epoch, a checkpoint its segments and its manifest until the
next epoch can begin. To restore, divide and unite is to open replicas of key groups from the log:
nothing is written. Parts are ranges of key groups, not `key % parts`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import millrace as mr
from millrace.arrays import Int64Array
from millrace.state.replica import Replica
from millrace_lab.bench._backends.opening import FollowsTheLog
from millrace_lab.bench._state_kinds import KINDS, subject
from millrace_lab.bench._state_layer import NAME, Layer

_QUERIES = {
    "value": "state",
    "list": "list_sum(state)",
    "map": "list_sum(map_values(state))",
    "nested": "cast(state.limits['high'][1] as bigint)",
}
_AT_ONCE = 100_000
"""Keys of an epoch while the state is filled or looked through."""


class Store(FollowsTheLog):
    """`millrace`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = next(each for each in KINDS if each.name == kind)
        self._location = folder / "location"
        self._processor = subject(self._kind)
        self._layer = Layer(self._location, self._processor)
        super().__init__(self._layer)

    def fill(self, keys: Int64Array) -> None:
        self._processor.action = self._kind.fill
        for first in range(0, len(keys), _AT_ONCE):
            self._layer.epoch(keys[first : first + _AT_ONCE])

    def update(self, keys: Int64Array) -> None:
        self._processor.action = self._kind.update
        self._layer.change(self._layer.input(keys))

    def read(self, keys: Int64Array) -> int:
        number = {"list": lambda s: s[-1], "map": lambda s: s[1]}
        shown = number.get(self._kind.name, self._kind.total)
        return int(self._shown(keys, shown, None).sum())

    def scan(self) -> int:
        with mr.open(str(self._location)) as state:
            query = f"select sum({_QUERIES[self._kind.name]})::bigint as total from {NAME}"
            return int(state.sql(query).column(0)[0].as_py())

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        replicas = self.replicas(state)
        parts = [
            self._shown(keys[first : first + _AT_ONCE], self._kind.total, replicas)
            for first in range(0, len(keys), _AT_ONCE)
        ]
        return np.concatenate(parts)

    def _shown(
        self, keys: Int64Array, shown: object, replicas: dict[str, Replica] | None
    ) -> Int64Array:
        processor = self._processor
        processor.action, processor.shown = None, shown  # type: ignore[assignment]
        output = self._layer.apply(self._layer.input(keys), replicas).output
        processor.shown = None
        found: Int64Array = np.empty(len(keys), np.int64)
        order = np.argsort(keys)
        place = np.searchsorted(keys, output.column(0).to_numpy(), sorter=order)
        found[order[place]] = output.column(1).to_numpy()
        return found
