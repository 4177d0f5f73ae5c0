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
from tests.epochs import Epochs

from millrace import types
from millrace.ids import Epoch, OperatorName
from millrace.keygroups.hashing import fingerprints
from millrace.log import Trail
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column

KEYS = [Column("room", T.StringType()), Column("device", T.LongType())]
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
        self._epochs = Epochs(
            self.url, self.operator, self.key_groups, index_budget=self.index_budget
        )
        self.journal = self._epochs.journal
        self._rows: list[tuple[KeyTuple, int]] = []

    @property
    def trail(self) -> Trail:
        return self._epochs.trail

    def store_is_tidy(self) -> bool:
        """Whether there are no segments but those that retained epochs need."""
        epochs = self.journal.epochs()
        live = {e.path for epoch in epochs for e in self.journal.trail(epoch).segments()}
        return set(self.journal.store.list("segments")) == live

    def restart(self) -> None:
        """As after a crash."""
        self._epochs.restart()

    def send(self, rows: Iterable[tuple[KeyTuple, int]], *, commit: bool = True) -> int:
        """Run an epoch with some rows, as (key, value)."""
        listed = list(rows)
        epoch = Epoch(self.trail.epoch + 1)
        self._epochs.shards = self.shards
        reports = self._epochs.run(self._partials(listed))
        if commit:
            self._rows += listed
            self.history[epoch] = batch(self._rows)
            self._epochs.commit(reports, time_ms=START_MS + 1000 * (epoch - 1))
        return int(epoch)

    def _partials(self, rows: list[tuple[KeyTuple, int]]) -> Input:
        """A row per key, as the JVM's partial aggregation hands it over."""
        grouped: dict[KeyTuple, list[int]] = {}
        for key, value in rows:
            grouped.setdefault(key, []).append(value)
        keys = [
            pa.array([k[i] for k in grouped], types.arrow_type(key.type, key.name))
            for i, key in enumerate(KEYS)
        ]
        hi, lo = fingerprints(keys, self.journal.identity.scheme)
        counts = pa.array([len(v) for v in grouped.values()], pa.int64())
        sums = [sum(v) for v in grouped.values()]
        means = (pa.array([float(s) for s in sums], pa.float64()), counts)
        partials = ((counts,), (pa.array(sums, pa.int64()),), means)
        return Input(hi, lo, tuple(keys), partials=partials)


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
