"""Look-ups in a replica that is kept warm by following the log.

Invariant: every answer is from one committed epoch, and says which. There are two generations of
replicas: look-ups read the front one, and a thread brings the back one to the newest epoch and
swaps them, so that a look-up never waits for an epoch. The generation that went to the back is
changed only when the last look-up in it has ended. When the location was restored from a backup,
answers are from its new history as soon as that is noticed, and their epochs may go back.

`staleness_ms` of an answer is the time since the log was last seen to have no newer epoch. It is an
upper bound: it grows between two polls, and while a newer epoch is being taken in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace import clock
from millrace.arrays import BoolArray
from millrace.errors import HistoryReplacedError, UnknownOperatorError
from millrace.ids import Epoch
from millrace.log import Journal, open_store
from millrace.reading.epochs import no_epoch_yet
from millrace.reading.snapshot import Snapshot
from millrace.repeating import Repeating
from millrace.serve.tables import OperatorTables

POLL_SECONDS = 0.05
"""How often the log is asked for a new epoch."""
LIST_SECONDS = 5.0
"""How often all epochs are listed while no new one is found."""


@dataclass(frozen=True)
class Standing:
    """Which epoch an answer is from."""

    epoch: Epoch
    committed_ms: int
    """When the epoch was committed, in milliseconds since 1970."""
    staleness_ms: float
    """No epoch that was committed longer ago than this is missing."""


@dataclass(frozen=True)
class Answer:
    """Rows in the order of the keys asked for."""

    standing: Standing
    rows: pa.RecordBatch
    found: BoolArray


class _Generation:
    """The replicas of all operators at one epoch, and how many look-ups are in them."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorTables] = {}
        self.epoch = Epoch(0)
        self.committed_ms = 0
        self._snapshot: Snapshot | None = None
        self._readers = 0
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._readers += 1

    def leave(self) -> None:
        with self._changed:
            self._readers -= 1
            if not self._readers:
                self._changed.notify_all()

    def wait_unread(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._readers)

    def follow(self, journal: Journal) -> None:
        """Bring all operators to the last committed epoch."""
        if self._snapshot is None:
            self._snapshot = Snapshot(journal, journal.newest())
        else:
            self._snapshot.advance()
        names = self._snapshot.operators
        self.operators = {name: OperatorTables(self._snapshot, name) for name in names}
        self.epoch = self._snapshot.epoch
        self.committed_ms = self._snapshot.trail.time_ms

    def is_of(self, journal: Journal) -> bool:
        """Whether its epoch is one of the journal's."""
        return self._snapshot is not None and journal.holds(self._snapshot.trail)

    @property
    def heap_bytes(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.heap_bytes


class Lookups:
    """Look-ups in the newest state of a location."""

    def __init__(self, location: str, poll_seconds: float = POLL_SECONDS) -> None:
        self._journal = Journal.open(open_store(location))
        self._poll_seconds = poll_seconds
        self._thread = Repeating("lookups", self._follow)
        self._front, self._back = _Generation(), _Generation()
        self._swap = threading.Lock()
        self._following = threading.Lock()
        self._checked = self._listed = clock.stopwatch()
        if self.refresh():
            # Both are warm from the start, so that the first new epoch is seen as soon as any.
            self._back.follow(self._journal)

    @property
    def location(self) -> str:
        return self._journal.store.url

    def start(self) -> None:
        """Follow the log from now on, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        self._thread.close(None)

    def __enter__(self) -> Lookups:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_following(self) -> bool:
        """Whether new epochs are taken in by themselves."""
        return self._thread.is_alive and self.failure is None

    @property
    def failure(self) -> str | None:
        """Why the log cannot be followed at present, if so.

        The front generation still answers, and every answer says how stale it is.
        """
        return self._thread.problem

    def _follow(self) -> float:
        self.refresh()
        return self._poll_seconds

    def refresh(self) -> Epoch:
        """Take in what has been committed since; returns the epoch that answers are from now."""
        # The thread that follows may be at it: two that swap would show the older one again.
        with self._following:
            return self._catch_up()

    def _catch_up(self) -> Epoch:
        while True:
            asked = clock.stopwatch()
            if not self._is_newer():
                if not self._is_left_behind(asked):
                    self._checked = asked
                    return self._front.epoch
                # There is no way from here to there.
                self._back = _Generation()
            self._back.wait_unread()
            try:
                self._back.follow(self._journal)
            except HistoryReplacedError:
                self._back = _Generation()
                continue
            except BaseException:
                # What is half-way is not shown, and starts over.
                self._back = _Generation()
                raise
            with self._swap:
                self._front, self._back = self._back, self._front
                self._checked = asked

    def _is_newer(self) -> bool:
        """Whether an epoch after the one in front is committed, or other epochs in its place."""
        journal, at = self._journal, self._front.epoch
        if not at:
            return journal.head() > 0
        # The newest epoch is always there: if this one is gone, there are others.
        return journal.has(at + 1) or not self._front.is_of(journal)

    def _is_left_behind(self, now: float) -> bool:
        """Whether the epochs after the one in front were collected, and that one is still there.

        A reader that stays at an epoch keeps it, and not those after it. To find out takes a look
        at all manifests, so it is done now and then.
        """
        if now - self._listed < LIST_SECONDS:
            return False
        self._listed = now
        return self._journal.head() > self._front.epoch

    def _enter(self) -> tuple[_Generation, Standing]:
        """The front generation, which stays as it is until it is left, and its standing."""
        with self._swap:
            generation, checked = self._front, self._checked
            generation.enter()
        stale = (clock.stopwatch() - checked) * 1000
        standing = Standing(generation.epoch, generation.committed_ms, round(stale, 1))
        return generation, standing

    def standing(self) -> Standing:
        generation, standing = self._enter()
        generation.leave()
        self._check(standing.epoch)
        return standing

    def _check(self, epoch: Epoch) -> None:
        if not epoch:
            raise no_epoch_yet(self.location)

    def operators(self) -> dict[str, OperatorTables]:
        """What can be looked up, by operator; for their types, not to look up in."""
        front = self._front
        self._check(front.epoch)
        return dict(front.operators)

    def operator(self, name: str) -> OperatorTables:
        front = self._front
        self._check(front.epoch)
        return self._tables(front, name)

    def look_up(
        self, operator: str, keys: dict[str, pa.Array], states: Sequence[str] | None = None
    ) -> Answer:
        """The state of some keys, all at one epoch.

        `keys` has a column for each key column. `states` chooses what is shown: values, and lists,
        maps and sets, whole; without it, all values.
        """
        generation, standing = self._enter()
        try:
            self._check(standing.epoch)
            tables = self._tables(generation, operator)
            rows, found = tables.find(tables.arrays(keys), states)
        finally:
            generation.leave()
        return Answer(standing, rows, found)

    def _tables(self, generation: _Generation, name: str) -> OperatorTables:
        tables = generation.operators.get(name)
        if tables is None:
            known = ", ".join(map(repr, sorted(generation.operators))) or "none"
            raise UnknownOperatorError(
                f"there is no operator {name!r}; {self.location} has {known} at epoch "
                f"{generation.epoch}."
            )
        return tables

    @property
    def heap_bytes(self) -> int:
        """Memory of both generations' indexes."""
        return self._front.heap_bytes + self._back.heap_bytes
