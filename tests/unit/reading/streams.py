"""A stream of counted rows driven by hand, without Spark, and its oracle at every epoch.

Each epoch goes through the operator, the segments and the manifests as in a query: any number of
shards, merges as they come. Keys have the fingerprints that Spark would give them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.clock import fresh_id
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, groups_of
from millrace.keygroups.hashing import fingerprints
from millrace.log import Journal, OperatorCommit, open_store
from millrace.log.segment import HI, LO, segment_path
from millrace.operators import AggregateOperator
from millrace.operators.aggregate import AggregateSpec, Key
from millrace.operators.operator import MAIN, Moment
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

KEYS = [Key("room", T.StringType()), Key("device", T.LongType())]
AGGREGATES = [
    AggregateSpec("n", "count", "v", T.LongType(), ()),
    AggregateSpec("total", "sum", "v", T.LongType(), ()),
    AggregateSpec("average", "mean", "v", T.LongType(), ()),
]
START_MS = 1_700_000_000_000
"""When the first epoch is committed; each later one a second after the one before."""

KeyTuple = tuple[Any, ...]
Oracle = dict[KeyTuple, tuple[int, int, float]]


@dataclass
class Counted:
    """One operator, `totals`, that counts and adds up values per room and device."""

    url: str
    key_groups: int = 16
    name: str = "totals"
    shards: int = 1
    index_budget: int = 1 << 40
    history: dict[int, Oracle] = field(default_factory=dict)
    """Epoch -> what its state must be: computed from all rows so far, not from state."""

    def __post_init__(self) -> None:
        self.operator = AggregateOperator(OperatorName(self.name), KEYS, AGGREGATES)
        self.journal = Journal.create(open_store(self.url), self.key_groups)
        self.trail = self.journal.trail(self.journal.head())
        self._rows: list[tuple[KeyTuple, int]] = []
        self._replica = self._open()

    def _open(self) -> Replica:
        schema = self.operator.tables[MAIN].schema
        return Replica(self.journal.store, schema, self.key_groups)

    def store_is_tidy(self) -> bool:
        """Whether there are no segments but those that retained epochs need."""
        epochs = self.journal.epochs()
        live = {e.path for epoch in epochs for e in self.journal.trail(epoch).segments()}
        return set(self.journal.store.list("segments")) == live

    def restart(self) -> None:
        """As after a crash: what was held is gone, and what was not committed never was."""
        self.trail = self.journal.trail(self.journal.head())
        self._replica = self._open()

    def send(self, rows: Iterable[tuple[KeyTuple, int]], *, commit: bool = True) -> int:
        """Run an epoch with some rows, as (key, value)."""
        listed = list(rows)
        table = self._partials(listed)
        epoch = Epoch(self.trail.epoch + 1)
        assignment = Assignment.even(self.key_groups, self.shards)
        group = groups_of(table.column(HI).to_numpy().view("uint64"), self.key_groups)
        entries = []
        for shard in range(self.shards):
            mine = assignment.groups_of(Shard(shard))
            part = table.filter(pa.array([assignment.owners[g] == shard for g in group]))
            self._replica.follow(self.trail.operator(self.operator.name), self.trail.epoch, mine)
            if not part.num_rows:
                continue
            change = self.operator.apply({MAIN: self._replica}, part, mine, Moment(epoch, 0, None))
            path = segment_path(self.name, epoch, shard, fresh_id()[:12])
            written = compose_segment(
                self._replica, path, change.tables[MAIN].rows, mine, self.index_budget
            )
            self.journal.store.put(path, memoryview(written.buffer))
            entries.append(written.entry)
        if not commit:
            return int(epoch)
        self._rows += listed
        oracle = batch(self._rows)
        self.history[epoch] = oracle
        self.journal.commit(
            self.trail,
            run="run",
            batch_id=epoch - 1,
            watermark_ms=None,
            operators={self.operator.name: OperatorCommit(assignment, tuple(entries), len(oracle))},
            specs={self.operator.name: self.operator.spec()},
            full=False,
            time_ms=START_MS + 1000 * (epoch - 1),
        )
        return int(epoch)

    def _partials(self, rows: list[tuple[KeyTuple, int]]) -> pa.Table:
        """A row per key, as the JVM's partial aggregation hands it over."""
        grouped: dict[KeyTuple, list[int]] = {}
        for key, value in rows:
            grouped.setdefault(key, []).append(value)
        keys = [
            pa.array([k[i] for k in grouped], types.arrow_type(key.type, key.name))
            for i, key in enumerate(KEYS)
        ]
        hi, lo = fingerprints(keys, [key.type for key in KEYS])
        counts = pa.array([len(v) for v in grouped.values()], pa.int64())
        sums = [sum(v) for v in grouped.values()]
        columns = {
            HI: pa.array(hi.view("int64")),
            LO: pa.array(lo.view("int64")),
            **{f"_k{i}": column for i, column in enumerate(keys)},
            "_p0_0": counts,
            "_p1_0": pa.array(sums, pa.int64()),
            "_p2_0": pa.array([float(s) for s in sums], pa.float64()),
            "_p2_1": counts,
        }
        return pa.table(columns)


def batch(rows: Iterable[tuple[KeyTuple, int]]) -> Oracle:
    """The batch oracle: what the state must be after all of these rows."""
    grouped: dict[KeyTuple, list[int]] = {}
    for key, value in rows:
        grouped.setdefault(key, []).append(value)
    return {k: (len(v), sum(v), sum(v) / len(v)) for k, v in grouped.items()}


def draw(rng: random.Random, rows: int, keys: int = 200) -> list[tuple[KeyTuple, int]]:
    """Rows of random keys; NULL is a room as well."""
    rooms = ["hall", "cellar", "attic", "", None]
    return [
        ((rng.choice(rooms), rng.randrange(keys)), rng.randrange(-50, 1000)) for _ in range(rows)
    ]


def as_oracle(table: pa.Table) -> Oracle:
    """State that was read, in the oracle's form; fails on a key that is there twice."""
    rows = table.select(["room", "device", "n", "total", "average"]).to_pylist()
    found = {(r["room"], r["device"]): (r["n"], r["total"], r["average"]) for r in rows}
    assert len(found) == len(rows)
    return found
