"""Whether a run has lost its location to another one: a look beside the epochs.

A run that commits learns it from the manifest that is there already. One that has nothing to
commit (no new rows, a cluster without executors, a trigger that waits for a clock which was set
back) would never learn it, so it looks from time to time.

Invariant: a run that may still commit the next epoch is never fenced. While a run commits, nothing
is looked at: its own commits are the check.
"""

from __future__ import annotations

from millrace.ids import Epoch
from millrace.log.journal import Journal, fenced_by

TAKEN_OVER = 2
"""A run that has not committed yet has lost when others committed this many epochs since its start.

One is not enough: a predecessor may still commit the epoch that it is in, and the new run goes on
from there. To commit a second one, it must have written the batch that the new run needs into
Spark's log.
"""


class Fence:
    """Looks for epochs of other runs."""

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal = journal
        self._run = run
        self._seen: Epoch | None = None
        """The version of the run at the last look."""
        self._first_head = Epoch(0)
        """The head of the location at the first look."""

    def check(self, version: Epoch, has_committed: bool) -> None:
        """Raise `FencedError` if another run has committed after `version`, the run's own.

        `has_committed`: whether this run has committed an epoch, or is only about to.
        """
        is_first, moved = self._seen is None, version != self._seen
        self._seen = version
        if is_first:
            self._first_head = self._journal.head()
        if moved:
            return
        head = self._journal.head()
        least = version + 1 if has_committed else max(version + 1, self._first_head + TAKEN_OVER)
        if head < least:
            return
        winner = self._journal.read(head)[0]
        # Its own: it has created the manifest just now.
        if winner.run != self._run:
            raise fenced_by(self._journal.store.url, winner, self._run)
