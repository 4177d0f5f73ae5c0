"""A location driven by hand with the means of the log and of state, whose tests this is for.

Replicas are the test's own. Tests that run operators use `tests.epochs`.

Keys are fingerprints, (hi, lo), and a row of state is a tuple of the user's columns, so that a dict
is the oracle of a whole table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment, groups_of
from millrace.log import Journal, OperatorCommit, SegmentEntry, Trail, open_store
from millrace.log.segment import DELETED, HI, LO, SYSTEM_FIELDS, segment_path
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

Fingerprint = tuple[int, int]
Row = tuple[Any, ...]
State = dict[Fingerprint, Row]
Changes = Mapping[Fingerprint, Row | None]

OPERATOR = OperatorName("table")
UNLIMITED = 1 << 60

_attempts = itertools.count()


def fingerprint(number: int) -> Fingerprint:
    """A well-spread fingerprint for a small number (splitmix64, twice)."""
    return _mix(2 * number + 1), _mix(2 * number + 2)


def _mix(x: int) -> int:
    x = (x * 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def words(numbers: Iterable[int]) -> UInt64Array:
    return np.fromiter(numbers, np.uint64)


def changed_batch(schema: pa.Schema, changes: Changes) -> pa.RecordBatch:
    """Changed rows as an operator would hand them over: sorted, NULLs in deleted ones."""
    keys = sorted(changes)
    rows = [changes[key] for key in keys]
    columns: list[pa.Array] = [
        pa.array([hi for hi, _ in keys], pa.uint64()),
        pa.array([lo for _, lo in keys], pa.uint64()),
        pa.array([row is None for row in rows], pa.bool_()),
    ]
    for i, field in enumerate(schema):
        columns.append(pa.array([None if row is None else row[i] for row in rows], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*SYSTEM_FIELDS, *schema]))


def to_state(batch: pa.RecordBatch) -> State:
    """What a replica read, as a dict; fails if it is not sorted, or has a deleted row."""
    keys = list(zip(batch.column(HI).to_pylist(), batch.column(LO).to_pylist(), strict=True))
    assert keys == sorted(set(keys))
    assert not any(batch.column(DELETED).to_pylist())
    user = [batch.column(i).to_pylist() for i in range(len(SYSTEM_FIELDS), batch.num_columns)]
    return dict(zip(keys, zip(*user, strict=True), strict=True))


class Location:
    """One table in one location."""

    def __init__(self, url: str, schema: pa.Schema, key_groups: int = 16) -> None:
        self.schema = schema
        self.store = open_store(url)
        self.journal = Journal.create(self.store, key_groups)
        self.trail: Trail = self.journal.trail(self.journal.head())
        self.every = np.arange(key_groups)

    @property
    def key_groups(self) -> int:
        return self.journal.identity.key_groups

    @property
    def epoch(self) -> Epoch:
        return self.trail.epoch

    def replica(self) -> Replica:
        return Replica(self.store, self.schema, self.key_groups)

    def follow(self, replica: Replica, groups: Int64Array | None = None) -> Replica:
        log = self.trail.operator(OPERATOR)
        replica.follow(log, self.epoch, self.every if groups is None else groups)
        return replica

    def write(
        self,
        replica: Replica,
        groups: Int64Array,
        changes: Changes,
        *,
        shard: int = 0,
        index_budget: int = UNLIMITED,
    ) -> SegmentEntry:
        """A shard's segment for the next epoch, in the store but not committed."""
        self.follow(replica, groups)
        path = segment_path(OPERATOR, Epoch(self.epoch + 1), shard, f"{next(_attempts):012x}")
        changed = changed_batch(self.schema, changes)
        written = compose_segment(replica, path, changed, groups, index_budget)
        self.store.put(path, memoryview(written.buffer))
        return written.entry

    def commit(
        self,
        entries: Sequence[SegmentEntry],
        assignment: Assignment | None = None,
        *,
        run: str = "run",
        full: bool = False,
        rows: int = 0,
    ) -> Epoch:
        commit = OperatorCommit(
            assignment or Assignment.even(self.key_groups, 1), tuple(entries), rows
        )
        self.journal.commit(
            self.trail,
            run=run,
            batch_id=self.epoch,
            watermark_ms=None,
            operators={OPERATOR: commit},
            specs={OPERATOR: {"kind": "table"}},
            full=full,
        )
        return self.epoch

    def step(
        self,
        changes: Changes,
        assignment: Assignment | None = None,
        replicas: Sequence[Replica] | None = None,
        *,
        index_budget: int = UNLIMITED,
        full: bool = False,
    ) -> Epoch:
        """A whole epoch: every shard that got rows writes a segment, then all are committed."""
        assignment = assignment or Assignment.even(self.key_groups, 1)
        entries = []
        for shard, mine in enumerate(self.split(changes, assignment)):
            if mine:
                replica = replicas[shard] if replicas else self.replica()
                groups = assignment.groups_of(shard)  # type: ignore[arg-type]
                entries.append(
                    self.write(replica, groups, mine, shard=shard, index_budget=index_budget)
                )
        return self.commit(entries, assignment, full=full)

    def split(self, changes: Changes, assignment: Assignment) -> list[dict[Fingerprint, Any]]:
        """The changes of each shard."""
        parts: list[dict[Fingerprint, Any]] = [{} for _ in range(assignment.shards)]
        for (hi, lo), row in changes.items():
            group = int(groups_of(words([hi]), self.key_groups)[0])
            parts[assignment.owners[group]][hi, lo] = row
        return parts

    def state(self, epoch: int | None = None) -> State:
        """All rows at an epoch, by a new replica that follows a new trail."""
        at = self.journal.trail(self.epoch if epoch is None else Epoch(epoch))
        replica = self.replica()
        replica.follow(at.operator(OPERATOR), at.epoch, self.every)
        return to_state(replica.read(self.every))


def updated(state: State, changes: Changes) -> State:
    """The oracle's next state."""
    after = dict(state)
    for key, row in changes.items():
        if row is None:
            after.pop(key, None)
        else:
            after[key] = row
    return after
