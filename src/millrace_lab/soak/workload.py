"""The query of a soak: aggregates, every kind of keyed state, timers, TTL, a chain, several sinks.

    rows -> totals (aggregate) -------------------------------------> files
         -> visits (processor: value, set, list, map, timers, TTL) -> function, by batch id
                 -> closed (side output) ---------------------------> function, by batch id
                          -> windows (aggregate) -----------------> (state only)
         -> names (aggregate by text) ----------------------------> (state only)
         -> windows, sessions, a join and deduplication: `timed`

Every row is a function of its number, and a batch is `ROWS` numbers in a row, so any number of
batches can be computed again at once. A tenth of the rows repeat an id of three batches before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millrace as mr
from millrace_lab.soak import timed
from millrace_lab.soak.chosen_keys import LENGTH, colliding_pairs
from millrace_lab.soak.timed import BASE_S, WriteByBatchId

ROWS = 2000
KEYS = 499
KEY_GROUPS = 64
REPEATED_AFTER = 3 * ROWS + 4
"""A repeated id is that of the row this many before."""
MS_PER_ROW = 5
"""So a batch is ten seconds of event time."""
AT_MS = f"{BASE_S}000 + value * {MS_PER_ROW}"
WINDOW_S = 60
DELAY_S = 15
SEEN_S = 300
"""How long ids are remembered: ten times what a repetition needs."""
QUIET_S = 1800
"""A burst is over when a key was not seen for this long, in processing time."""
LATEST = 5

ID = (
    f"(case when value % 10 = 9 and value >= {REPEATED_AFTER} then value - {REPEATED_AFTER} "
    "else value end)"
)
KEY = f"(case when {ID} % 8 = 0 then 0 else 1 + ({ID} * 2654435761 % 4294967296) % {KEYS} end)"
"""SQL that Spark and DuckDB read alike. One key has an eighth of all rows."""

TOTALS, VISITS, WINDOWS, NAMES = "totals", "visits", "windows", "names"

CHOSEN_KEYS = True
"""Whether the texts that `names` counts collide under the fingerprints of format version 1."""
PAIRS = 8


def names(chosen: bool) -> list[str]:
    """Texts of 64 characters; if they are chosen, each two in a row collide."""
    if chosen:
        return [text for pair in colliding_pairs(PAIRS) for text in pair]
    return [f"{number:0{LENGTH}d}" for number in range(2 * PAIRS)]


def name_sql(chosen: bool) -> str:
    """SQL that Spark and DuckDB read alike. Of the two texts of a pair, one comes more often."""
    texts = names(chosen)
    cases = " ".join(f"when {number} then '{text}'" for number, text in enumerate(texts))
    return f"(case value % {len(texts) + 1} {cases} else '{texts[0]}' end)"


class Visits(mr.Processor):
    """Distinct ids, the latest of them, open windows, and bursts, per key."""

    distinct = mr.Value("long", default=0)
    burst = mr.Value("long", default=0, ttl=f"{QUIET_S} seconds")
    seen = mr.Set("long", ttl=f"{SEEN_S} seconds", ttl_time="event")
    latest = mr.List("long")
    open = mr.Map("long", "long")
    ends = mr.EventTimeTimer()
    closed = mr.SideOutput("k long, window long, n long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        """Rows in the order of their numbers: the order of arrival is not the same every time."""
        for row in sorted(rows, key=lambda row: row.value):
            window = int(row.at.timestamp()) // WINDOW_S
            if window not in self.open:
                end = dt.datetime.fromtimestamp((window + 1) * WINDOW_S, dt.UTC)
                self.ends.set(end, label=str(window))
            self.open[window] = self.open.get(window, 0) + 1
            if row.id not in self.seen:
                self.seen.add(row.id)
                self.distinct.set(self.distinct.get() + 1)
                self.latest.append(row.id)
        if len(self.latest) > LATEST:
            self.latest.drop_first(len(self.latest) - LATEST)
        self.burst.set(self.burst.get() + len(rows))
        yield (key.k, self.distinct.get(), self.burst.get())

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> None:
        window = int(timer.label)
        self.closed.emit((key.k, window, self.open[window]))
        del self.open[window]


def rows(spark: SparkSession, chosen_keys: bool = CHOSEN_KEYS) -> mr.Stream:
    """The rows of Spark's own source of numbers."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 2)
        .load()
    )
    made = numbers.selectExpr(
        f"{KEY} as k",
        f"{ID} as id",
        f"{name_sql(chosen_keys)} as name",
        "value",
        f"timestamp_millis({AT_MS}) as at",
    )
    return mr.stream(made, event_time="at", watermark=f"{DELAY_S} seconds")


def build(spark: SparkSession, sinks: Path, chosen_keys: bool = CHOSEN_KEYS) -> mr.StreamWriter:
    """The query."""
    stream = rows(spark, chosen_keys)
    keyed = stream.key_by("k")
    totals = keyed.aggregate(name=TOTALS, n=mr.count(), total=mr.sum("value"), top=mr.max("id"))
    visits = keyed.process(Visits(), "k long, distinct long, burst long", name=VISITS)
    closed = visits.side("closed")
    windows = closed.key_by("k").aggregate(name=WINDOWS, windows=mr.count(), n=mr.sum("n"))
    texts = stream.key_by("name").aggregate(name=NAMES, n=mr.count(), total=mr.sum("value"))
    return totals.to("parquet", path=str(sinks / TOTALS)).also(
        visits.for_each_batch(WriteByBatchId(sinks / VISITS)),
        closed.for_each_batch(WriteByBatchId(sinks / "closed")),
        windows.to("noop"),
        texts.to("noop"),
        *timed.outputs(spark, stream, sinks),
    )
