"""The past according to the manifests: a point per epoch, marks, and owners of key groups.

Pure: manifests in, figures out. A location read from anywhere gives the same history as the query's
own process; what only that process knows, such as the rows of its sources, is added by `Watch`.

Known rough edge: an executor counts as lost when its key groups moved without a request, so the
loss of an executor without key groups does not show here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.ids import OperatorName, parse_table_name, table_name
from millrace.keygroups import Assignment
from millrace.log import Trail
from millrace.log.manifest import Manifest
from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.requests import Answer, Request
from millrace.ui.histogram import Histogram

KEPT_POINTS = 3600
KEPT_MARKS = 1000
"""Starts of the query, and losses of executors."""
KEPT_ASSIGNMENTS = 400
"""Changes of an operator's assignment; a move in many steps has one per step."""


@dataclass(frozen=True)
class Point:
    """One committed epoch."""

    epoch: int
    time_ms: int
    took_ms: float | None
    """From the batch's begin to its commit; None if nothing says so."""
    rows: int | None
    """Rows that came: of the sources where that is known, else those that reached the shards."""
    changed: int
    """Rows of state that the epoch changed."""
    written: int
    state_rows: int
    state_bytes: int
    watermark_ms: int | None
    shards: int
    executors: int


@dataclass(frozen=True)
class Mark:
    """Something to see on the time line."""

    kind: str
    """start, rescale, move, drain, undrain, autoscale, recovery, lost, joined, failed, note"""
    time_ms: int
    title: str
    detail: str = ""
    state: str = ""
    """How a request stands: waiting, done, refused, superseded, cancelled."""
    end_ms: int | None = None
    epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True)
class OperatorNow:
    """An operator at the last epoch."""

    name: str
    kind: str
    rows: int
    bytes: int
    assignment: Assignment | None
    watermark_ms: int | None
    """The operator's own; None if the query has no event time."""


@dataclass(frozen=True)
class _Change:
    """Executors that lost all their key groups in one epoch."""

    epoch: int
    time_ms: int
    gone: tuple[str, ...]
    moved: int
    heirs: tuple[str, ...]


