"""Follow a location: read each new manifest once, and the requests made to the query.

Works on a location whose query runs in this process, in another one, or not at all; it writes
nothing. `refresh` may be called from any thread, and returns at once while another runs it.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from millrace import clock
from millrace.errors import BrokenChainError, MillraceError, MissingFileError
from millrace.ids import Epoch
from millrace.log import Journal, Trail, open_store
from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.autoscale.recording import Records
from millrace.reconfigure.autoscale.scaler import Scaling
from millrace.reconfigure.requests import Answer, Request, Requests
from millrace.ui.histogram import Histogram
from millrace.ui.history import (
    KEPT_MARKS,
    KEPT_POINTS,
    History,
    Mark,
    OperatorNow,
    Point,
    decision_mark,
    operators_now,
)

REQUESTS_EVERY = 2.0
"""Seconds between looks at the requests, which need a listing."""

COLUMNS = tuple(Point.__dataclass_fields__)


@dataclass(frozen=True)
class SourceLag:
    """How far a query is behind a source; None where the source does not tell."""

    source: str
    rows_behind: int | None
    """Rows that it had when its last batch was planned, and the batch left."""
    seconds_behind: float | None
    """For how long they have been waiting, at most."""


@dataclass(frozen=True)
class QueryStatus:
    """What the query's own process knows at a moment."""

    state: str
    """running, stopped or failed"""
    error: str = ""
    executors: tuple[str, ...] = ()
    figures: Mapping[int, tuple[int | None, float | None]] = field(default_factory=dict)
    """Epoch -> rows its sources gave, and milliseconds from trigger to commit."""
    sources: tuple[SourceLag, ...] = ()
    shard_seconds: Mapping[str, Histogram] = field(default_factory=dict)
    """Operator -> how long its slowest shard took in epochs."""
    scaling: Scaling | None = None
    """Autoscaling, if the query was started with it."""


class Source(Protocol):
    """A query in this process."""

    def status(self) -> QueryStatus: ...


