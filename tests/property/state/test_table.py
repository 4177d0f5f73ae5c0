"""A table through any history of epochs, against a dict.

The machine does what a cluster may do: several workers with replicas of different age take shards
of assignments that change at every epoch, merge and write runs, restart, lag, abandon attempts,
collect garbage, and read old epochs. Thresholds are small, so that merges, runs, page cuts and full
manifests happen within a few steps.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from tests.unit.driving import (
    UNLIMITED,
    Fingerprint,
    Location,
    State,
    changed_batch,
    fingerprint,
    to_state,
    updated,
    words,
)

from millrace.ids import Epoch
from millrace.keygroups import Assignment, groups_of
from millrace.log import Journal
from millrace.log import journal as journal_module
from millrace.log.retention import collect
from millrace.log.segment import encoding
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

TOP = 2**64 - 1
WORKERS = 3

# Same hi and different lo, same lo and different hi, both ends of the range, and neighbours.
AWKWARD: list[Fingerprint] = [
    *((hi, lo) for hi in (0, 1, 2**63, TOP) for lo in (0, 1, TOP)),
    *((2**60 + i, 7) for i in range(6)),
]
SMALL = AWKWARD + [fingerprint(i) for i in range(20)]

WORD = st.integers(0, TOP)
TEXT = st.text(max_size=5)

NESTED = pa.list_(pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))]))

SCHEMAS: dict[str, tuple[pa.Schema, st.SearchStrategy[Any]]] = {
    "number": (
        pa.schema([("n", pa.int64())]),
        st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1)),
    ),
    "mixed": (
        pa.schema(
            [("s", pa.string()), ("d", pa.decimal128(20, 2)), ("b", pa.bool_()), ("i", pa.int16())]
        ),
        st.tuples(
            st.none() | TEXT,
            st.none() | st.integers(-(10**19), 10**19).map(lambda n: Decimal(n).scaleb(-2)),
            st.none() | st.booleans(),
            st.none() | st.integers(-(2**15), 2**15 - 1),
        ),
    ),
    "nested": (
        pa.schema(
            [("items", NESTED), ("m", pa.map_(pa.string(), pa.float64())), ("raw", pa.binary())]
        ),
        st.tuples(
            st.none()
            | st.lists(
                st.none()
                | st.fixed_dictionaries(
                    {
                        "x": st.none() | st.integers(-9, 9),
                        "tags": st.none() | st.lists(st.none() | TEXT, max_size=3),
                    }
                ),
                max_size=3,
            ),
            st.none()
            | st.dictionaries(TEXT, st.none() | st.floats(allow_nan=False), max_size=2).map(
                lambda d: list(d.items())
            ),
            st.none() | st.binary(max_size=4),
        ),
    ),
}

_memory_numbers = itertools.count()


class TableMachine(RuleBasedStateMachine):
    url_scheme = "file"
    epochs = Bundle("epochs")

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(merging, "RUN_PIECES", 3),
            patch.object(merging, "LOG_PIECES", 0),
            patch.object(merging, "RUN_ROWS", 8),
            patch.object(encoding, "PAGE_ROWS", 3),
            patch.object(journal_module, "FULL_EVERY", 4),
        ]
        for each in self.patches:
            each.start()
        self.folder: str | None = None
        self.memory: str | None = None
        self.location: Location = None  # type: ignore[assignment]

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder)
        if self.memory is not None and fsspec.filesystem("memory").exists(self.memory):
            fsspec.filesystem("memory").rm(self.memory, recursive=True)

    @initialize(
        schema=st.sampled_from(sorted(SCHEMAS)),
        key_groups=st.sampled_from([2, 8, 64]),
        wide=st.booleans(),
        ratio=st.sampled_from([0.5, merging.MERGE_RATIO, 1e9]),
    )
    def start(self, schema: str, key_groups: int, wide: bool, ratio: float) -> None:
        # Where key groups are merged at once there is nothing left for runs.
        self.patches.append(patch.object(merging, "MERGE_RATIO", ratio))
        self.patches[-1].start()
        if self.url_scheme == "memory":
            self.memory = f"/table-{next(_memory_numbers)}"
            url = f"memory:/{self.memory}"
        else:
            url = self.folder = tempfile.mkdtemp(prefix="millrace-table-")
        user_schema, self.values = SCHEMAS[schema]
        self.location = Location(url, user_schema, key_groups)
        self.keys = (
            st.tuples(WORD, WORD) | st.sampled_from(SMALL) if wide else st.sampled_from(SMALL)
        )
        self.workers = [self.location.replica() for _ in range(WORKERS)]
        self.follower = self.location.replica()
        self.oracle: State = {}
        self.history: dict[int, State] = {}
        self.next_full = False

    def _assignment(self, data: st.DataObject) -> Assignment:
        key_groups = self.location.key_groups
        shards = data.draw(st.integers(1, min(4, key_groups)), "shards")
        if data.draw(st.booleans(), "even"):
            return Assignment.even(key_groups, shards)
        owners = data.draw(
            st.lists(st.integers(0, shards - 1), min_size=key_groups, max_size=key_groups), "owners"
        )
        return Assignment(shards, tuple(owners))

    def _changes(self, data: st.DataObject) -> dict[Fingerprint, Any]:
        size = data.draw(st.sampled_from([1, 2, 4, 12, 40]), "up to")
        return data.draw(
            st.dictionaries(self.keys, st.none() | self.values, min_size=1, max_size=size),
            "changes",
        )

    @rule(target=epochs, data=st.data(), budget=st.sampled_from([UNLIMITED, UNLIMITED, 2000, 0]))
    def epoch(self, data: st.DataObject, budget: int) -> Epoch:
        return self._epoch(data, self._changes(data), self._assignment(data), budget)

    @rule(target=epochs, data=st.data(), length=st.integers(3, 8))
    def burst(self, data: st.DataObject, length: int) -> Epoch:
        """Small epochs in a row under one assignment: what runs are made of."""
        assignment = self._assignment(data)
        few = st.dictionaries(self.keys, st.none() | self.values, min_size=1, max_size=3)
        for _ in range(length):
            self._epoch(data, data.draw(few, "changes"), assignment, UNLIMITED)
        return self.location.epoch

    def _epoch(
        self,
        data: st.DataObject,
        changes: dict[Fingerprint, Any],
        assignment: Assignment,
        budget: int,
    ) -> Epoch:
        """Shards on any workers, each of which may have missed any number of epochs."""
        entries = []
        for shard, mine in enumerate(self.location.split(changes, assignment)):
            if not mine:
                continue
            worker = self.workers[data.draw(st.integers(0, WORKERS - 1), "worker")]
            groups = assignment.groups_of(shard)  # type: ignore[arg-type]
            if data.draw(st.integers(0, 9), "twin") == 0:
                # An attempt that loses: its segment is written and never committed.
                self.location.write(worker, groups, mine, shard=shard, index_budget=budget)
            entries.append(
                self.location.write(worker, groups, mine, shard=shard, index_budget=budget)
            )
            self._check_find(worker, groups, mine)
        for entry in entries:
            for section in entry.sections:
                if section.first and section.last < entry.epoch:
                    event("a run")
                elif section.last < entry.epoch:
                    event("a merge")
        self.location.commit(entries, assignment, full=self.next_full)
        self.next_full = False
        self.oracle = updated(self.oracle, changes)
        self.history[self.location.epoch] = self.oracle
        return self.location.epoch

    def _check_find(self, worker: Replica, groups: Any, asked: dict[Fingerprint, Any]) -> None:
        """Look-ups see the version the worker is at, not what it has just written."""
        keys = sorted({*asked, *self.oracle})
        key_groups = groups_of(words(hi for hi, _ in keys), self.location.key_groups)
        keys = [key for key, group in zip(keys, key_groups, strict=True) if group in groups]
        addresses = worker.find(words(hi for hi, _ in keys), words(lo for _, lo in keys))
        assert (addresses != 0).tolist() == [key in self.oracle for key in keys]
        columns = worker.gather(addresses, self.location.schema.names)
        got = list(zip(*(column.to_pylist() for column in columns), strict=True))
        nothing = (None,) * len(columns)
        assert got == [self.oracle.get(key, nothing) for key in keys]

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """An epoch that wrote all its segments and then failed."""
        changes = self._changes(data)
        assignment = self._assignment(data)
        for shard, mine in enumerate(self.location.split(changes, assignment)):
            if mine:
                groups = assignment.groups_of(shard)  # type: ignore[arg-type]
                self.location.write(self.workers[shard % WORKERS], groups, mine, shard=shard)

    @rule(number=st.integers(0, WORKERS - 1))
    def lose_worker(self, number: int) -> None:
        self.workers[number] = self.location.replica()

    @rule(number=st.integers(0, WORKERS - 1), data=st.data())
    def forget(self, number: int, data: st.DataObject) -> None:
        held = self.workers[number].held().tolist()
        dropped = data.draw(st.sets(st.sampled_from(held)) if held else st.just(set()), "dropped")
        self.workers[number].forget(np.asarray(sorted(dropped), np.int64))

    @rule()
    def restart_driver(self) -> None:
        self.location.journal = Journal.open(self.location.store)
        self.location.trail = self.location.journal.trail(self.location.journal.head())
        self.next_full = True

    @rule()
    def follow(self) -> None:
        """A replica that has skipped any number of epochs catches up, and is as good as new."""
        self.location.follow(self.follower)
        assert to_state(self.follower.read(self.location.every)) == self.oracle
        new = self.location.follow(self.location.replica())
        changed = changed_batch(self.location.schema, dict.fromkeys(SMALL[::3]))
        written = [
            compose_segment(replica, "same", changed, self.location.every, UNLIMITED).buffer
            for replica in (self.follower, new)
        ]
        assert written[0].equals(written[1])

    @rule(data=st.data())
    def peek(self, data: st.DataObject) -> None:
        """Some key groups are followed, some of them read; the others are as good later."""
        every = st.sets(st.integers(0, self.location.key_groups - 1), min_size=1)
        followed = data.draw(every, "followed")
        self.location.follow(self.follower, np.asarray(sorted(followed)))
        read = np.asarray(sorted(followed & data.draw(every, "read")), np.int64)
        keys = [
            k for k in self.oracle if groups_of(words([k[0]]), self.location.key_groups) in read
        ]
        assert to_state(self.follower.read(read)) == {key: self.oracle[key] for key in keys}

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        """The shards of any assignment hold, together, exactly the state."""
        assignment = self._assignment(data)
        united: State = {}
        for shard in range(assignment.shards):
            groups = assignment.groups_of(shard)  # type: ignore[arg-type]
            part = self.location.follow(self.location.replica(), groups)
            rows = to_state(part.read(groups))
            assert not united.keys() & rows.keys()
            united |= rows
        assert united == self.oracle

    @rule(epoch=epochs)
    def look_back(self, epoch: Epoch) -> None:
        if epoch in self.location.journal.epochs():
            assert self.location.state(epoch) == self.history[epoch]

    @rule(retain=st.integers(1, 12))
    def collect(self, retain: int) -> None:
        """Every epoch that still has its manifest can be read, and the last `retain` have one."""
        before = self.location.journal.epochs()
        collect(self.location.journal, retain)
        kept = self.location.journal.epochs()
        assert kept[-retain:] == before[-retain:]
        for epoch in kept:
            assert self.location.state(epoch) == self.history[epoch]

    @invariant()
    def a_new_replica_equals_the_oracle(self) -> None:
        if self.location is not None and self.location.epoch:
            assert self.location.state() == self.oracle


class MemoryTableMachine(TableMachine):
    url_scheme = "memory"


_examples = settings.default.max_examples
TestLocalTable = TableMachine.TestCase
TestLocalTable.settings = settings(max_examples=_examples * 2 // 5, stateful_step_count=30)
TestMemoryTable = MemoryTableMachine.TestCase
TestMemoryTable.settings = settings(max_examples=_examples // 6, stateful_step_count=30)
