"""What a shard writes of a table at a version, computed from its replica: sections of a segment.

Changed rows become a delta, merged key groups a new base, many small deltas a run. Nothing here
changes the replica: it follows the log, like any other, once the epoch is committed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.ids import Epoch
from millrace.log.segment import DELETED, HI, SectionData
from millrace.state.columns import words
from millrace.state.eviction import Eviction
from millrace.state.merging import GroupLoad, has_many_pieces, plan_merges, plan_run
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups


def delta(replica: Replica, changed: pa.RecordBatch) -> list[SectionData]:
    """Changed rows, sorted by fingerprint, as sections of the next version's segment.

    Rows of key groups that were empty are all there is, so they are written as a base at once.
    """
    counts = _counts(replica, changed)
    base_rows, logged = replica.row_counts()
    blank = (base_rows == 0) & (logged == 0) & (counts > 0)
    if not blank.any():
        return [_changes(replica, changed, counts, replica.version)]
    in_blank = blank[(words(changed, HI) >> np.uint64(replica.shift)).astype(np.int64)]
    deleted = changed.column(DELETED).to_numpy(zero_copy_only=False)
    sections = []
    for mask, first in ((in_blank & ~deleted, Epoch(0)), (~in_blank, replica.version)):
        part = changed.filter(pa.array(mask))
        if part.num_rows:
            sections.append(_changes(replica, part, _counts(replica, part), first))
    # Deleting what was never there writes nothing; but a segment has at least one section.
    return sections or [
        _changes(replica, changed.slice(0, 0), np.zeros_like(counts), replica.version)
    ]


def _counts(replica: Replica, rows: pa.RecordBatch) -> Int64Array:
    return count_groups(words(rows, HI), np.uint64(replica.shift), replica.key_groups)


def _changes(
    replica: Replica, rows: pa.RecordBatch, counts: Int64Array, first: Epoch
) -> SectionData:
    groups = np.flatnonzero(counts)
    return SectionData(first, Epoch(replica.version + 1), groups, groups, counts[groups], rows)


def due_merges(
    replica: Replica, groups: Int64Array, changed_rows: int, index_budget: int
) -> Int64Array:
    """Which of a shard's key groups to merge while it writes `changed_rows` rows."""
    base_rows, logged = replica.row_counts()
    load = GroupLoad(groups, base_rows[groups], logged[groups], replica.index_bytes(groups))
    return plan_merges(load, changed_rows, index_budget)


class Gathered:
    """Rows that are collected from a replica's pages when they are asked for."""

    def __init__(self, replica: Replica, addresses: UInt64Array) -> None:
        self._replica = replica
        self._addresses = addresses

    @property
    def schema(self) -> pa.Schema:
        return self._replica.schema

    @property
    def num_rows(self) -> int:
        return len(self._addresses)

    def slice(self, offset: int, length: int) -> pa.RecordBatch:
        return self._replica.batch([self._addresses[offset : offset + length]])[0]


def merged(replica: Replica, groups: Int64Array) -> SectionData:
    """A new base for some key groups, as of the replica's version."""
    return _base(replica, groups, [replica.rows(int(group)) for group in groups])


def merged_without(
    replica: Replica, groups: Int64Array, eviction: Eviction
) -> tuple[SectionData, int]:
    """The same without the rows that are gone, and how many those are."""
    parts, gone = [], 0
    for group in groups.tolist():
        rows = replica.rows(group)
        over = eviction.over(replica.gather(rows, [eviction.column])[0])
        parts.append(rows[~over])
        gone += int(over.sum())
    return _base(replica, groups, parts), gone


def _base(replica: Replica, groups: Int64Array, parts: list[UInt64Array]) -> SectionData:
    counts = np.asarray([len(part) for part in parts], np.int64)
    rows = Gathered(replica, np.concatenate(parts) if parts else np.empty(0, np.uint64))
    full = counts > 0
    return SectionData(Epoch(0), replica.version, groups, groups[full], counts[full], rows)


def run(replica: Replica, groups: Int64Array) -> SectionData | None:
    """The newest small deltas of some key groups as one, if there are enough of them."""
    live = replica.live
    if not has_many_pieces(len(live.pieces)):
        return None
    own = np.zeros(replica.key_groups, np.bool_)
    own[groups] = True
    mine = [
        (piece, covers[own[covers]]) for piece, covers in live.newest_first() if own[covers].any()
    ]
    number = plan_run([piece.section.rows for piece, _ in mine])
    if not number:
        return None
    first = min(piece.section.first for piece, _ in mine[:number])
    # The run speaks for all that began after `first`, so it must hold all of that. More than
    # the newest pieces is meant only where other shards' runs reach further back.
    taken = [(piece, covers) for piece, covers in mine if piece.section.first >= first]
    covers = np.unique(np.concatenate([covers for _, covers in taken]))
    parts = replica.rows_in({piece.id for piece, _ in taken}, covers, groups)
    batch, counts = replica.batch(parts)
    full = counts > 0
    return SectionData(first, replica.version, covers, groups[full], counts[full], batch)
