"""The state layer by itself, without Spark: age a location's state, and open it.

Aging commits epochs to the log of a location that a query has filled: the same operator, shards,
segments, merges and manifests as in the query, but quicker to get through, because no rows come
from Spark. A state's age matters: only after every key group has been merged are merges, deltas and
files what they stay from then on.

Aging repeats the batch id of the last epoch, so the query continues from where its source was.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.ids import TableName, table_name
from millrace.keygroups import group_shift
from millrace.log import Journal, open_store
from millrace.log.manifest import manifest_path
from millrace.log.segment import HI, LO
from millrace.log.trail import Trail
from millrace.operators import Operator
from millrace.operators.input import Input
from millrace.operators.operator import MAIN
from millrace.operators.registry import from_spec
from millrace.state.replica import Replica
from millrace_lab.bench._shards import HeldShards
from millrace_lab.bench._sides.engine import PARTITIONS


class StateLog:
    """A side without Spark."""

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


def _operator(trail: Trail) -> tuple[TableName, Operator]:
    (name,) = trail.specs
    return table_name(name), from_spec(name, trail.specs[name])


class _Aging:
    def __init__(self, location: str, draws: int, seed: int) -> None:
        self._draws = draws
        journal = Journal.open(open_store(location))
        self._table, operator = _operator(journal.newest())
        self._shards = HeldShards(journal, operator, PARTITIONS)
        bases = self._shards.trail.operator(self._table).base
        self._first_bases = {base.id for base in bases if base is not None}
        key_groups = self._shards.trail.key_groups
        rows = pa.concat_batches(
            [shard.replicas[MAIN].read(shard.groups) for shard in self._shards.opened]
        )
        self._hi: UInt64Array = rows.column(HI).to_numpy()
        self._lo: UInt64Array = rows.column(LO).to_numpy()
        self._key: Int64Array = rows.column("key").to_numpy()
        owners = np.asarray(self._shards.assignment.owners)
        shift = np.uint64(group_shift(key_groups))
        self._shard = owners[(self._hi >> shift).astype(np.int64)]
        self.added: Int64Array = np.zeros(int(self._key.max()) + 1, np.int64)
        self._random = np.random.default_rng(seed)

    @property
    def all_merged(self) -> bool:
        """Whether every key group has been merged since the aging began."""
        # By identity: the base that filling wrote must have been replaced, whatever its epoch.
        return all(
            now is not None and now.id not in self._first_bases
            for now in self._shards.trail.operator(self._table).base
        )

    @property
    def rows_total(self) -> int:
        return len(self._hi)

    def epoch(self) -> dict[str, int]:
        """One epoch; returns the bytes it wrote and the bytes that changed."""
        drawn = self._random.integers(0, len(self._hi), self._draws)
        self.added += np.bincount(self._key[drawn], minlength=len(self.added))
        changed, reports = 0, []
        for shard in self._shards.opened:
            change = shard.apply(self._rows(drawn[self._shard[drawn] == shard.shard]))
            changed += change.tables[MAIN].rows.nbytes
            reports.append(shard.seal())
        trail = self._shards.trail
        self._shards.commit(reports, "aging", trail.batch_id)
        self._shards.follow()
        written = [report.tables[MAIN] for report in reports if MAIN in report.tables]
        return {
            "segments": sum(table.segment.bytes for table in written),
            "manifests": self._shards.journal.store.size(manifest_path(trail.epoch)) or 0,
            "changed": changed,
            "changed_rows": sum(table.changed_rows for table in written),
            "merged": sum(table.merged_rows for table in written),
        }

    def _rows(self, drawn: Int64Array) -> Input:
        """Rows as the exchange delivers them: fingerprint, key, and a count of one."""
        keys = (pa.array(self._key[drawn]),)
        ones = pa.array(np.ones(len(drawn), np.int64))
        return Input(self._hi[drawn], self._lo[drawn], keys, partials=((ones,),))
