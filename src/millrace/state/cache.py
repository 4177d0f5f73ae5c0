"""Replicas that a process keeps between epochs.

Spark reuses its Python workers but does not pin tasks to them, so a worker may be asked for key
groups it has not seen for some epochs: it follows the log from where it was. Key groups that nobody
has asked for in a while are dropped.

Invariant: replicas are of the history that the location has now. If it was restored from a backup,
the same epochs are written again with other rows, and a worker may still hold the lost ones. So a
task names the manifest that it builds on by its checksum; what does not lead there is dropped.

A worker has one cache, `process_cache`. The test harness and the simulator make one for each
process that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import BrokenChainError, EpochFailedError, MissingFileError
from millrace.ids import Epoch, TableName
from millrace.log import store as stores
from millrace.log.copies import prune
from millrace.log.journal import Identity, Journal
from millrace.log.store import Store
from millrace.log.trail import Trail
from millrace.state.replica import Replica

PRUNE_EVERY = 16
"""How many epochs pass between two prunings of a machine's copies of remote segments."""

FORGET_AFTER = 64
"""Key groups that were not used in this many epochs are dropped."""


@dataclass(eq=False)
class _Location:
    journal: Journal
    trail: Trail
    replicas: dict[tuple[TableName, str], Replica]


class ReplicaCache:
    """One process's replicas, by location and query."""

    def __init__(self, open_store: Callable[[str], Store] | None = None) -> None:
        self._open_store = open_store
        self._locations: dict[tuple[str, str], _Location] = {}

    def at(
        self,
        location: str,
        identity: Identity,
        version: Epoch,
        checksum: str,
    ) -> CachedVersion:
        """A location at a version, whose manifest has a checksum."""
        held = self._locations.get((location, identity.query))
        if held is None or not _leads_to(held, version, checksum):
            held = self._open(location, identity, version)
            if held.trail.checksum != checksum:
                raise EpochFailedError(
                    f"epoch {version} of {location} is not the one that this query has committed: "
                    "the location was changed or restored while the query ran. Nothing of this "
                    "epoch was committed; stop every query on the location and start one again."
                )
        return CachedVersion(held, version)

    def at_least(self, location: str, identity: Identity, version: Epoch) -> CachedVersion:
        """A location at the last version that is committed by now, which is not before this one."""
        held = self._locations.get((location, identity.query))
        if held is None or not held.journal.holds(held.trail):
            held = self._open(location, identity, version)
        held.journal.catch_up(held.trail)
        if held.trail.epoch < version:
            # The next manifests were collected, and this one was kept for a reader.
            held.trail = held.journal.trail(version)
        return CachedVersion(held, held.trail.epoch)

    def _open(self, location: str, identity: Identity, version: Epoch) -> _Location:
        """A location without replicas, in the place of what is held of this path."""
        store = (self._open_store or stores.open_store)(location)
        journal = Journal(store, identity)
        held = _Location(journal, journal.trail(version), {})
        for key in [k for k in self._locations if k[0] == location]:
            del self._locations[key]
        self._locations[location, identity.query] = held
        return held

    def clear(self) -> None:
        """Drop everything, as the end of the process would."""
        self._locations.clear()

    @property
    def heap_bytes(self) -> int:
        """Memory held by all replicas."""
        return sum(r.heap_bytes for h in self._locations.values() for r in h.replicas.values())


class CachedVersion:
    """A process's replicas of one location, at a version."""

    def __init__(self, held: _Location, version: Epoch) -> None:
        self._held = held
        self.version = version

    @property
    def store(self) -> Store:
        return self._held.journal.store

    def holds(self, table: TableName) -> set[int]:
        """The key groups of a table that this process has indexed at some version."""
        replicas = [r for (name, _), r in self._held.replicas.items() if name == table]
        return {int(group) for replica in replicas for group in replica.warm()}

    def replica(
        self, table: TableName, schema: pa.Schema, owned: bool, groups: Int64Array
    ) -> Replica:
        """The replica of a table, with some key groups at the version."""
        held = self._held
        key = (table, str(schema))
        replica = held.replicas.get(key)
        if replica is None:
            held.replicas = {k: r for k, r in held.replicas.items() if k[0] != table}
            key_groups = held.trail.key_groups
            scheme = held.journal.identity.scheme
            replica = Replica(self.store, schema, key_groups, owned=owned, scheme=scheme)
            held.replicas[key] = replica
        replica.follow(held.trail.operator(table), self.version, groups)
        if self.version % PRUNE_EVERY == 0 and self.store.local_path("") is None:
            live = {entry.path for entry in held.trail.segments()}
            prune(self.store, live, held.trail.epoch)
        for group in replica.held():
            if replica.lag(int(group)) > FORGET_AFTER:
                replica.forget(group.reshape(1))
        return replica


def _leads_to(held: _Location, version: Epoch, checksum: str) -> bool:
    """Bring what is held to a version, if that is ahead of it in the same history."""
    if held.trail.epoch > version:
        # A task older than what this process has seen.
        return False
    try:
        held.journal.follow(held.trail, version)
    except (MissingFileError, BrokenChainError):
        # Away for longer than manifests are kept, or of a history that was lost: nothing says
        # that the replicas are of this one.
        return False
    return held.trail.checksum == checksum


process_cache = ReplicaCache()
"""The replicas of this Python worker."""
