"""Rows that belong to a key, found by their owner: against a dict of dicts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from tests.stress import few
from tests.unit.driving import OPERATOR, fingerprint, words

from millrace.ids import Epoch
from millrace.keygroups import Assignment
from millrace.log import Journal, OperatorCommit, open_store
from millrace.log.segment import segment_path
from millrace.state import merging
from millrace.state.owners import ENTRY_BITS, entry_fingerprint
from millrace.state.replica import Replica
from millrace.state.sorting import sort_order
from millrace.state.writing import compose_segment

GROUPS = 16
EVERY = np.arange(GROUPS)
SCHEMA = pa.schema([("owner", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])

Entries = dict[int, dict[int, int]]

_locations = itertools.count()


class Owned:
    """A table of entries in a location, written by one or more shards."""

    def __init__(self, owners: list[tuple[int, int]]) -> None:
        self.store = open_store(f"memory://owned-{next(_locations)}")
        self.journal = Journal.create(self.store, GROUPS)
        self.trail = self.journal.trail(Epoch(0))
        self.hi = words(hi for hi, _ in owners)
        self.lo = words(lo for _, lo in owners)

    def replica(self) -> Replica:
        return Replica(self.store, SCHEMA, GROUPS, owned=True)

    def follow(self, replica: Replica, groups: Any = EVERY) -> Replica:
        replica.follow(self.trail.operator(OPERATOR), self.trail.epoch, groups)
        return replica

    def changed(self, replica: Replica, changes: dict[tuple[int, int], int | None]) -> Any:
        keys = list(changes)
        owner = np.asarray([o for o, _ in keys], np.int64)
        digests = [xxhash.xxh3_128_intdigest(f"{o}/{k}".encode()) for o, k in keys]
        hi, lo = entry_fingerprint(
            self.hi[owner], words(d >> 64 for d in digests), words(d & (2**64 - 1) for d in digests)
        )
        values = [changes[key] for key in keys]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(hi),
                pa.array(lo),
                pa.array([v is None for v in values]),
                pa.array(self.hi[owner]),
                pa.array(self.lo[owner]),
                pa.array(owner),
                pa.array([k for _, k in keys], pa.int64()),
                pa.array(values, pa.int64()),
            ],
            schema=replica.schema,
        )
        return batch.take(pa.array(sort_order(hi, lo)))

    def step(self, shards: int, changes: dict[tuple[int, int], int | None]) -> None:
        assignment = Assignment.even(GROUPS, shards)
        segments = []
        epoch = Epoch(self.trail.epoch + 1)
        for shard in range(shards):
            groups = assignment.groups_of(shard)  # type: ignore[arg-type]
            mine = {
                (o, k): v
                for (o, k), v in changes.items()
                if int(self.hi[o] >> np.uint64(60)) in groups
            }
            if mine:
                replica = self.follow(self.replica(), groups)
                path = segment_path(OPERATOR, epoch, shard, f"{shard:012x}")
                written = compose_segment(
                    replica, path, self.changed(replica, mine), groups, 1 << 40
                )
                self.store.put(path, memoryview(written.buffer))
                segments.append(written.entry)
        self.journal.commit(
            self.trail,
            run="r",
            batch_id=epoch - 1,
            watermark_ms=None,
            operators={OPERATOR: OperatorCommit(assignment, tuple(segments), 0)},
            specs={},
            full=False,
        )

    def read(self, replica: Replica, owners: list[int]) -> Entries:
        addresses, offsets = replica.entries(self.hi[owners], self.lo[owners])
        columns = [c.to_pylist() for c in replica.gather(addresses, ["owner", "k", "v"])]
        found: Entries = {}
        for n, owner in enumerate(owners):
            for row in range(offsets[n], offsets[n + 1]):
                assert columns[0][row] == owner
                assert columns[1][row] not in found.get(owner, {})
                found.setdefault(owner, {})[columns[1][row]] = columns[2][row]
        return found


def related_owners() -> list[tuple[int, int]]:
    """Ordinary owners, and some whose fingerprints are as close as they can be."""
    owners = [fingerprint(n) for n in range(30)]
    hi, lo = owners[0]
    near = hi & ~((1 << ENTRY_BITS) - 1)
    return [*owners, (near, lo), (near, lo + 1), (near | 1, lo), (hi, lo ^ 1)]


@pytest.mark.parametrize("seed", few(range(4), 0, 1))
def test_scans_equal_a_dict_of_dicts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "RUN_PIECES", 5)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    chance = random.Random(seed)
    owned = Owned(related_owners())
    every = list(range(len(owned.hi)))
    following, oracle = owned.replica(), {}  # type: tuple[Replica, Entries]
    for epoch in range(60):
        if epoch % 9 == 8:
            following = owned.replica()
        wanted = {o: entries for o, entries in oracle.items() if entries}
        assert owned.read(owned.follow(following), every) == wanted
        some = chance.sample(every, 5)
        part = {o: wanted[o] for o in some if o in wanted}
        assert owned.read(following, some) == part
        changes: dict[tuple[int, int], int | None] = {}
        for _ in range(chance.choice([1, 5, 80])):
            # One owner has most of the entries.
            owner = 0 if chance.random() < 0.5 else chance.choice(every)
            key = chance.randrange(300 if owner == 0 else 12)
            changes[owner, key] = None if chance.random() < 0.3 else chance.randrange(10**6)
        for (owner, key), value in changes.items():
            if value is None:
                oracle.get(owner, {}).pop(key, None)
            else:
                oracle.setdefault(owner, {})[key] = value
        owned.step(chance.choice([1, 1, 2, 5]), changes)


def test_a_large_collection_in_the_base_is_found_by_key_and_by_owner() -> None:
    owned = Owned(related_owners())
    owned.step(1, {(0, k): k for k in range(5000)} | {(o, 1): o for o in range(1, 34)})
    owned.step(1, {(0, 0): None, (0, 7): -7})
    replica = owned.follow(owned.replica())
    found = owned.read(replica, [0, 33, 31])
    assert found[0] == {k: k for k in range(1, 5000)} | {7: -7}
    assert (found[33], found[31]) == ({1: 33}, {1: 31})
    asked = owned.changed(replica, {(0, k): 0 for k in range(6000)})
    addresses = replica.find(asked.column(0).to_numpy(), asked.column(1).to_numpy())
    keys = asked.column("k").to_pylist()
    values = replica.gather(addresses, ["v"])[0].to_pylist()
    expected = {k: k for k in range(1, 5000)} | {7: -7}
    assert dict(zip(keys, values, strict=True)) == {k: expected.get(k) for k in range(6000)}
