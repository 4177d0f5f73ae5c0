"""What a shard reports to the driver, and how the driver sums it up.

A shard's report has its segments, its counts and its times. An epoch's report is what
`query.progress()` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.epoch.arrivals import HotKey
from millrace.ids import Epoch, OperatorName, Shard
from millrace.log.segment import SegmentEntry
from millrace.operators.operator import MAIN


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
    """Where it ran. Spark may ignore the preferred executor if that is gone or busy."""
    group_rows: dict[int, int] = field(default_factory=dict)
    """Key group -> rows of state that it changed."""
    arrived_rows: dict[int, int] = field(default_factory=dict)
    """Key group -> rows that came for it."""
    hot_key: HotKey | None = None
    counters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    processor_seconds: float = 0.0
    evicted_rows: dict[str, int] = field(default_factory=dict)
    """Table -> its rows that the watermark has passed in this epoch."""


Reports = Mapping[OperatorName, Mapping[Shard, ShardReport]]
"""The reports of an epoch: one per operator and shard."""


@dataclass(frozen=True)
class OperatorReport:
    """What one epoch did to one operator, in Spark's names where Spark has them."""

    shards: int
    input_rows: int
    num_rows_updated: int
    num_rows_total: int
    bytes_written: int
    merged_rows: int
    heap_bytes: int
    executors: list[str]
    """Where each shard ran."""
    counters: dict[str, int] = field(default_factory=dict)
    """What the operator counts itself, such as late rows."""
    shard_seconds: dict[str, float] = field(default_factory=dict)
    """The slowest shard's time in each phase."""
    watermark_ms: int | None = None
    """The operator's own watermark."""

    @staticmethod
    def of(
        shards: Mapping[Shard, ShardReport], total_rows: int, watermark_us: int | None = None
    ) -> OperatorReport:
        """The sum of all shards; `total_rows` is what the state has after the epoch."""
        mine = [shards[shard] for shard in sorted(shards)]
        written = [w for r in mine for w in r.tables.values()]
        phases = sorted({phase for r in mine for phase in r.seconds})
        counters = sorted({counter for r in mine for counter in r.counters})
        return OperatorReport(
            shards=len(mine),
            input_rows=sum(r.input_rows for r in mine),
            num_rows_updated=sum(r.tables[MAIN].changed_rows for r in mine if MAIN in r.tables),
            num_rows_total=total_rows,
            bytes_written=sum(w.segment.bytes for w in written),
            merged_rows=sum(w.merged_rows for w in written),
            heap_bytes=max(r.heap_bytes for r in mine),
            executors=[r.executor for r in mine],
            counters={c: sum(r.counters.get(c, 0) for r in mine) for c in counters},
            shard_seconds={p: max(r.seconds.get(p, 0.0) for r in mine) for p in phases},
            watermark_ms=None if watermark_us is None else watermark_us // 1000,
        )


@dataclass(frozen=True)
class EpochReport:
    """What one epoch did."""

    epoch: Epoch
    batch_id: int
    seconds: float
    phases: dict[str, float]
    operators: dict[OperatorName, OperatorReport]
    watermark_ms: int | None
