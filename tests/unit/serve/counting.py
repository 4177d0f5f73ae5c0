"""A location with one aggregate, driven by hand: what a query would write, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import clock, types
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.hashing import fingerprints
from millrace.log import Journal, OperatorCommit, open_store
from millrace.log.retention import collect
from millrace.log.segment import DELETED, HI, LO, segment_path
from millrace.operators.aggregate import AggregateOperator, AggregateSpec, Key
from millrace.operators.operator import MAIN, Moment
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

NAME = OperatorName("totals")
KEYS = (Key("k", T.StringType()),)


def operator(keys: Sequence[Key] = KEYS) -> AggregateOperator:
    specs = [
        AggregateSpec("n", "count", "*", T.IntegerType(), ()),
        AggregateSpec("total", "sum", "v", T.LongType(), ()),
    ]
    return AggregateOperator(NAME, keys, specs)


class Counting:
    """count() and sum(v) by key; an epoch adds to some keys."""

    def __init__(self, url: str, keys: Sequence[Key] = KEYS, key_groups: int = 16) -> None:
        self.operator = operator(keys)
        self.journal = Journal.create(open_store(url), key_groups)
        self.trail = self.journal.trail(Epoch(0))
        self.every = np.arange(key_groups)
        self.state: dict[Any, tuple[int, int]] = {}

    @property
    def url(self) -> str:
        return self.journal.store.url

    def _replica(self) -> Replica:
        schema = self.operator.tables[MAIN].schema
        replica = Replica(self.journal.store, schema, self.journal.identity.key_groups)
        replica.follow(self.trail.operator(NAME), self.trail.epoch, self.every)
        return replica

    def epoch(self, changes: Mapping[Any, tuple[int, int]]) -> Epoch:
        """Add (rows, sum) to keys; a key is a value, or a tuple of several columns' values."""
        rows = [key if isinstance(key, tuple) else (key,) for key in changes]
        columns = [
            pa.array([row[i] for row in rows], types.arrow_type(key.type, key.name))
            for i, key in enumerate(self.operator.keys)
        ]
        hi, lo = fingerprints(columns, [key.type for key in self.operator.keys])
        table = {HI: hi.view(np.int64), LO: lo.view(np.int64)}
        table |= {f"_k{i}": column for i, column in enumerate(columns)}
        table["_p0_0"] = np.asarray([n for n, _ in changes.values()], np.int64)
        table["_p1_0"] = np.asarray([total for _, total in changes.values()], np.int64)
        replica = self._replica()
        moment = Moment(self.trail.epoch + 1, 0, None)
        change = self.operator.apply({MAIN: replica}, pa.table(table), self.every, moment)
        for key, (n, total) in changes.items():
            before = self.state.get(key, (0, 0))
            self.state[key] = before[0] + n, before[1] + total
        return self.commit(replica, change.tables[MAIN].rows)

    def insert(self, hi: int, lo: int, key: str, n: int, total: int) -> Epoch:
        """A row with a fingerprint that is not its key's: what a collision would leave."""
        replica = self._replica()
        row = {HI: hi, LO: lo, DELETED: False, "k": key, "n": n, "total": total}
        batch = pa.RecordBatch.from_pylist([row], schema=replica.schema)
        return self.commit(replica, batch)

    def commit(self, replica: Replica, rows: pa.RecordBatch) -> Epoch:
        epoch = Epoch(self.trail.epoch + 1)
        path = segment_path(NAME, epoch, 0, clock.fresh_id()[:12])
        written = compose_segment(replica, path, rows, self.every, 1 << 30)
        self.journal.store.put(path, memoryview(written.buffer))
        assignment = Assignment.even(len(self.every), 1)
        self.journal.commit(
            self.trail,
            run="test",
            batch_id=epoch - 1,
            watermark_ms=None,
            operators={NAME: OperatorCommit(assignment, (written.entry,), len(self.state))},
            specs={NAME: self.operator.spec()},
            full=False,
        )
        return epoch

    def collect(self, retain: int) -> None:
        collect(self.journal, retain)
