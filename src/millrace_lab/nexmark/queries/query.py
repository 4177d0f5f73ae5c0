"""What a query of NEXMark is, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.nexmark.generator import AUCTION, BID, PERSON

DELAY = "1 second"
STATELESS, EMITTED, LATEST, STATE, BOTH = "stateless", "emitted", "latest", "state", "both"
Program = Callable[[DataFrame], "mr.Stream | DataFrame"]
SparkProgram = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Query:
    """A query of NEXMark: a program, and the same in other languages."""

    name: str
    title: str
    answer: str
    """Where it is: in the rows emitted, in the latest one of each key, in the state, in rows and
    state added up; or the query needs no state."""
    program: Program
    columns: tuple[str, ...]
    """Of the answer that are compared."""
    duckdb: str
    operator: str | None = None
    """Of an answer in the state: the operator that has it, if there are several."""
    key: tuple[str, ...] = ()
    """Of an answer that changes: the columns that say which row replaces which."""
    closes: bool = False
    """Whether the answer is there only when the watermark has passed all events."""
    partitions: tuple[str, ...] = ()
    """Of an answer in files: the columns that are folders."""
    spark: SparkProgram | None = None
    """For Spark's own operators: rows appended if they are final, else updates."""
    flink: str | None = None
    """For Flink SQL, over views as those of DuckDB, with the answer's columns in their order."""


def people(events: DataFrame) -> DataFrame:
    return _of_kind(events, PERSON)


def auctions(events: DataFrame) -> DataFrame:
    return _of_kind(events, AUCTION)


def bids(events: DataFrame) -> DataFrame:
    return _of_kind(events, BID)


def _of_kind(events: DataFrame, kind: str) -> DataFrame:
    return events.where(F.col("kind") == kind).select("event_id", "ts", f"{kind}.*")


def timed(df: DataFrame, event_time: str = "ts") -> mr.Stream:
    return mr.stream(df, event_time=event_time, watermark=DELAY)
