"""What a shard tells the driver: its segments, its counts, its times. Carried by an accumulator."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

from millrace.ids import Epoch, OperatorName, Shard
from millrace.log.segment import SegmentEntry


@dataclass(frozen=True)
class TableReport:
    """What a shard wrote to one table."""

    segment: SegmentEntry
    changed_rows: int
    added_rows: int
    removed_rows: int
    merged_rows: int
    expired_rows: int = 0


@dataclass(frozen=True)
class ShardReport:
    """One successful attempt of one shard in one epoch."""

    operator: OperatorName
    epoch: Epoch
    shard: Shard
    tables: dict[str, TableReport]
    input_rows: int
    heap_bytes: int
    executor: str
    """Where it ran, which is where it should have unless that executor was gone or busy."""
    group_rows: dict[int, int] = field(default_factory=dict)
    """Key group -> rows of state that it changed."""
    counters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class ReportParam(AccumulatorParam[list[ShardReport]]):
    """Reports add up to a list."""

    def zero(self, value: list[ShardReport]) -> list[ShardReport]:
        return []

    def addInPlace(self, value1: list[ShardReport], value2: list[ShardReport]) -> list[ShardReport]:
        value1.extend(value2)
        return value1
