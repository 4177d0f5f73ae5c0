"""A processor on the state layer alone: what a shard does in an epoch, without Spark around it.

Rows come in as the exchange delivers them; the operator, the segments, the merges, the manifests
and the replicas are a query's. Keys are numbers, and a number's fingerprint is a mix of its bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from millrace import clock
from millrace.ddl import parse_schema
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import DEFAULT_KEY_GROUPS, Assignment
from millrace.log import Journal, OperatorCommit, SegmentEntry, open_store
from millrace.log.segment import HI, LO, segment_path
from millrace.operators.aggregate import PART, Key
from millrace.operators.operator import Change, Moment, table_name
from millrace.processors.making import make_operator
from millrace.processors.processor import Processor
from millrace.processors.rows import EVENT
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

NAME = OperatorName("state")
INDEX_BUDGET = 2 * 2**30
"""What a query's `memory` is by default."""

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Spent:
    """What an epoch took, in seconds, and what it wrote, in bytes."""

    apply: float
    write: float
    """Composing the segments and storing them, merges included, and the manifest."""
    follow: float
    bytes: int
    changed_rows: int
    merged_rows: int


class Layer:
    """One processor, one location, one shard that owns all key groups."""

    def __init__(self, location: Path, processor: Processor, event_time: bool = False) -> None:
        self._operator = make_operator(
            NAME,
            [Key("key", T.LongType())],
            [Key("key", T.LongType()), Key("at", T.TimestampType())],
            processor,
            parse_schema("key long, x long"),
            "at" if event_time else None,
        )
        self._event_time = event_time
        self._journal = Journal.create(open_store(str(location)), DEFAULT_KEY_GROUPS)
        self._trail = self._journal.trail(self._journal.head())
        self.groups = np.arange(DEFAULT_KEY_GROUPS)
        self.replicas = self.open()
        self._follow()

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(
            self._trail.operator(table_name(NAME, table)).rows for table in self._operator.tables
        )

    def open(self) -> dict[str, Replica]:
        """Replicas of all tables that have not followed anything yet."""
        return {
            table: Replica(
                self._journal.store, layout.schema, DEFAULT_KEY_GROUPS, owned=layout.owned
            )
            for table, layout in self._operator.tables.items()
        }

    def bring(self, replicas: dict[str, Replica], groups: Numbers) -> None:
        """Bring key groups of some replicas to the last epoch."""
        for table, replica in replicas.items():
            replica.follow(self._trail.operator(table_name(NAME, table)), self._trail.epoch, groups)

    def _follow(self) -> None:
        self.bring(self.replicas, self.groups)

    def input(self, keys: Numbers, at_us: Numbers | None = None) -> pa.Table:
        """An epoch's rows as the exchange delivers them."""
        hi, lo = fingerprints(keys)
        times = np.zeros(len(keys), np.int64) if at_us is None else at_us
        columns = {
            HI: hi.view(np.int64),
            LO: lo.view(np.int64),
            PART: np.zeros(len(keys), np.int32),
            "_k0": keys,
            "_c0": keys,
            "_c1": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }
        if self._event_time:
            columns[EVENT] = times
        return pa.table(columns)

    def apply(self, rows: pa.Table, watermark_us: int | None = None) -> Change:
        """The operator's part of an epoch; nothing is written."""
        moment = Moment(self._trail.epoch + 1, 0, watermark_us)
        return self._operator.apply(self.replicas, rows, self.groups, moment)

    def epoch(self, keys: Numbers) -> Spent:
        """A whole epoch over some keys."""
        rows = self.input(keys)
        started = time.perf_counter()
        change = self.apply(rows)
        applied = time.perf_counter()
        commits, merged = {}, 0
        for table, changed in change.tables.items():
            name = table_name(NAME, table)
            entry, merged_rows = self._write(table, changed.rows)
            merged += merged_rows
            before = self._trail.operator(name).rows
            total = before + changed.added - changed.removed
            commits[name] = OperatorCommit(Assignment.even(DEFAULT_KEY_GROUPS, 1), (entry,), total)
        self._journal.commit(
            self._trail,
            run="layer",
            batch_id=self._trail.epoch,
            watermark_ms=None,
            operators=commits,
            specs={NAME: self._operator.spec()},
            full=False,
        )
        written = time.perf_counter()
        self._follow()
        return Spent(
            apply=applied - started,
            write=written - applied,
            follow=time.perf_counter() - written,
            bytes=sum(entry.bytes for c in commits.values() for entry in c.segments),
            changed_rows=sum(c.rows.num_rows for c in change.tables.values()),
            merged_rows=merged,
        )

    def _write(self, table: str, changed: pa.RecordBatch) -> tuple[SegmentEntry, int]:
        epoch = Epoch(self._trail.epoch + 1)
        path = segment_path(table_name(NAME, table), epoch, Shard(0), clock.fresh_id()[:12])
        budget = INDEX_BUDGET // len(self.replicas)
        written = compose_segment(self.replicas[table], path, changed, self.groups, budget)
        self._journal.store.put(path, memoryview(written.buffer))
        return written.entry, written.merged_rows


def fingerprints(keys: Numbers) -> tuple[Words, Words]:
    """Well spread and distinct: splitmix64 is a bijection."""
    words = keys.astype(np.uint64)
    return _mix(words), _mix(words + np.uint64(0x5851F42D4C957F2D))


def _mix(x: Words) -> Words:
    with np.errstate(over="ignore"):
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Words = x ^ (x >> np.uint64(31))
    return mixed
