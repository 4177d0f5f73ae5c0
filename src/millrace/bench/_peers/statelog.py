"""The state layer by itself, without Spark: age a location's state, and open it.

Aging commits epochs to the log of a location that a query has filled: the same operator, shards,
segments, merges and manifests as in the query, but quicker to get through, because no rows come
from Spark. A state's age matters: only after every key group has been merged are merges, deltas and
files what they will be for ever after.

Aging repeats the batch id of the last epoch, so the query goes on from where its source was.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace import clock
from millrace.bench._peers.engine import PARTITIONS
from millrace.ids import Epoch, OperatorName, Shard
from millrace.keygroups import Assignment, group_shift
from millrace.log import Journal, OperatorCommit, open_store
from millrace.log.manifest import manifest_path
from millrace.log.segment import HI, LO, segment_path
from millrace.log.trail import Trail
from millrace.operators import Operator, from_spec
from millrace.operators.operator import MAIN, Moment, TableChange
from millrace.state.replica import Replica
from millrace.state.writing import compose_segment

INDEX_BUDGET = 2 * 2**30
"""What a query's `memory` is by default."""

Words = npt.NDArray[np.uint64]


class StateLog:
    """A peer without Spark."""

    def do_ready(self) -> str:
        return "ready"

    def do_begin(self, location: str, rows: int, seed: int) -> int:
        """Age a location from now on, by epochs of `rows` rows drawn uniformly from its keys."""
        self._aging = _Aging(location, rows, seed)
        return self._aging.rows_total

    def do_settle(self, at_most: int) -> int:
        """Epochs until every key group was merged; returns how many it took."""
        epochs = 0
        while not self._aging.all_merged:
            self._aging.epoch()
            epochs = _one_more(epochs, at_most)
        return epochs

    def do_until_merging(self, at_most: int) -> int:
        """Epochs until one merges a key group; returns how many it took."""
        epochs = 0
        while not self._aging.epoch()["merged"]:
            epochs = _one_more(epochs, at_most)
        return epochs

    def do_measure(self, epochs: int) -> dict[str, Any]:
        """Some epochs, and what they wrote."""
        written = {"segments": 0, "manifests": 0, "changed": 0, "changed_rows": 0, "merged": 0}
        merging = 0
        started = time.perf_counter()
        for _ in range(epochs):
            epoch = self._aging.epoch()
            merging += epoch["merged"] > 0
            for name, value in epoch.items():
                written[name] += value
        return {**written, "seconds": time.perf_counter() - started, "merging_epochs": merging}

    def do_save(self, added: str) -> None:
        """Write how often each key was drawn to a file, indexed by key."""
        np.save(added, self._aging.added)

    def do_open(self, location: str, warm: str) -> dict[str, float]:
        """Open a replica of a location, after having opened a small one: kernels are loaded."""
        _open(warm)
        opened = _open(location)
        return dict(zip(("open_s", "cpu_s", "first_lookup_s", "rows"), opened, strict=True))

    def close(self) -> None:
        pass


def _one_more(epochs: int, at_most: int) -> int:
    if epochs == at_most:
        raise RuntimeError(f"the merges waited for did not come within {epochs} epochs")
    return epochs + 1