class Watch:
    """One location, up to the last manifest that was read."""

    def __init__(self, location: str, source: Source | None = None) -> None:
        self.location = location
        self.journal = Journal.open(open_store(location))
        self.history = History()
        self._source = source
        self._live: QueryStatus | None = None
        self._requests = Requests(self.journal.store)
        self._answered: dict[str, tuple[Request, Answer]] = {}
        self._asked: list[tuple[Request, Answer | None]] = []
        self._asked_at = -REQUESTS_EVERY
        self._records = Records(self.journal.store)
        self._decided: dict[str, Decision] = {}
        self.decided: Counter[str] = Counter()
        """How often autoscaling decided what; also what is forgotten by now."""
        self.move_seconds: dict[str, Histogram] = {}
        """Kind of request -> how long those took that are done."""
        self._trail: Trail | None = None
        self._operators: list[OperatorNow] = []
        self._notes: deque[Mark] = deque(maxlen=KEPT_MARKS)
        self._lock = threading.Lock()
        self.problem = ""
        """Why the last refresh failed; empty if it did not."""

    def refresh(self) -> None:
        """Read what is new. A failure is shown on the page, and the next call tries again."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._read_all()
            self.problem = ""
        except Exception as error:
            self.problem = str(error) or repr(error)
        finally:
            self._lock.release()

    def note(self, kind: str, title: str, detail: str = "") -> None:
        """Put a mark of your own on the time line."""
        self._notes.append(Mark(kind, clock.now_ms(), title, detail))

    def _read_all(self) -> None:
        self._follow()
        if self._source is not None:
            self._take(self._source.status())
        now = clock.stopwatch()
        if now - self._asked_at >= REQUESTS_EVERY:
            self._asked = self._read_requests()
            self._decided = self._read_decisions()
            self._asked_at = now

    def _follow(self) -> None:
        if self._trail is not None and not self._read_on(self._trail):
            if not self.journal.holds(self._trail):
                # The location was restored from a backup and has other epochs of these numbers, or
                # this one is no longer retained: what is shown starts over.
                self.history = History()
                self._trail = None
            elif (head := self.journal.head()) > self._trail.epoch:
                # It advanced so fast that the next epoch is no longer retained.
                self._begin(head)
        if self._trail is None:
            epochs = self.journal.epochs()
            if not epochs:
                return
            self._read_on(self._begin(epochs[max(0, len(epochs) - KEPT_POINTS)]))
        assert self._trail is not None
        self._operators = operators_now(self._trail)

    def _read_on(self, trail: Trail) -> bool:
        """Read the manifests after a trail's; whether there were any."""
        before = trail.epoch
        while True:
            try:
                manifest, checksum = self.journal.read(Epoch(trail.epoch + 1))
            except MissingFileError:
                break
            try:
                trail.advance(manifest, checksum)
            except BrokenChainError:
                if self.journal.holds(trail):
                    raise
                return False
            self.history.add(manifest, trail)
        return trail.epoch > before

    def _begin(self, epoch: Epoch) -> Trail:
        trail = self._trail = self.journal.trail(epoch)
        self.history.add(self.journal.read(epoch)[0], trail)
        return trail

    def _take(self, live: QueryStatus) -> None:
        before, self._live = self._live, live
        self.history.note_executors(live.executors)
        for epoch, (rows, took_ms) in live.figures.items():
            self.history.know_better(epoch, rows=rows, took_ms=took_ms)
        if before is None or before.state != "running":
            return
        if live.state == "running":
            for name in sorted(set(before.executors) - set(live.executors)):
                groups = sum(_groups_of(operator, name) for operator in self._operators)
                if groups:
                    self.note("lost", f"{name} lost", f"it had {groups} key groups")
                else:
                    self.note("left", f"{name} left", "it had no key groups")
            for name in sorted(set(live.executors) - set(before.executors)):
                self.note("joined", f"{name} joined")
        elif live.state == "failed":
            self.note("failed", "query failed", live.error)
        else:
            self.note("stop", "query stopped")

    def _read_requests(self) -> list[tuple[Request, Answer | None]]:
        found: list[tuple[Request, Answer | None]] = []
        ids = self._requests.ids()
        # Old ones are forgotten, here as in the location.
        self._answered = {id_: self._answered[id_] for id_ in ids if id_ in self._answered}
        for id_ in ids:
            known = self._answered.get(id_)
            if known is not None:
                found.append(known)
                continue
            try:
                request = self._requests.read(id_)
                answer = self._requests.answered(id_)
            except MillraceError:
                # One that cannot be read is refused by the query's driver, with the reason.
                continue
            if answer is not None:
                self._answered[id_] = (request, answer)
                if answer.state == "done" and "seconds" in answer.report:
                    took = self.move_seconds.setdefault(request.kind, Histogram())
                    took.add(float(answer.report["seconds"]))
            found.append((request, answer))
        return [(r, a) for r, a in found if r.kind != "cancel"]

    def _read_decisions(self) -> dict[str, Decision]:
        """The decisions of autoscaling by their files; a file never changes."""
        found: dict[str, Decision] = {}
        for path in self._records.decision_paths():
            decision = self._decided.get(path) or self._records.read_decision(path)
            if decision is not None:
                found[path] = decision
                self.decided[decision.action] += path not in self._decided
        return found

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of autoscaling, oldest first."""
        return list(self._decided.values())

    def marks(self) -> list[Mark]:
        """Everything on the time line, oldest first."""
        known = {
            m.title.rpartition(" ")[0] for m in list(self._notes) if m.kind in ("lost", "left")
        }
        alive = self._live.executors if self._live is not None else ()
        derived = self.history.marks(self._asked, known.union(alive))
        asked = {r.details.get("reason") for r, _ in self._asked}
        # Those that became requests are shown as such.
        decided = [decision_mark(d) for d in self.decisions if d.reason not in asked]
        return sorted([*derived, *self._notes, *decided], key=lambda mark: mark.time_ms)

    def snapshot(self, after: int = 0) -> dict[str, Any]:
        """Everything the page shows; of the epochs only those after `after`."""
        history, live = self.history, self._live
        points = list(history.points)
        new = itertools.dropwhile(lambda point: point.epoch <= after, points)
        running = live is not None and live.state == "running"
        alive = set(live.executors) if live is not None and running else None
        return {
            "location": self.location,
            "query": self.journal.identity.query,
            "keyGroups": self.journal.identity.key_groups,
            "now": clock.now_ms(),
            "state": "watched" if live is None else live.state,
            "error": (live.error if live is not None else "") or self.problem,
            "epoch": points[-1].epoch if points else 0,
            "sourceRows": live is not None,
            "sources": [asdict(source) for source in live.sources] if running and live else [],
            "columns": COLUMNS,
            "points": [[getattr(point, name) for name in COLUMNS] for point in new],
            "marks": [mark.to_json() for mark in self.marks()],
            "executors": [
                {"name": name, "alive": None if alive is None else name in alive}
                # Copies: another thread may be adding to these.
                for name in list(history.seen)
            ],
            "operators": [_described(operator, history) for operator in self._operators],
            "assignments": {
                name: _changes(list(past), after)
                for name, past in list(history.assignments.items())
            },
        }

    @property
    def operators(self) -> Sequence[OperatorNow]:
        return self._operators

    @property
    def live(self) -> QueryStatus | None:
        return self._live


def _groups_of(operator: OperatorNow, executor: str) -> int:
    assignment = operator.assignment
    if assignment is None:
        return 0
    return sum(assignment.executor_of(shard) == executor for shard in assignment.owners)


def _described(operator: OperatorNow, history: History) -> dict[str, Any]:
    shards = operator.assignment.shards if operator.assignment is not None else 0
    return {
        "name": operator.name,
        "kind": operator.kind,
        "rows": operator.rows,
        "bytes": operator.bytes,
        "shards": shards,
        "watermark_ms": operator.watermark_ms,
        "late": history.late[operator.name],
        "evicted": history.evicted[operator.name],
    }


def _changes(past: Sequence[tuple[int, Any]], after: int) -> list[dict[str, Any]]:
    return [{"epoch": epoch, **a.to_json()} for epoch, a in past if epoch > after]
