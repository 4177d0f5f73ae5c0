"""Replicas that a process keeps between epochs.

Spark reuses its Python workers but does not pin tasks to them, so a worker may be asked for key
groups it has not seen for some epochs: it follows the log from where it was. What it has not been
asked for in a while is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.errors import MissingFileError
from millrace.ids import Epoch, OperatorName
from millrace.log.journal import Identity, Journal
from millrace.log.pages import prune
from millrace.log.store import open_store
from millrace.log.trail import Trail
from millrace.state.replica import Int64Array, Replica

PRUNE_EVERY = 16
"""Every so many epochs a machine forgets its copies of remote segments that are not live."""

FORGET_AFTER = 64
"""Key groups not asked for in so many epochs are dropped."""


@dataclass(eq=False)
class _Held:
    journal: Journal
    trail: Trail
    replicas: dict[tuple[OperatorName, str], Replica]


_held: dict[tuple[str, str], _Held] = {}


class Cache:
    """This process's replicas of one location, at a version."""

    def __init__(
        self,
        location: str,
        query: str,
        key_groups: int,
        version: Epoch,
        *,
        at_least: bool = False,
    ) -> None:
        """At a version; with `at_least`, at the last one committed by now."""
        held = _held.get((location, query))
        if at_least and held is not None:
            version = max(version, held.trail.epoch)
        if held is None or held.trail.epoch > version:
            # Another query at the same path, or a task older than what this process has seen.
            journal = Journal(open_store(location), Identity(query, key_groups, 0))
            held = _Held(journal, journal.trail(version), {})
            for key in [k for k in _held if k[0] == location]:
                del _held[key]
            _held[location, query] = held
        try:
            held.journal.follow(held.trail, version)
        except MissingFileError:
            # This process was away for longer than manifests are kept. Its replicas are as good as
            # any: they go on with whatever is live now.
            held.trail = held.journal.trail(version)
        if at_least:
            version = held.journal.catch_up(held.trail)
        self._held = held
        self.version = version

    def holds(self, table: OperatorName) -> set[int]:
        """The key groups of a table that this process has indexed at some version."""
        replicas = [r for (name, _), r in self._held.replicas.items() if name == table]
        return {int(group) for replica in replicas for group in replica.warm()}

    def replica(
        self, table: OperatorName, schema: pa.Schema, owned: bool, groups: Int64Array
    ) -> Replica:
        """The replica of a table, with some key groups at the version."""
        held = self._held
        key = (table, str(schema))
        replica = held.replicas.get(key)
        if replica is None:
            held.replicas = {k: r for k, r in held.replicas.items() if k[0] != table}
            key_groups = held.trail.key_groups
            replica = Replica(held.journal.store, schema, key_groups, owned=owned)
            held.replicas[key] = replica
        replica.follow(held.trail.operator(table), self.version, groups)
        if self.version % PRUNE_EVERY == 0 and held.journal.store.local_path("") is None:
            prune(held.journal.store, {entry.path for entry in held.trail.segments()})
        for group in replica.held():
            if replica.lag(int(group)) > FORGET_AFTER:
                replica.forget(group.reshape(1))
        return replica


def heap_bytes() -> int:
    """Memory held by all replicas of this process."""
    return sum(r.heap_bytes for held in _held.values() for r in held.replicas.values())
