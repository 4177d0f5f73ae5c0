"""Replicas that a process keeps between epochs.

Spark reuses its Python workers but does not pin tasks to them, so a worker may be asked for key
groups it has not seen for some epochs: it follows the log from where it was. Key groups that nobody
has asked for in a while are dropped.

A worker has one cache, `process_cache`. The test harness and the simulator make one for each
process that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import MissingFileError
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
        query: str,
        key_groups: int,
        version: Epoch,
        *,
        at_least: bool = False,
    ) -> CachedVersion:
        """A location at a version; with `at_least`, at the last one committed by now."""
        held = self._locations.get((location, query))
        if at_least and held is not None:
            version = max(version, held.trail.epoch)
        if held is None or held.trail.epoch > version:
            # Another query at the same path, or a task older than what this process has seen.
            store = (self._open_store or stores.open_store)(location)
            journal = Journal(store, Identity(query, key_groups, 0))
            held = _Location(journal, journal.trail(version), {})
            for key in [k for k in self._locations if k[0] == location]:
                del self._locations[key]
            self._locations[location, query] = held
        try:
            held.journal.follow(held.trail, version)
        except MissingFileError:
            # This process was away for longer than manifests are kept. Its replicas are still
            # good: they continue with whatever is live now.
            held.trail = held.journal.trail(version)
        if at_least:
            version = held.journal.catch_up(held.trail)
        return CachedVersion(held, version)

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
            replica = Replica(self.store, schema, key_groups, owned=owned)
            held.replicas[key] = replica
        replica.follow(held.trail.operator(table), self.version, groups)
        if self.version % PRUNE_EVERY == 0 and self.store.local_path("") is None:
            prune(self.store, {entry.path for entry in held.trail.segments()})
        for group in replica.held():
            if replica.lag(int(group)) > FORGET_AFTER:
                replica.forget(group.reshape(1))
        return replica


process_cache = ReplicaCache()
"""The replicas of this Python worker."""
