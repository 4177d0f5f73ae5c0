"""The operators of event time in a soak's query, over a source of their own.

    events -> hops (window that hops, final) --------------------------------> files
                -> late() ---------------------------------------------------> function
           -> unique (drop_duplicates within the watermark) -----------------> function
                -> bouts (session, final) -----------------------------------> function
                -> left of pairs (left join, within an interval) ------------> function
    rows ------> right of pairs

Every row is a function of its id, and ids are functions of a row's number. Event times are built so
that the answer does not depend on how far the watermark was when a row came: a row is either late
by less than the watermark's delay, or by so much that it is dropped in any case. Some rows have no
event time, some no key, and some ids come twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import millrace as mr

BASE_S = 1_700_000_040
"""Event time of the first row of each source; a whole minute."""
ROWS = 500
"""Rows of a batch."""
MS_PER_ROW = 20
"""So a batch is ten seconds of event time, as in the other source."""
DELAY_S = 20
LATE_MS = 8000
"""How late a row may be by itself. A repetition is late by ten seconds more."""
REPEATED_AFTER = ROWS + 4
"""In a later batch, because it is not said which of two rows of one batch is the first."""
FAR_AFTER = 11 * ROWS + 7
"""The watermark may be a batch behind after a restart. It has passed a row this old even if it is
four behind."""

SIZE_MS, SLIDE_MS = 30_000, 10_000
GAP_MS = 3000
LOWER_MS, UPPER_MS = -4000, 2000
GROUPS = 60

UNIQUE, HOPS, BOUTS, PAIRS, LATE = "unique", "hops", "bouts", "pairs", "late"

# SQL that Spark and DuckDB read alike.
_UNTIMED = "% 97 = 13"
"""Of the number of a row without event time. It is not repeated: how long a deduplication remembers
it depends on whether the watermark has moved."""
_IS_REPEATED = (
    f"value % 11 = 7 and value >= {REPEATED_AFTER} and not (value - {REPEATED_AFTER}) {_UNTIMED}"
)
_IS_FAR = f"value % 101 = 50 and value >= {FAR_AFTER} and not (value - {FAR_AFTER}) {_UNTIMED}"
ID = (
    f"(case when {_IS_REPEATED} then value - {REPEATED_AFTER} "
    f"when {_IS_FAR} then value - {FAR_AFTER} else value end)"
)
GROUP = f"(case when id % 89 = 5 then null else (id * 2654435761 % 4294967296) % {GROUPS} end)"
WHO = (
    "(case when id % 331 = 7 then null "
    "else concat('w', cast((id - id % 250 + id % 4) % 3750 as string)) end)"
)
"""Four at a time, for five seconds of 75: several sessions each, which late rows unite."""
AT_MS = (
    f"(case when id {_UNTIMED} then null else {BASE_S}000 + id * {MS_PER_ROW} "
    f"- (case when id % 7 = 3 then id * 7919 % {LATE_MS} else 0 end) end)"
)
LEFT = "id % 4 = 0"
"""Which unique events are joined."""
RIGHT = "value % 20 = 1"
"""With which rows of the other source."""
RIGHT_GROUP = f"k % {GROUPS}"


class WriteByBatchId:
    """Writes each batch to a file named after it, so a batch that comes again changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        temporary = self._path / f".{batch_id}.{os.getpid()}"
        pq.write_table(df.toArrow(), temporary)
        temporary.replace(self._path / f"{batch_id:09d}.parquet")


def outputs(spark: SparkSession, rows: mr.Stream, sinks: Path) -> list[mr.StreamWriter]:
    """The branches; `rows` is the stream of the other source, with the columns k, value and at."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 1)
        .load()
        .selectExpr("value", f"{ID} as id")
    )
    source = numbers.selectExpr(
        "value", "id", f"{GROUP} as g", f"{WHO} as who", f"timestamp_millis({AT_MS}) as at"
    )
    events = mr.stream(source, event_time="at", watermark=f"{DELAY_S} seconds")
    hops = (
        events.key_by("g")
        .window(_ms(SIZE_MS), slide=_ms(SLIDE_MS))
        .aggregate(n=mr.count(), total=mr.sum("value"), whos=mr.count_distinct("who"), name=HOPS)
    )
    unique = events.drop_duplicates("id", name=UNIQUE)
    bouts = (
        unique.key_by("who")
        .session(_ms(GAP_MS))
        .aggregate(n=mr.count(), total=mr.sum("id"), top=mr.max("id"), name=BOUTS)
    )
    left = unique.transform(lambda df: df.where(LEFT).select("g", "id", "at"))
    right = rows.transform(
        lambda df: df.where(RIGHT).selectExpr(f"{RIGHT_GROUP} as g", "value", "at")
    )
    pairs = left.join(
        right,
        on="g",
        within=(_ms(LOWER_MS), _ms(UPPER_MS)),
        how="left",
        suffixes=("", "_right"),
        name=PAIRS,
    )
    return [
        hops.to("parquet", path=str(sinks / HOPS)),
        hops.late().for_each_batch(WriteByBatchId(sinks / LATE)),
        unique.for_each_batch(WriteByBatchId(sinks / UNIQUE)),
        bouts.for_each_batch(WriteByBatchId(sinks / BOUTS)),
        pairs.for_each_batch(WriteByBatchId(sinks / PAIRS)),
    ]


def _ms(milliseconds: int) -> str:
    return f"{milliseconds} milliseconds"
