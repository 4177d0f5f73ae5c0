"""A location with one aggregate, driven by hand: what a query would write, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.epochs import Epochs

from millrace import types
from millrace.arrays import Int64Array
from millrace.ids import Epoch, OperatorName
from millrace.keygroups.hashing import fingerprints
from millrace.log import Trail
from millrace.log.retention import collect
from millrace.log.segment import DELETED, HI, LO, SYSTEM_FIELDS
from millrace.operators import Change, Moment, TableChange
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Column
from millrace.state.replica import Replica

NAME = OperatorName("totals")
KEYS = (Column("k", T.StringType()),)


AGGREGATES = [
    AggregateSpec("n", "count", "*", T.IntegerType(), ()),
    AggregateSpec("total", "sum", "v", T.LongType(), ()),
]


def operator(keys: Sequence[Column] = KEYS) -> AggregateOperator:
    return AggregateOperator(NAME, keys, AGGREGATES)


class _Inserting(AggregateOperator):
    """Writes a row as it is."""

    def insert(self, row: pa.RecordBatch) -> _Inserting:
        self._row = row
        return self

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        return Change({MAIN: TableChange(self._row, 1)}, pa.RecordBatch.from_pydict({}))


class Counting:
    """count() and sum(v) by key; an epoch adds to some keys."""

    def __init__(self, url: str, keys: Sequence[Column] = KEYS, key_groups: int = 16) -> None:
        self.operator = operator(keys)
        self._epochs = Epochs(url, self.operator, key_groups)
        self.journal = self._epochs.journal
        self.state: dict[Any, tuple[int, int]] = {}

    @property
    def url(self) -> str:
        return self.journal.store.url

    @property
    def trail(self) -> Trail:
        return self._epochs.trail

    def epoch(self, changes: Mapping[Any, tuple[int, int]]) -> Epoch:
        """Add (rows, sum) to keys; a key is a value, or a tuple of several columns' values."""
        rows = [key if isinstance(key, tuple) else (key,) for key in changes]
        columns = [
            pa.array([row[i] for row in rows], types.arrow_type(key.type, key.name))
            for i, key in enumerate(self.operator.keys)
        ]
        hi, lo = fingerprints(columns, self.journal.identity.scheme)
        counts = pa.array([n for n, _ in changes.values()], pa.int64())
        totals = pa.array([total for _, total in changes.values()], pa.int64())
        for key, (n, total) in changes.items():
            before = self.state.get(key, (0, 0))
            self.state[key] = before[0] + n, before[1] + total
        given = Input(hi, lo, tuple(columns), partials=((counts,), (totals,)))
        return self._epochs.epoch(given)

    def insert(self, hi: int, lo: int, key: str, n: int, total: int) -> Epoch:
        """A row with a fingerprint that is not its key's: what a collision would leave."""
        row = {HI: hi, LO: lo, DELETED: False, "k": key, "n": n, "total": total}
        schema = pa.schema([*SYSTEM_FIELDS, *self.operator.tables[MAIN].schema])
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
        inserting = _Inserting(NAME, self.operator.keys, AGGREGATES).insert(batch)
        columns = (pa.array([key]),)
        partials = ((pa.array([n]),), (pa.array([total]),))
        given = Input(np.uint64([hi]), np.uint64([lo]), columns, partials=partials)
        return self._epochs.commit(self._epochs.run(given, operator=inserting))

    def collect(self, retain: int) -> None:
        collect(self.journal, retain)
