"""Committing an epoch: its times before it runs, its manifest after all shards have reported.

Invariant: state advances only by the manifest, and only after every shard of every operator has
reported. Everything before that can be repeated. An epoch without rows runs no shard: it records
who owns which key group while no batch comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from millrace.arrays import Float64Array
from millrace.epoch.report import Reports, ShardReport
from millrace.errors import EpochFailedError
from millrace.ids import Epoch, OperatorName, Shard, TableName, table_name
from millrace.keygroups import Assignment
from millrace.log import Journal, OperatorCommit, Trail
from millrace.operators import Moment, Operator
from millrace.operators.operator import MAIN


@dataclass(frozen=True)
class Watermark:
    """An operator's watermark in an epoch."""

    now_us: int | None
    before_us: int | None
    """In the epoch before."""


@dataclass(frozen=True)
class Times:
    """The times of an epoch: the same however often it runs."""

    version: Epoch
    """The version that the epoch reads."""
    processing_us: int
    watermark_us: int | None
    """Of the sources: Spark's own."""
    late_us: int | None
    """The watermark of the previous epoch: Spark's stateful operators compare late rows with it."""
    checksum: str = ""
    """That of the version's manifest, which tells it from one of the same number that was lost."""
    since_us: int = 0
    """The processing time of the previous epoch."""
    watermarks: Mapping[OperatorName, Watermark] = field(default_factory=dict)
    """Of operators; one that is not here has that of the sources."""

    @staticmethod
    def after(
        trail: Trail,
        processing_us: int,
        watermark_us: int | None,
        watermarks: Mapping[OperatorName, int | None] | None = None,
    ) -> Times:
        """The times of the epoch after `trail`. A watermark never falls."""
        before = trail.watermark_ms
        since_us = trail.processing_ms * 1000
        return Times(
            trail.epoch,
            # Where a clock was set back, time stands still: what has expired stays expired.
            max(processing_us, since_us),
            watermark_us,
            None if before is None else before * 1000,
            trail.checksum,
            since_us,
            {
                name: _advanced(trail.watermark_us(name), now_us)
                for name, now_us in (watermarks or {}).items()
            },
        )

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.version + 1)

    @property
    def watermark_ms(self) -> int | None:
        return None if self.watermark_us is None else self.watermark_us // 1000

    def watermark(self, operator: OperatorName | None) -> Watermark:
        """The watermark of an operator."""
        sources = Watermark(self.watermark_us, self.late_us)
        return sources if operator is None else self.watermarks.get(operator, sources)

    def moment(self, assignment: Assignment, operator: OperatorName | None = None) -> Moment:
        """What an operator's shards are given; without a name, one right after the sources."""
        watermark = self.watermark(operator)
        return Moment(
            self.epoch,
            self.processing_us,
            watermark.now_us,
            watermark.before_us,
            assignment,
            self.checksum,
            self.since_us,
        )


def _advanced(before_us: int | None, now_us: int | None) -> Watermark:
    known = [us for us in (before_us, now_us) if us is not None]
    return Watermark(max(known, default=None), before_us)


def collect_reports(
    epoch: Epoch, assignments: Mapping[OperatorName, Assignment], reports: Iterable[ShardReport]
) -> Reports:
    """One report per operator and shard; of a shard that ran twice, either will do."""
    found: dict[OperatorName, dict[Shard, ShardReport]] = {name: {} for name in assignments}
    for report in reports:
        if report.epoch == epoch:
            found[report.operator][report.shard] = report
    for name, shards in found.items():
        missing = set(range(assignments[name].shards)) - set(shards)
        if missing:
            raise EpochFailedError(
                f"epoch {epoch}: shards {sorted(missing)} of operator {name!r} did not report, so "
                "the epoch was not committed. Start the query again: it repeats the batch."
            )
    return found


@dataclass(frozen=True)
class Commit:
    """What the driver adds to the shards' reports."""

    run: str
    batch_id: int | None
    full: bool
    """Whether the manifest repeats all that is live, as the first one of a run does."""
    figures: dict[str, Any] | None = None
    time_ms: int | None = None
    """When it was committed; None for now."""
    unmet_parallelism: Mapping[OperatorName, int] = field(default_factory=dict)
    """The shards that operators should have but lack executors for."""
    offsets: str | None = None
    """What the batch has read, if Spark writes that down only after the commit."""


