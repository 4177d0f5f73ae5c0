"""The collection of old files beside the epochs of a running query.

A collection lists the location and reads manifests, which takes seconds on a remote store, so no
epoch waits for it. It reads each manifest once: what it has read it remembers for as long as the
epoch is retained. Others may collect at the same time, such as `millrace gc`: what is missing then
is a reason to try again, not to fail.
"""

from __future__ import annotations

from millrace.ids import Epoch
from millrace.log.journal import Journal
from millrace.log.manifest import Manifest
from millrace.log.retention import collect
from millrace.repeating import UNTIL_WOKEN, Repeating

COLLECT_EVERY = 16
"""How many epochs pass between two collections."""


class Collector:
    """Collects what a query does not retain, in a thread of its own."""

    def __init__(self, journal: Journal, retain_epochs: int) -> None:
        self._journal = _RememberingJournal(journal)
        self._retain_epochs = retain_epochs
        self._is_due = False
        self.thread = Repeating("collect", self._step)

    def start(self) -> None:
        self.thread.start()

    def after_epoch(self, epoch: Epoch) -> None:
        """An epoch was committed."""
        if epoch % COLLECT_EVERY == 0:
            self._is_due = True
            self.thread.wake()

    def close(self) -> None:
        """Stop; a collection that is due is left to the next run, or to `millrace gc`."""
        self.thread.close()

    def _step(self) -> float:
        if self._is_due:
            collect(self._journal, self._retain_epochs)
            self._is_due = False
            self._journal.forget_collected()
        return UNTIL_WOKEN


class _RememberingJournal(Journal):
    """Manifests never change, so each is read once."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal.store, journal.identity)
        self._read: dict[Epoch, tuple[Manifest, str]] = {}

    def read(self, epoch: Epoch) -> tuple[Manifest, str]:
        if epoch not in self._read:
            self._read[epoch] = super().read(epoch)
        return self._read[epoch]

    def forget_collected(self) -> None:
        """Forget manifests that are gone."""
        there = set(self.epochs())
        self._read = {epoch: read for epoch, read in self._read.items() if epoch in there}
