"""The segment that a shard writes of a table in one epoch: its changes, merges and runs, swept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.ids import Epoch
from millrace.log.segment import HI, LO, SectionData, SegmentEntry, encode_segment
from millrace.state.columns import words
from millrace.state.eviction import Eviction
from millrace.state.replica import Replica
from millrace.state.sections import delta, due_merges, merged, merged_without, run
from millrace.state.sorting import count_groups

Sweep = Callable[[pa.RecordBatch], BoolArray | None]
"""Which rows of a table have expired and need not be kept; None if none can have."""


@dataclass(frozen=True)
class Written:
    """A segment that is ready to be stored."""

    buffer: pa.Buffer
    entry: SegmentEntry
    merged_rows: int
    swept_rows: int
    """Rows that had expired and were left out of a merge."""


def compose_segment(
    replica: Replica,
    path: str,
    changed: pa.RecordBatch,
    groups: Int64Array,
    index_budget: int,
    sweep: Sweep | Eviction | None = None,
) -> Written:
    """The segment with a shard's changes to a table, its merges and its runs."""
    sections = delta(replica, changed)
    merging = due_merges(replica, groups, changed.num_rows, index_budget)
    merged_rows = swept = 0
    if len(merging):
        if isinstance(sweep, Eviction):
            base, swept = merged_without(replica, merging, sweep)
        else:
            base = merged(replica, merging)
        if sweep is not None and not isinstance(sweep, Eviction):
            base, swept = _without_expired(replica, base, changed, sweep)
        merged_rows = base.rows.num_rows
        sections.append(base)
    newest = run(replica, np.setdiff1d(groups, merging))
    if newest is not None:
        sections.append(newest)
        merged_rows += newest.rows.num_rows
    buffer, entry = encode_segment(path, Epoch(replica.version + 1), sections)
    return Written(buffer, entry, merged_rows, swept)


def _without_expired(
    replica: Replica, base: SectionData, changed: pa.RecordBatch, sweep: Sweep
) -> tuple[SectionData, int]:
    rows = base.rows.slice(0, base.rows.num_rows)
    over = sweep(rows)
    if over is None or not over.any():
        return base, 0
    # A row that the epoch changes is written anyway, and was counted as one that exists.
    changed_hi, changed_lo = words(changed, HI), words(changed, LO)
    fresh = set(zip(changed_hi.tolist(), changed_lo.tolist(), strict=True))
    hi, lo = words(rows, HI), words(rows, LO)
    for i in np.flatnonzero(over & np.isin(hi, changed_hi)).tolist():
        if (int(hi[i]), int(lo[i])) in fresh:
            over[i] = False
    kept = rows.filter(pa.array(~over))
    counts = count_groups(words(kept, HI), np.uint64(replica.shift), replica.key_groups)
    groups = np.flatnonzero(counts)
    section = SectionData(base.first, base.last, base.covers, groups, counts[groups], kept)
    return section, int(over.sum())