def commit_epoch(
    journal: Journal,
    trail: Trail,
    times: Times,
    operators: Sequence[Operator],
    assignments: Mapping[OperatorName, Assignment],
    reports: Reports,
    commit: Commit,
) -> None:
    """Write the manifest of an epoch, and advance `trail` to it."""
    full = commit.full or journal.is_full_due(trail)
    journal.commit(
        trail,
        run=commit.run,
        batch_id=commit.batch_id,
        watermark_ms=times.watermark_ms,
        operators=_table_commits(trail, operators, assignments, reports),
        specs={operator.name: operator.spec() for operator in operators} if full else {},
        full=full,
        figures=commit.figures,
        time_ms=commit.time_ms,
        processing_ms=times.processing_us // 1000,
        unmet_parallelism=dict(commit.unmet_parallelism),
        offsets=commit.offsets,
        watermarks={
            name: watermark.now_us
            for name, watermark in times.watermarks.items()
            if watermark.now_us is not None
        },
    )


def commit_without_rows(
    journal: Journal,
    trail: Trail,
    operators: Sequence[Operator],
    assignments: Mapping[OperatorName, Assignment],
    commit: Commit,
) -> None:
    """Write the manifest of an epoch that has no batch, and advance `trail` to it.

    No shard runs, and time stands still: state is what it was. What is new are the assignments.
    """
    watermark_ms = trail.watermark_ms
    times = Times.after(
        trail,
        trail.processing_ms * 1000,
        None if watermark_ms is None else watermark_ms * 1000,
        trail.watermarks,
    )
    reports: Reports = {name: {} for name in assignments}
    # The last batch stays the last one that was run.
    same_batch = replace(commit, batch_id=trail.batch_id, offsets=trail.offsets)
    commit_epoch(journal, trail, times, operators, assignments, reports, same_batch)


def _table_commits(
    trail: Trail,
    operators: Sequence[Operator],
    assignments: Mapping[OperatorName, Assignment],
    reports: Reports,
) -> dict[TableName, OperatorCommit]:
    """What the epoch did to every table that it changed, and to every main table."""
    commits: dict[TableName, OperatorCommit] = {}
    for operator in operators:
        shards = [reports[operator.name][s] for s in sorted(reports[operator.name])]
        for table in operator.tables:
            written = [r.tables[table] for r in shards if table in r.tables]
            evicted = sum(r.evicted_rows.get(table, 0) for r in shards)
            if written or evicted or table == MAIN:
                name = table_name(operator.name, table)
                grown = sum(w.added_rows - w.removed_rows for w in written) - evicted
                commits[name] = OperatorCommit(
                    assignments[operator.name],
                    tuple(w.segment for w in written),
                    trail.operator(name).rows + grown,
                )
    return commits


def figures_of(seconds: float, reports: Reports) -> dict[str, Any]:
    """What a manifest says of its epoch for people who watch, from anywhere."""
    return {
        "seconds": round(seconds, 4),
        "inputRows": {
            name: sum(r.input_rows for r in shards.values()) for name, shards in reports.items()
        },
        "lateRows": _counted(reports, "late"),
        "evictedRows": _counted(reports, "evicted", "expired"),
    }


def _counted(reports: Reports, *counters: str) -> dict[OperatorName, int]:
    """The sum of some counters of each operator; operators with none are left out."""
    sums = {
        name: sum(r.counters.get(counter, 0) for r in shards.values() for counter in counters)
        for name, shards in reports.items()
    }
    return {name: count for name, count in sums.items() if count}


def group_loads(reports: Reports, key_groups: int) -> dict[OperatorName, Float64Array]:
    """The work of each key group of each operator: rows that came, and rows of state it changed."""
    loads = {}
    for name, shards in reports.items():
        rows = loads[name] = np.zeros(key_groups)
        for report in shards.values():
            for counts in (report.group_rows, report.arrived_rows):
                for group, count in counts.items():
                    rows[group] += count
    return loads
