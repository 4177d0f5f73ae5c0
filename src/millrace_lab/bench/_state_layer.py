"""An operator on the state layer alone: what a shard does in an epoch, without Spark around it.

Rows come in as the exchange delivers them; the operator, the segments, the merges, the manifests
and the replicas are a query's. Keys are numbers, and a number's fingerprint is a mix of its bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import Int64Array, UInt64Array
from millrace.ddl import parse_schema
from millrace.ids import OperatorName, table_name
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.log import Journal, OperatorLog, open_store
from millrace.operators import Operator
from millrace.operators.input import Input
from millrace.operators.operator import Change, Column
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.processor import Processor
from millrace.state.replica import Replica
from millrace_lab.bench._shards import HeldShards

NAME = OperatorName("state")


@dataclass(frozen=True)
class Spent:
    """What an epoch took, in seconds, and what it wrote, in bytes."""

    apply: float
    write: float
    """Composing the segments and storing them, merges included, and the manifest."""
    follow: float
    bytes: int


class OperatorLayer:
    """One operator, one location, one shard that owns all key groups."""

    def __init__(self, location: Path, operator: Operator) -> None:
        self._operator = operator
        journal = Journal.create(open_store(str(location)), DEFAULT_KEY_GROUPS)
        self._shards = HeldShards(journal, self._operator, 1)
        self.groups = np.arange(DEFAULT_KEY_GROUPS)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(self._log(table).rows for table in self._operator.tables)

    @property
    def replicas(self) -> dict[str, Replica]:
        return self._shards.opened[0].replicas

    def _log(self, table: str) -> OperatorLog:
        return self._shards.trail.operator(table_name(NAME, table))

    def open(self, groups: Int64Array) -> dict[str, Replica]:
        """New replicas of some key groups of all tables, at the last epoch."""
        opened = {}
        for table, layout in self._operator.tables.items():
            store = self._shards.journal.store
            replica = Replica(store, layout.schema, DEFAULT_KEY_GROUPS, owned=layout.owned)
            replica.follow(self._log(table), self._shards.trail.epoch, groups)
            opened[table] = replica
        return opened

    def apply(self, rows: Input, replicas: dict[str, Replica] | None = None) -> Change:
        """The operator's part of an epoch, on these replicas or its own; nothing is kept of it."""
        shard = self._shards.opened[0]
        return self._operator.apply(replicas or shard.replicas, rows, shard.groups, shard.moment)

    def change(self, rows: Input) -> None:
        """The first part of an epoch: apply its rows. `keep` must follow."""
        self._shards.opened[0].apply(rows)

    def keep(self) -> tuple[float, int]:
        """The rest of the epoch; the seconds until it is committed, and the bytes it wrote."""
        (shard,) = self._shards.opened
        started = time.perf_counter()
        report = shard.seal()
        self._shards.commit([report], "layer", self._shards.trail.epoch)
        took = time.perf_counter() - started
        self._shards.follow()
        return took, sum(table.segment.bytes for table in report.tables.values())


class Layer(OperatorLayer):
    """One processor over whole numbers as keys."""

    def __init__(self, location: Path, processor: Processor) -> None:
        schemas = Schemas(
            [Column("key", T.LongType())],
            [Column("key", T.LongType()), Column("at", T.TimestampType())],
            parse_schema("key long, x long"),
        )
        super().__init__(location, make_operator(NAME, schemas, processor))

    def input(self, keys: Int64Array) -> Input:
        """An epoch's rows as the exchange delivers them."""
        hi, lo = fingerprints(keys)
        key = pa.array(keys)
        at = pa.array(np.zeros(len(keys), np.int64)).cast(pa.timestamp("us", "UTC"))
        return Input(hi, lo, (key,), np.zeros(len(keys), np.int32), columns=(key, at))

    def epoch(self, keys: Int64Array) -> Spent:
        """A whole epoch over some keys."""
        rows = self.input(keys)
        started = time.perf_counter()
        self.change(rows)
        applied = time.perf_counter()
        write, written = self.keep()
        ended = time.perf_counter()
        return Spent(applied - started, write, ended - applied - write, written)


def fingerprints(keys: Int64Array) -> tuple[UInt64Array, UInt64Array]:
    """Well spread and distinct: splitmix64 is a bijection."""
    words = keys.astype(np.uint64)
    return _mix(words), _mix(words + np.uint64(0x5851F42D4C957F2D))


def _mix(x: UInt64Array) -> UInt64Array:
    with np.errstate(over="ignore"):
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: UInt64Array = x ^ (x >> np.uint64(31))
    return mixed