def _open(location: str) -> tuple[float, float, float, int]:
    started, cpu = time.perf_counter(), time.process_time()
    journal = Journal.open(open_store(location))
    trail = journal.trail(journal.head())
    name, operator = _operator(trail)
    schema = operator.tables[MAIN].schema
    replica = Replica(journal.store, schema, trail.key_groups)
    replica.follow(trail.operator(name), trail.epoch, np.arange(trail.key_groups))
    opened, cpu = time.perf_counter(), time.process_time() - cpu
    # One look-up per 1,000th of the key space: every key group's base is touched and verified.
    words = np.arange(1000, dtype=np.uint64) * np.uint64(2**64 // 1000)
    replica.gather(replica.find(words, words), list(schema.names))
    return opened - started, cpu, time.perf_counter() - opened, trail.operator(name).rows


def _operator(trail: Trail) -> tuple[OperatorName, Operator]:
    (name,) = trail.specs
    return name, from_spec(name, trail.specs[name])


class _Aging:
    def __init__(self, location: str, draws: int, seed: int) -> None:
        self._draws = draws
        self._journal = Journal.open(open_store(location))
        self._trail = self._journal.trail(self._journal.head())
        self._name, self._operator = _operator(self._trail)
        bases = self._trail.operator(self._name).base
        self._first_bases = {base.id for base in bases if base is not None}
        self._key_groups = self._trail.key_groups
        self._assignment = Assignment.even(self._key_groups, PARTITIONS)
        self._every = np.arange(self._key_groups)
        schema = self._operator.tables[MAIN].schema
        self._replica = Replica(self._journal.store, schema, self._key_groups)
        self._follow()
        rows = self._replica.read(self._every)
        self._hi: Words = rows.column(HI).to_numpy()
        self._lo: Words = rows.column(LO).to_numpy()
        self._key: npt.NDArray[np.int64] = rows.column("key").to_numpy()
        owners = np.asarray(self._assignment.owners)
        shift = np.uint64(group_shift(self._key_groups))
        self._shard = owners[(self._hi >> shift).astype(np.int64)]
        self.added: npt.NDArray[np.int64] = np.zeros(int(self._key.max()) + 1, np.int64)
        self._random = np.random.default_rng(seed)

    @property
    def all_merged(self) -> bool:
        """Whether every key group has been merged since the aging began."""
        # By identity: the base that filling wrote must have been replaced, whatever its epoch.
        return all(
            now is not None and now.id not in self._first_bases
            for now in self._trail.operator(self._name).base
        )

    def _follow(self) -> None:
        log = self._trail.operator(self._name)
        self._replica.follow(log, self._trail.epoch, self._every)

    @property
    def rows_total(self) -> int:
        return len(self._hi)

    def epoch(self) -> dict[str, int]:
        """One epoch; returns the bytes it wrote and the bytes that changed."""
        drawn = self._random.integers(0, len(self._hi), self._draws)
        self.added += np.bincount(self._key[drawn], minlength=len(self.added))
        changes: list[TableChange] = []
        moment = Moment(self._trail.epoch + 1, 0, None)
        segments = []
        merged = 0
        for shard in range(PARTITIONS):
            groups = self._assignment.groups_of(Shard(shard))
            rows_of_shard = self._rows(drawn[self._shard[drawn] == shard])
            replicas = {MAIN: self._replica}
            change = self._operator.apply(replicas, rows_of_shard, groups, moment).tables[MAIN]
            path = segment_path(self._name, Epoch(moment.epoch), shard, clock.fresh_id()[:12])
            written = compose_segment(self._replica, path, change.rows, groups, INDEX_BUDGET)
            self._journal.store.put(path, memoryview(written.buffer))
            changes.append(change)
            segments.append(written.entry)
            merged += written.merged_rows
        before = self._trail.operator(self._name).rows
        commit = OperatorCommit(
            self._assignment, tuple(segments), before + sum(c.added for c in changes)
        )
        manifest = self._journal.commit(
            self._trail,
            run="aging",
            batch_id=self._trail.batch_id,
            watermark_ms=None,
            operators={self._name: commit},
            specs=self._trail.specs,
            full=False,
        )
        self._follow()
        return {
            "segments": sum(entry.bytes for entry in segments),
            "manifests": self._journal.store.size(manifest_path(manifest.epoch)) or 0,
            "changed": sum(c.rows.nbytes for c in changes),
            "changed_rows": sum(c.rows.num_rows for c in changes),
            "merged": merged,
        }

    def _rows(self, drawn: npt.NDArray[np.int64]) -> pa.Table:
        """Rows as the exchange delivers them: fingerprint, key, and a count of one."""
        return pa.table(
            {
                HI: self._hi[drawn].view(np.int64),
                LO: self._lo[drawn].view(np.int64),
                "_k0": self._key[drawn],
                "_p0_0": np.ones(len(drawn), np.int64),
            }
        )
