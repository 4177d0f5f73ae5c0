"""A mirror: brings a target from the epoch it shows to the newest of a location, again and again.

Invariant: before every step the target is asked what it shows, and the step starts from there. So
there is nothing to lose in this process: killed at any point, the next one continues, and if the
answer to the last commit was lost, the target's mark says whether it took place.

What a target shows must be in the location's history. If its query is another one, its epoch is
ahead of the log, or its epoch has another manifest, somebody changed the target or restored one of
the two from a backup; it is refused, until a `reset` replaces the rows.

The epoch that is shown is leased, so that the next step can be made from it. A mirror that is
behind goes to the newest epoch in one step.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace import clock, hooks
from millrace.errors import (
    ForeignMirrorError,
    HistoryReplacedError,
    MirrorHistoryError,
    MirrorUnreachableError,
    MissingFileError,
    StoreError,
    UnknownEpochError,
    UsageError,
)
from millrace.ids import Epoch, OperatorName
from millrace.log import Journal, open_store
from millrace.log.leases import Holder, acquire
from millrace.mirrors.contract import Mark, MirrorStep, Target
from millrace.mirrors.rows import MirroredTable
from millrace.mirrors.steps import copy, step_to
from millrace.mirrors.targets import open_target
from millrace.reading import Reader, open_location
from millrace.reading.snapshot import Snapshot
from millrace.repeating import MAX_RETRY_SECONDS, RETRY_SECONDS, first_line

POLL_SECONDS = 0.2
"""How often the log is asked for a new epoch."""
LIST_SECONDS = 5.0
"""How often all epochs are listed while no new one is found."""

_log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Behind:
    """How far a mirror is behind its location."""

    epochs: int
    """Committed epochs that it does not show."""
    seconds: float
    """How long ago the first of these was committed; 0 if there is none."""


@dataclass(frozen=True)
class Applied:
    """A step that was taken."""

    kind: str
    """`copy`, `changes` or `comparison`."""
    epoch: Epoch
    upserts: int
    deletes: int


class Mirror:
    """An operator's state in another store."""

    def __init__(
        self,
        location: str,
        target: str,
        operator: str | None = None,
        *,
        name: str | None = None,
        read_only: bool = False,
    ) -> None:
        self._journal = Journal.open(open_store(location))
        self.operator = self._operator(operator)
        self._reader: Reader | None = None
        self._held: Holder | None = None
        self._last: Mark | None = None
        self._asked = clock.stopwatch()
        self.applied: Applied | None = None
        """The last step that this process took."""
        self.problem: str | None = None
        """Why the last attempt to follow failed; None if it did not."""
        self._target: Target = open_target(target, name or self.operator, read_only=read_only)

    def _operator(self, operator: str | None) -> OperatorName:
        """The name of the operator; the only one there is, if none is given."""
        trail = self._journal.newest()
        if operator is None and not trail.epoch:
            raise UsageError(
                f"{self.location} has no committed epoch yet, so its operators are not known: name "
                "the operator to mirror."
            )
        if not trail.epoch:
            return OperatorName(str(operator))
        return Snapshot(self._journal, trail).description(operator).name

    @property
    def location(self) -> str:
        return self._journal.store.url

    @property
    def target(self) -> str:
        """Where the mirror is, without a password."""
        return self._target.title

    @property
    def epoch(self) -> Epoch:
        """The epoch that the target shows; 0 if it is empty."""
        mark = self._checked()
        return Epoch(0) if mark is None else mark.epoch

    @property
    def committed_at(self) -> dt.datetime | None:
        """When the epoch that the target shows was committed."""
        mark = self._checked()
        return None if mark is None else dt.datetime.fromtimestamp(mark.committed_ms / 1e3, dt.UTC)

    def behind(self) -> Behind:
        """How far the target is behind the location."""
        mark = self._checked()
        shown = Epoch(0) if mark is None else mark.epoch
        head = self._journal.head()
        if head <= shown:
            return Behind(0, 0.0)
        try:
            since = self._journal.read(Epoch(shown + 1))[0].time_ms
        except MissingFileError:
            # Collected: the oldest time that is known is that of the epoch shown, or the newest.
            since = mark.committed_ms if mark is not None else self._journal.read(head)[0].time_ms
        return Behind(head - shown, max(0, clock.now_ms() - since) / 1000)

    def catch_up(self) -> Epoch:
        """Bring the target to the newest epoch, in one step; returns the epoch that it shows."""
        return self._bring(reset=False)

    def reset(self) -> Epoch:
        """Replace all rows of the target, whatever epoch it shows, with those of the newest."""
        return self._bring(reset=True)

    def _bring(self, *, reset: bool) -> Epoch:
        self._asked = clock.stopwatch()
        shown = self._target.mark() if reset else self._checked()
        reader = self._newest()
        if reader is None:
            return Epoch(0)
        table = MirroredTable(reader.snapshot, self.operator)
        trail = reader.snapshot.trail
        after = Mark(
            self._journal.identity.query,
            self.operator,
            trail.epoch,
            trail.checksum,
            trail.time_ms,
            table.columns,
            len(table.keys),
        )
        if shown == after and not reset:
            self._last = after
            return after.epoch
        if reset:
            step = copy(after, table, shown)
        else:
            step = step_to(after, table, shown, lambda: self._earlier(reader, shown))
        self._take(step)
        return after.epoch

    def _take(self, step: MirrorStep) -> None:
        upserts, deletes = _Counted(step.upserts), _Counted(step.deletes)
        epoch = step.after.epoch
        hooks.reach(hooks.BEFORE_STEP, epoch)
        self._target.apply(replace(step, upserts=upserts, deletes=deletes))
        hooks.reach(hooks.AFTER_STEP, epoch)
        self._last = step.after
        self.applied = Applied(step.kind, epoch, upserts.rows, deletes.rows)
        self._hold(epoch)

    def _checked(self) -> Mark | None:
        """What the target shows; refused if it is not of the location's history."""
        mark = self._target.mark()
        if mark is None or mark == self._last:
            return mark
        if (mark.query, mark.operator) != (self._journal.identity.query, self.operator):
            raise ForeignMirrorError(
                f"{self.target} is a mirror of operator {mark.operator!r} of query {mark.query}, "
                f"not of {self.operator!r} of {self.location}, whose query is "
                f"{self._journal.identity.query}. Mirror under another name (--name), or into "
                "another database, or replace its rows (--reset)."
            )
        head = self._journal.head()
        if mark.epoch > head:
            raise self._unknown(mark, f"the last epoch of the location is {head}")
        try:
            _, checksum = self._journal.read(mark.epoch)
        except MissingFileError:
            return mark
        if checksum != mark.checksum:
            raise self._unknown(mark, f"the location's epoch {mark.epoch} is another one")
        return mark

    def _unknown(self, mark: Mark, why: str) -> MirrorHistoryError:
        return MirrorHistoryError(
            f"{self.target} shows epoch {mark.epoch}, which is not in the history of "
            f"{self.location}: {why}. The mirror was changed by hand, or the location was restored "
            "from a backup. Make sure that it is the right location, and replace the mirror's rows "
            "with --reset, or reset()."
        )

    def _newest(self) -> Reader | None:
        """A reader at the last committed epoch; None before the first."""
        if self._reader is None:
            if not self._journal.head():
                return None
            self._reader = open_location(self.location)
            return self._reader
        try:
            self._reader.refresh()
        except HistoryReplacedError:
            self._reader.close()
            self._reader, self._last = None, None
            # The target shows an epoch of the lost history: this says so.
            self._checked()
            return self._newest()
        return self._reader

    def _earlier(self, reader: Reader, shown: Mark | None) -> MirroredTable | None:
        """The table at the epoch that is shown; None if it is not retained."""
        if shown is None:
            return None
        self._hold(shown.epoch)
        try:
            trail = self._journal.trail(shown.epoch)
        except UnknownEpochError:
            return None
        if trail.checksum != shown.checksum:
            return None
        return MirroredTable(Snapshot(self._journal, trail), self.operator)

    def _hold(self, epoch: Epoch) -> None:
        """Keep an epoch from being collected, so that the next step can be made from it."""
        if self._held is None:
            self._held = acquire(self._journal.store, epoch)
        else:
            self._held.hold(epoch)

    def follow(
        self, *, poll_seconds: float = POLL_SECONDS, stop: threading.Event | None = None
    ) -> Epoch:
        """Take every new epoch in, until `stop` is set; returns the epoch that is shown then.

        While the location or the target cannot be reached, it tries again with growing pauses.
        """
        stopped = stop or threading.Event()
        failures = 0
        while not stopped.is_set():
            try:
                if self._is_due():
                    self.catch_up()
                failures, self.problem, pause = 0, None, poll_seconds
            except (StoreError, MirrorUnreachableError) as error:
                pause = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(failures, 10))
                failures += 1
                self.problem = first_line(error)
                _log.warning("mirror: %s; trying again in %g s", self.problem, pause)
            stopped.wait(pause)
        return Epoch(0) if self._last is None else self._last.epoch

    def _is_due(self) -> bool:
        """Whether there may be something to do: a next epoch, or a look at all of them is due."""
        if self._last is None or self.problem is not None:
            return True
        if clock.stopwatch() - self._asked >= LIST_SECONDS:
            return True
        return self._journal.has(self._last.epoch + 1)

    def close(self) -> None:
        """Release the target and the epoch. The rows stay."""
        self._target.close()
        if self._reader is not None:
            self._reader.close()
        if self._held is not None:
            self._held.release()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mirror of {self.operator!r} of {self.location} in {self.target}>"


class _Counted:
    """Batches that are counted as they are taken."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def mirror(
    location: str,
    target: str,
    *,
    operator: str | None = None,
    name: str | None = None,
) -> Mirror:
    """A mirror of an operator's state in another store: Redis, PostgreSQL or RocksDB.

    `target` is `redis://HOST`, `postgresql://HOST/DATABASE` or `rocksdb:PATH`. The operator may be
    left out if there is only one. `name` is that of the table or the hash; default: the operator's.
    """
    return Mirror(location, target, operator, name=name)
