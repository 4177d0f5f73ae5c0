"""One committed epoch of a location, and the replicas that read it.

A replica is opened when a table is first read, and follows only the key groups that are asked for.
`advance` takes all of them to a later epoch by following, so a snapshot that stays open is warm.

A replica changes its indexes as it is read, so each step of a read holds `lock`; whoever reads in
several steps sees to it that the snapshot does not advance in between.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from millrace.errors import MillraceError, UnknownOperatorError
from millrace.ids import Epoch, OperatorName
from millrace.log import Journal, Trail
from millrace.log.trail import OperatorLog
from millrace.operators.operator import MAIN, Moment, table_name
from millrace.reading.described import Described
from millrace.state.replica import Replica

Int64Array = npt.NDArray[np.int64]


class Snapshot:
    """All operators at one epoch."""

    def __init__(self, journal: Journal, trail: Trail) -> None:
        self.journal = journal
        self.trail = trail
        self.lock = threading.RLock()
        self.failure: MillraceError | None = None
        """Why the last scan of a query failed, if it did."""
        self._replicas: dict[tuple[OperatorName, str], Replica] = {}
        self._described: dict[OperatorName, Described] = {}
        self._follows = False

    @property
    def epoch(self) -> Epoch:
        return self.trail.epoch

    @property
    def every(self) -> Int64Array:
        """All key groups."""
        return np.arange(self.trail.key_groups)

    @property
    def moment(self) -> Moment:
        """The epoch's time, by which it is told what has expired."""
        watermark = self.trail.watermark_ms
        return Moment(
            self.trail.epoch,
            self.trail.time_ms * 1000,
            None if watermark is None else watermark * 1000,
        )

    @property
    def operators(self) -> list[OperatorName]:
        return sorted(self.trail.specs)

    def described(self, operator: str | None) -> Described:
        """An operator; it may be left out if there is only one."""
        names = self.operators
        if operator is None and len(names) == 1:
            operator = names[0]
        if operator is None or operator not in names:
            asked = "which operator?" if operator is None else f"there is no operator {operator!r}."
            raise UnknownOperatorError(
                f"{asked} {self.journal.store.url} has {', '.join(map(repr, names)) or 'none'} at "
                f"epoch {self.epoch}."
            )
        name = OperatorName(operator)
        found = self._described.get(name)
        if found is None:
            found = self._described[name] = Described(name, self.trail.specs[name])
        return found

    def log(self, operator: OperatorName, table: str) -> OperatorLog:
        return self.trail.operator(table_name(operator, table))

    def replica(
        self, described: Described, table: str = MAIN, groups: Int64Array | None = None
    ) -> Replica:
        """The replica of a table, with some key groups at this epoch."""
        wanted = self.every if groups is None else np.asarray(groups, np.int64)
        with self.lock:
            key = (described.name, table)
            replica = self._replicas.get(key)
            if replica is None:
                layout = described.tables[table]
                store, key_groups = self.journal.store, self.trail.key_groups
                replica = Replica(
                    store, layout.schema, key_groups, owned=layout.owned, by_column=True
                )
                self._replicas[key] = replica
            if replica.version != self.epoch or not replica.holds(wanted):
                both = np.union1d(replica.held(), wanted)
                replica.follow(self.log(described.name, table), self.epoch, both)
            return replica

    def hold_all(self) -> None:
        """Open and map every file of the epoch, so that it can be read even if they are deleted."""
        for name in self.operators:
            described = self.described(name)
            for table in described.tables:
                self.replica(described, table)

    def advance(self, epoch: Epoch | None = None) -> Epoch:
        """Go to a later epoch, or to the last one there is."""
        with self.lock:
            before = dict(self.trail.specs)
            if epoch is None:
                self._catch_up()
            else:
                self.journal.follow(self.trail, epoch)
            if self.trail.specs != before:
                # The query was started again with another definition: columns may differ.
                self._described.clear()
                self._replicas.clear()
            return self.trail.epoch

    def _catch_up(self) -> None:
        before = self.trail.epoch
        if self.journal.catch_up(self.trail) != before:
            self._follows = True
            return
        # No next manifest: this is the last epoch; or the next ones were collected. An epoch that a
        # reader stayed at is kept, those after it are not, unless the reader has said it follows.
        if before and (not self._follows or not self.journal.has(before)):
            head = self.journal.head()
            if head > before:
                # The replicas go on with what is live now.
                self.trail = self.journal.trail(head)
        self._follows = True

    @property
    def read_bytes(self) -> int:
        """Bytes of pages that were looked at, of what is held."""
        return sum(replica.read_bytes for replica in self._replicas.values())

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone, for the indexes of what is held."""
        return sum(replica.heap_bytes for replica in self._replicas.values())
