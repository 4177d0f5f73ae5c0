"""Millrace's table without Python for each key: an aggregate, a batch of rows at a time.

The state is a sum per key. Look-ups are those of `millrace serve`: find rows, gather a column.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

import millrace as mr
from millrace.arrays import Int64Array
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Column
from millrace.state.replica import Replica
from millrace_lab.bench._backends.opening import FollowsTheLog
from millrace_lab.bench._state_layer import NAME, OperatorLayer, fingerprints

_AT_ONCE = 1_000_000


class Store(FollowsTheLog):
    """`millrace_table`, for values only."""

    def __init__(self, kind: str, folder: Path) -> None:
        if kind != "value":
            raise ValueError(f"an aggregate has no state of the kind {kind!r}")
        self._location = folder / "location"
        specs = [AggregateSpec("n", "count", "*", T.IntegerType(), ())]
        operator = AggregateOperator(NAME, [Column("key", T.LongType())], specs)
        self._layer = OperatorLayer(self._location, operator)
        super().__init__(self._layer)

    def fill(self, keys: Int64Array) -> None:
        for first in range(0, len(keys), _AT_ONCE):
            chunk = keys[first : first + _AT_ONCE]
            self._layer.change(_rows(chunk, chunk))
            self._layer.keep()

    def update(self, keys: Int64Array) -> None:
        self._layer.change(_rows(keys, np.ones(len(keys), np.int64)))

    def read(self, keys: Int64Array) -> int:
        return int(_found(self._layer.replicas, keys).sum())

    def scan(self) -> int:
        with mr.open(str(self._location)) as state:
            answer = state.sql(f"select sum(n)::bigint from {NAME}")
            return int(answer.column(0)[0].as_py())

    def totals(self, state: str, keys: Int64Array) -> Int64Array:
        return _found(self.replicas(state), keys)


def _rows(keys: Int64Array, added: Int64Array) -> Input:
    """Rows as the exchange delivers them: fingerprint, key, and what is added to its count."""
    hi, lo = fingerprints(keys)
    return Input(hi, lo, (pa.array(keys),), partials=((pa.array(added),),))


def _found(replicas: dict[str, Replica], keys: Int64Array) -> Int64Array:
    table = replicas[MAIN]
    rows = table.gather(table.find(*fingerprints(keys)), ["n"])
    found: Int64Array = rows[0].to_numpy()
    return found
