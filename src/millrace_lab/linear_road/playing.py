"""Traffic as a query sees it: files that appear at their time, and answers with the time they came.

The files of a run are made before it. A tick's file is linked into the query's inbox when its last
second is over by the road's clock, which may run faster than ours. So when a report arrives does
not depend on how the query keeps up, and the response time of an answer is from then to the moment
at which its epoch hands it out.

Invariant: a batch that is repeated after a failure replaces its answers, as an exactly-once sink
does, and counts with the time of its last attempt.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.arrays import Float64Array, Int64Array
from millrace_lab.linear_road import answers
from millrace_lab.linear_road.generator import HISTORY_SCHEMA, SCHEMA, Tick
from millrace_lab.linear_road.program import program


@dataclass
class Answered:
    """The answers of a run, by batch."""

    tables: dict[int, tuple[float, pa.Table]] = field(default_factory=dict)

    def keep(self, df: DataFrame, batch_id: int) -> None:
        """The sink."""
        table = df.toArrow()
        self.tables[batch_id] = time.time(), table

    def rows(self) -> Int64Array:
        """All answers, in order of all columns."""
        return answers.of_tables(table for _, table in self.tables.values())

    def batches(self) -> list[tuple[float, Int64Array, Int64Array]]:
        """Of each batch with answers: when it came, and the types and times of its answers."""
        return [
            (emitted, *(table.column(name).to_numpy() for name in ("type", "time")))
            for _, (emitted, table) in sorted(self.tables.items())
            if table.num_rows
        ]


@dataclass(frozen=True)
class Pace:
    """How the road's clock runs against ours."""

    began: float
    """When the first second of the traffic began, in seconds since 1970."""
    begin: int
    """The first second of the traffic."""
    tick: int
    speed: float
    """Seconds of the road in one of ours."""

    def due(self, end: int) -> float:
        """When a tick is shown whose last second is over."""
        return self.began + (end - self.begin) / self.speed

    def arrived(self, times: Int64Array) -> Float64Array:
        """When rows of some seconds were shown."""
        ends = (times.astype(np.int64) - self.begin) // self.tick * self.tick + self.tick
        arrived: Float64Array = self.began + ends.astype(np.float64) / self.speed
        return arrived


class Inbox:
    """A folder that a query reads, and the ticks that are shown in it."""

    def __init__(self, folder: Path, ticks: Sequence[Tick]) -> None:
        self.folder = folder
        self._ticks = list(ticks)
        self._shown = 0
        folder.mkdir(parents=True)

    @property
    def left(self) -> int:
        """Ticks that are not shown yet."""
        return len(self._ticks) - self._shown

    @property
    def next(self) -> Tick:
        return self._ticks[self._shown]

    def show(self, number: int = 1) -> None:
        """Show the next ticks."""
        for tick in self._ticks[self._shown : self._shown + number]:
            # Whole files only: a link is there or not.
            os.link(tick.path, self.folder / tick.path.name)
            self._shown += 1


class Player:
    """Shows the ticks of an inbox at their time, in a thread of its own."""

    def __init__(self, inbox: Inbox, pace: Pace) -> None:
        self._inbox = inbox
        self._pace = pace
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._play, name="linear-road-player", daemon=True)
        self._thread.start()

    def _play(self) -> None:
        while self._inbox.left and not self._closed.is_set():
            wait = self._pace.due(self._inbox.next.end) - time.time()
            if wait > 0 and self._closed.wait(wait):
                return
            self._inbox.show()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def stream(spark: SparkSession, inbox: Path, history: Path) -> mr.Stream:
    """The program over the files of an inbox."""
    rows = spark.readStream.schema(SCHEMA).parquet(str(inbox))
    return program(rows, spark.readStream.schema(HISTORY_SCHEMA).parquet(str(history)))
