"""One committed epoch of a location, and the replicas that read it.

A replica is opened when a table is first read, and follows only the key groups that are asked for.
`advance` takes all of them to a later epoch by following, so a snapshot that stays open is warm.

A location that was restored from a backup writes the same epochs again, with other rows. A snapshot
never goes over to such a history: `HistoryReplacedError`.

A replica changes its indexes as it is read, so each step of a read holds `lock`. A caller that
reads in several steps must not advance the snapshot in between.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from millrace.arrays import Int64Array
from millrace.errors import (
    BrokenChainError,
    CorruptManifestError,
    HistoryReplacedError,
    MalformedError,
    MillraceError,
    MissingFileError,
    UnknownOperatorError,
)
from millrace.ids import Epoch, OperatorName, table_name
from millrace.log import Journal, Trail
from millrace.log.copies import prune
from millrace.log.trail import OperatorLog
from millrace.operators.operator import MAIN, Moment
from millrace.reading.description import Description
from millrace.reading.replicas import new_replica

if TYPE_CHECKING:
    from millrace.state.replica import Replica

PRUNE_EVERY = 16
"""How many epochs pass between two prunings of this machine's copies of remote segments."""


class Snapshot:
    """All operators at one epoch."""

    def __init__(self, journal: Journal, trail: Trail) -> None:
        self.journal = journal
        self.trail = trail
        self.lock = threading.RLock()
        self.failure: MillraceError | None = None
        """Why the last scan of a query failed, if it did."""
        self._replicas: dict[tuple[OperatorName, str], Replica] = {}
        self._description: dict[OperatorName, Description] = {}
        self._pruned = trail.epoch

    @property
    def epoch(self) -> Epoch:
        return self.trail.epoch

    @property
    def every(self) -> Int64Array:
        """All key groups."""
        return np.arange(self.trail.key_groups)

    def moment(self, operator: OperatorName) -> Moment:
        """An operator's time in the epoch, which decides what has expired.

        The clock may have been set back since an epoch expired something; what the operators take
        for now never goes back.
        """
        return Moment(
            self.trail.epoch,
            max(self.trail.time_ms, self.trail.processing_ms) * 1000,
            self.trail.watermark_us(operator),
        )

    @property
    def operators(self) -> list[OperatorName]:
        return sorted(self.trail.specs)

    def description(self, operator: str | None) -> Description:
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
        found = self._description.get(name)
        if found is None:
            try:
                found = self._description[name] = Description(name, self.trail.specs[name])
            except MalformedError as error:
                raise CorruptManifestError(
                    f"the manifests of {self.journal.store.url} are malformed at epoch "
                    f"{self.epoch}, where they describe operator {name!r}: {error}. Millrace did "
                    "not write that: restore them from a backup, or open another epoch."
                ) from error
        return found

    def log(self, operator: OperatorName, table: str) -> OperatorLog:
        return self.trail.operator(table_name(operator, table))

    def replica(
        self, description: Description, table: str = MAIN, groups: Int64Array | None = None
    ) -> Replica:
        """The replica of a table, with some key groups at this epoch."""
        wanted = self.every if groups is None else np.asarray(groups, np.int64)
        with self.lock:
            key = (description.name, table)
            replica = self._replicas.get(key)
            if replica is None:
                layout = description.tables[table]
                replica = new_replica(self.journal.store, layout, self.trail.key_groups)
                self._replicas[key] = replica
            if replica.version != self.epoch or not replica.holds(wanted):
                both = np.union1d(replica.held(), wanted)
                replica.follow(self.log(description.name, table), self.epoch, both)
            return replica

    def hold_all(self) -> None:
        """Open and map every file of the epoch, so that it can be read even if they are deleted."""
        for name in self.operators:
            description = self.description(name)
            for table in description.tables:
                self.replica(description, table)

    def advance(self, epoch: Epoch | None = None) -> Epoch:
        """Go to a later epoch, or to the last one there is."""
        with self.lock:
            before = dict(self.trail.specs)
            if epoch is None:
                self._catch_up()
            else:
                self._follow(epoch)
            self._prune_copies()
            if self.trail.specs != before:
                # The query was started again with another definition: columns may differ.
                self._description.clear()
                self._replicas.clear()
            return self.trail.epoch

    def _follow(self, epoch: Epoch) -> None:
        with self._one_history():
            try:
                self.journal.follow(self.trail, epoch)
            except MissingFileError:
                # Manifests in between were collected. The replicas continue with what is live now,
                # if it is certain that they are of the same history.
                if not self.journal.holds(self.trail):
                    self._replicas.clear()
                self.trail = self.journal.trail(epoch)

    def _catch_up(self) -> None:
        with self._one_history():
            self.journal.catch_up(self.trail)
        # No next manifest means that this is the last epoch, or that the next ones were collected:
        # the epoch that a reader stays at is kept, and not those after it. Only a list tells.
        head = self.journal.head()
        if head <= self.epoch and not self.journal.holds(self.trail):
            # The head is never collected. So either there are later ones by now, or it was lost.
            head = self.journal.head()
            if head <= self.epoch:
                raise self._replaced()
        if head > self.epoch:
            self._follow(head)

    def check_history(self) -> None:
        """Raise unless this epoch is still in the location, and what is read there of its past."""
        if not self.journal.holds(self.trail):
            raise self._replaced()

    @contextlib.contextmanager
    def _one_history(self) -> Iterator[None]:
        """Tell manifests of another history from damaged ones."""
        try:
            yield
        except BrokenChainError as error:
            if self.journal.holds(self.trail):
                raise
            raise self._replaced() from error

    def _replaced(self) -> HistoryReplacedError:
        return HistoryReplacedError(
            f"epoch {self.epoch}, which was read here, is no longer in the history of "
            f"{self.journal.store.url}: the location was restored from a backup, or the epoch was "
            f"collected. Open the location again; {self.journal.retained()}"
        )

    def _prune_copies(self) -> None:
        """Delete this machine's copies of remote segments that are no longer live, now and then."""
        if self.epoch - self._pruned >= PRUNE_EVERY:
            self._pruned = self.epoch
            self.prune_copies()

    def prune_copies(self) -> None:
        """Delete this machine's copies of remote segments that are not live at this epoch.

        A process that has one mapped keeps it; one that stays at an older epoch fetches it again.
        """
        store = self.journal.store
        if store.local_path("") is None:
            with contextlib.suppress(OSError):
                live = {entry.path for entry in self.trail.segments()}
                prune(store, live, self.trail.epoch)

    @property
    def read_bytes(self) -> int:
        """Bytes of pages that were looked at, of what is held."""
        return sum(replica.read_bytes for replica in self._replicas.values())

    @property
    def heap_bytes(self) -> int:
        """Memory of this process alone, for the indexes of what is held."""
        return sum(replica.heap_bytes for replica in self._replicas.values())