class History:
    """The epochs of one location that have been looked at."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=KEPT_POINTS)
        self.assignments: dict[OperatorName, deque[tuple[int, Assignment]]] = {}
        """Operator -> (the first epoch, the assignment from then on)."""
        self.seen: dict[str, int] = {}
        """Executors in the order in which they appeared, so that they keep their colours."""
        self.written = 0
        self.rows = 0
        self.epochs = 0
        self.late: Counter[str] = Counter()
        """Operator -> rows that were late."""
        self.evicted: Counter[str] = Counter()
        """Operator -> rows of state that time has passed."""
        self.took = Histogram()
        """How long epochs took, by their manifests."""
        self.latency = Histogram()
        """From the begin of the epoch before to the commit, in one run of the query."""
        self._began_ms: float | None = None
        self._starts: deque[Mark] = deque(maxlen=KEPT_MARKS)
        self._changes: deque[_Change] = deque(maxlen=KEPT_MARKS)
        self._run = ""

    def add(self, manifest: Manifest, trail: Trail) -> None:
        """Take note of an epoch; the trail is at that epoch."""
        if self._run != manifest.run:
            title = "query started" if manifest.epoch == 1 else "query started again"
            if self._run or manifest.epoch == 1:
                mark = Mark("start", manifest.time_ms, title, epoch=manifest.epoch)
                self._starts.append(mark)
            self._began_ms = None
        self._note_assignments(manifest, restarted=self._run != manifest.run)
        self._run = manifest.run
        point = _point(manifest, trail)
        self._count(point)
        self.points.append(point)
        self.written += point.written
        self.rows += point.rows or 0
        self.epochs += 1
        figures: Mapping[str, Any] = manifest.figures or {}
        self.late.update(figures.get("lateRows", {}))
        self.evicted.update(figures.get("evictedRows", {}))

    def _count(self, point: Point) -> None:
        """Add an epoch to the histograms; one without rows says nothing about rows."""
        if point.took_ms is None or not point.rows:
            return
        self.took.add(point.took_ms / 1000)
        if self._began_ms is not None:
            self.latency.add(max(0.0, point.time_ms - self._began_ms) / 1000)
        self._began_ms = point.time_ms - point.took_ms

    def know_better(self, epoch: int, *, rows: int | None, took_ms: float | None) -> None:
        """Replace an epoch's figures by what the query's own process measured."""
        for at in range(len(self.points) - 1, -1, -1):
            point = self.points[at]
            if point.epoch == epoch:
                better = replace(
                    point,
                    rows=point.rows if rows is None else rows,
                    took_ms=point.took_ms if took_ms is None else took_ms,
                )
                self.rows += (better.rows or 0) - (point.rows or 0)
                self.points[at] = better
            if point.epoch <= epoch:
                return

    def note_executors(self, names: Iterable[str]) -> None:
        for name in names:
            if name:
                self.seen.setdefault(name, len(self.seen))

    def marks(
        self, requests: Sequence[tuple[Request, Answer | None]], not_lost: Iterable[str] = ()
    ) -> list[Mark]:
        """Starts, requests and losses, oldest first; without those of which more is known."""
        asked = [mark_of(request, answer) for request, answer in requests]
        spans = [_span(answer) for _, answer in requests]
        known = set(not_lost)
        lost = []
        # A copy: another thread may be adding to it.
        for change in list(self._changes):
            if any(first <= change.epoch <= last for first, last in spans):
                continue
            for name in change.gone:
                if name not in known:
                    lost.append(_lost(name, change))
        return sorted([*self._starts, *asked, *lost], key=lambda mark: mark.time_ms)

    def _note_assignments(self, manifest: Manifest, *, restarted: bool) -> None:
        for name, commit in manifest.operators.items():
            operator, table = parse_table_name(name)
            if table:
                # It has the assignment of its operator's main table.
                continue
            past = self.assignments.setdefault(operator, deque(maxlen=KEPT_ASSIGNMENTS))
            if past and past[-1][1] == commit.assignment:
                continue
            self.note_executors(commit.assignment.executors)
            if past and not restarted:
                self._note_change(manifest, past[-1][1], commit.assignment)
            past.append((manifest.epoch, commit.assignment))

    def _note_change(self, manifest: Manifest, before: Assignment, after: Assignment) -> None:
        gone = {e for e in before.executors if e} - set(after.executors)
        known = {name for c in self._changes if c.epoch == manifest.epoch for name in c.gone}
        if gone - known:
            groups = [
                g for g, shard in enumerate(before.owners) if before.executor_of(shard) in gone
            ]
            heirs = {after.executor_of(after.owners[g]) for g in groups}
            self._changes.append(
                _Change(
                    manifest.epoch,
                    manifest.time_ms,
                    tuple(sorted(gone - known)),
                    len(groups),
                    tuple(sorted(heirs - {""})),
                )
            )


def operators_now(trail: Trail) -> list[OperatorNow]:
    """The operators of a trail, with the size of all their tables."""
    sizes: dict[str, int] = {}
    for table, log in trail.operators.items():
        operator, _ = parse_table_name(table)
        written = sum(entry.bytes for entry in log.segments().values())
        sizes[operator] = sizes.get(operator, 0) + written
    found = []
    for name, spec in sorted(trail.specs.items()):
        log = trail.operator(table_name(name))
        kind = str(spec.get("kind", ""))
        watermark_us = trail.watermark_us(name)
        found.append(
            OperatorNow(
                name,
                kind,
                log.rows,
                sizes.get(name, 0),
                log.assignment,
                None if watermark_us is None else watermark_us // 1000,
            )
        )
    return found


def mark_of(request: Request, answer: Answer | None) -> Mark:
    """A request on the time line, with what it did if it is done."""
    details = request.details
    title = {
        "rescale": f"rescale to {_wanted(details.get('parallelism'))}",
        "move": f"move to {details.get('to')}",
        "drain": f"drain {details.get('executor')}",
        "undrain": f"undrain {details.get('executor')}",
        "autoscale": f"autoscaling {details.get('switch')}",
    }.get(request.kind, request.kind)
    strategy = str(details.get("strategy", ""))
    # Why autoscaling asked for it.
    why = f": {details['reason']}" if isinstance(details.get("reason"), str) else ""
    if answer is None:
        under_way = f"{strategy}, under way{why}"
        return Mark(request.kind, request.created_ms, title, under_way, "waiting")
    if answer.state != "done":
        return Mark(request.kind, request.created_ms, title, answer.reason, answer.state)
    report = answer.report
    shards = set(map(tuple, report.get("shards", {}).values()))
    if request.kind == "rescale" and len(shards) == 1:
        old, new = next(iter(shards))
        title = f"rescale {old} \u2192 {new}"
    seconds = float(report.get("seconds", 0))
    detail = (
        f"{strategy}: {report.get('key_groups', 0)} key groups, "
        f"{report.get('bytes', 0) / 1e6:.1f} MB, {report.get('epochs', 0)} epochs, "
        f"{seconds:.1f} s{why}"
    )
    end = request.created_ms + round(seconds * 1000)
    return Mark(
        request.kind, request.created_ms, title, detail, "done", end, report.get("first_epoch")
    )


def _wanted(parallelism: object) -> str:
    """The shards that a rescale asks for, of all operators or of some."""
    if isinstance(parallelism, Mapping):
        return ", ".join(f"{shards} ({name})" for name, shards in parallelism.items())
    return str(parallelism)


def decision_mark(decision: Decision) -> Mark:
    """A decision of autoscaling that no request shows, on the time line."""
    title = "no executors to be had" if decision.blocked else "autoscaling"
    if not decision.blocked and decision.acts:
        title = f"would {decision.action} to {_wanted(decision.parallelism)}"
    detail = "; ".join([decision.reason, *decision.advice])
    at = round(decision.at * 1000)
    return Mark("autoscale", at, title, detail, epoch=decision.epoch)


def _span(answer: Answer | None) -> tuple[float, float]:
    """The epochs during which a request changed assignments."""
    if answer is None:
        return 0, float("inf")
    first, last = answer.report.get("first_epoch"), answer.report.get("last_epoch")
    return (0, -1) if first is None or last is None else (first, last)


def _lost(name: str, change: _Change) -> Mark:
    heirs = ", ".join(change.heirs) or "others"
    detail = f"{change.moved} key groups went to {heirs}"
    return Mark("lost", change.time_ms, f"{name} lost", detail, epoch=change.epoch)


def _point(manifest: Manifest, trail: Trail) -> Point:
    figures: Mapping[str, Any] = manifest.figures or {}
    seconds = figures.get("seconds")
    incoming = figures.get("inputRows")
    main = [commit for name, commit in manifest.operators.items() if "/" not in name]
    segments = [s for commit in manifest.operators.values() for s in commit.segments]
    operators = operators_now(trail)
    busy = {e for commit in main for e in commit.assignment.executors if e}
    return Point(
        epoch=manifest.epoch,
        time_ms=manifest.time_ms,
        took_ms=None if seconds is None else round(seconds * 1000, 1),
        rows=None if not incoming else max(incoming.values()),
        changed=sum(
            section.rows
            for commit in main
            for segment in commit.segments
            for section in segment.sections
            if section.last == manifest.epoch
        ),
        written=sum(segment.bytes for segment in segments),
        state_rows=sum(operator.rows for operator in operators),
        state_bytes=sum(operator.bytes for operator in operators),
        watermark_ms=manifest.watermark_ms,
        shards=max((commit.assignment.shards for commit in main), default=0),
        executors=len(busy),
    )
