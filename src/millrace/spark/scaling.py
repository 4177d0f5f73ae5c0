"""What autoscaling sees of a query on Spark: an epoch's reports, and what Spark says of its batch.

Spark publishes a batch's figures just after the epoch, and asking for them takes milliseconds. So a
thread of its own does that, beside the epochs, and hands observations to the autoscaler in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace import clock
from millrace.epoch.report import Reports, ShardReport
from millrace.errors import MillraceError
from millrace.reconfigure.autoscale.observing import (
    HotGroup,
    Observation,
    OperatorLoad,
    ShardLoad,
    hottest,
)
from millrace.reconfigure.autoscale.scaler import Autoscaler
from millrace.reconfigure.director import Director
from millrace.repeating import UNTIL_WOKEN, Repeating
from millrace.spark.lag import source_lags
from millrace.spark.source_limits import SourceLimits

PUBLISHED = 30
"""Batches of Spark's whose figures are kept, to tell how long rows have been waiting."""
BETWEEN = 2.0
"""Seconds that Spark takes between two epochs, at most."""
ATTEMPTS = 10
POLL_SECONDS = 0.05
WAITING = 100
"""Epochs that may wait to be looked at; beyond that, the oldest are left out."""

_log = logging.getLogger("millrace")

Progress = Mapping[str, Any]


@dataclass(frozen=True)
class EndedEpoch:
    """What an epoch leaves to be looked at."""

    epoch: int
    batch_id: int
    at: float
    seconds: float
    began: float
    """On the stopwatch."""
    reports: Reports
    state_bytes: int


class ScalingThread:
    """Turns epochs into observations for an autoscaler."""

    def __init__(
        self,
        scaler: Autoscaler,
        director: Director,
        last_progress: Callable[[], Progress | None],
        trigger: float,
        limits: SourceLimits,
    ) -> None:
        self.scaler = scaler
        self._director = director
        self._last_progress = last_progress
        self._trigger = trigger
        self._limits = limits
        self._ended: deque[EndedEpoch] = deque(maxlen=WAITING)
        self._published: deque[Progress] = deque(maxlen=PUBLISHED)
        self._before: EndedEpoch | None = None
        self.thread = Repeating("autoscale", self._step)

    def after_epoch(self, ended: EndedEpoch) -> None:
        """Take note of an epoch; costs it nothing."""
        self._ended.append(ended)
        self.thread.wake()

    def close(self) -> None:
        """End, and write what was seen to the location."""
        self.thread.close()
        try:
            self.scaler.write()
        except MillraceError as error:
            # A query that stops because its store is out of reach stops all the same.
            _log.warning("what autoscaling has seen could not be written: %s", error)

    def _step(self) -> float:
        while self._ended:
            ended = self._ended.popleft()
            before, self._before = self._before, ended
            if before is None:
                # Nobody knows in which time its rows came.
                continue
            progress = self._progress_of(ended.batch_id)
            self.scaler.observe(self._observation(ended, self._interval(before, ended), progress))
        return UNTIL_WOKEN

    def _interval(self, before: EndedEpoch, ended: EndedEpoch) -> float:
        """The time in which an epoch's rows came: since the one before it began.

        If that is long ago, the stream was idle in between, and the rows have just come.
        """
        usual = max(self._trigger, before.seconds) + max(BETWEEN, before.seconds)
        return min(ended.began - before.began, usual)

    def _progress_of(self, batch_id: int) -> Progress | None:
        """What Spark has published about a batch; None if it does not in time."""
        for _ in range(ATTEMPTS):
            progress = self._last_progress()
            if progress is not None and progress["batchId"] >= batch_id:
                if progress["batchId"] > batch_id:
                    return None
                self._published.append(progress)
                return progress
            clock.sleep(POLL_SECONDS)
        return None

    def _observation(
        self, ended: EndedEpoch, interval: float, progress: Progress | None
    ) -> Observation:
        operators = tuple(
            operator_load(name, [shards[shard] for shard in sorted(shards)])
            for name, shards in sorted(ended.reports.items())
        )
        executors = self._director.executors()
        rows = max((load.rows for load in operators), default=0)
        lags = []
        if progress is not None:
            # A heartbeat is a source too, which does not number its rows.
            lags = source_lags(list(self._published), len(progress["sources"]))
        # Without the rows of a source that does not tell, it is what waits at least.
        behind = [lag["rows_behind"] for lag in lags if lag["rows_behind"] is not None]
        waited = [lag["seconds_behind"] for lag in lags if lag["seconds_behind"] is not None]
        return Observation(
            epoch=ended.epoch,
            at=ended.at,
            seconds=ended.seconds,
            interval=interval,
            rows=rows if progress is None else int(progress["numInputRows"]),
            operators=operators,
            trigger=self._trigger,
            backlog=sum(behind) if behind else None,
            behind=max(waited) if waited else None,
            full=progress is not None and self._limits.is_full(progress),
            executors=len(executors),
            cores=sum(executor.cores for executor in executors),
            state_bytes=ended.state_bytes,
        )


def operator_load(name: str, reports: list[ShardReport]) -> OperatorLoad:
    """One operator in one epoch, from the reports of its shards."""
    work: dict[int, float] = {}
    for report in reports:
        for counts in (report.arrived_rows, report.group_rows):
            for group, count in counts.items():
                work[group] = work.get(group, 0.0) + count
    arrived = sum(sum(report.arrived_rows.values()) for report in reports)
    keys = {report.hot_key.group: (report.hot_key, report) for report in reports if report.hot_key}
    hot = []
    for group, share in hottest(work):
        key, of_rows = "", 0.0
        if group in keys:
            found, report = keys[group]
            key = found.key
            of_rows = found.share * report.arrived_rows.get(group, 0) / max(1, arrived)
        hot.append(HotGroup(group, round(share, 4), key, round(of_rows, 4)))
    return OperatorLoad(
        name,
        tuple(
            ShardLoad(
                report.input_rows,
                sum(report.seconds.values()),
                report.executor,
                report.processor_seconds,
            )
            for report in reports
        ),
        tuple(hot),
    )
