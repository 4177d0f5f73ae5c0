"""The rows that came to a shard: how many for each key group, and whether one key has most of them.

A key group is one shard's, whatever it holds. If it is much of a shard's work, it matters whether
it has many keys, which more key groups would divide, or one, which nothing divides. Rows are
sampled: the answer is about shares, and an epoch may have millions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrays import Int64Array
from millrace.keygroups import group_shift
from millrace.operators.input import Input
from millrace.state.sorting import count_groups

LEAST_ROWS = 1000
"""Fewer rows say nothing about what is usual."""
LEAST_SHARE = 0.2
"""The share of a shard's rows that a key group must have to be looked at."""
SAMPLE = 4096
LONGEST = 80
"""Characters of a key that are told."""


@dataclass(frozen=True)
class HotKey:
    """A key with most of its key group's rows."""

    group: int
    key: str
    share: float
    """Of the rows of its key group."""


@dataclass(frozen=True)
class Arrivals:
    """What came to a shard in an epoch."""

    rows: dict[int, int]
    """Key group -> rows."""
    hot_key: HotKey | None = None


def arrivals(rows: Input, groups: Int64Array, key_groups: int) -> Arrivals:
    """Count the rows of each of a shard's key groups."""
    shift = np.uint64(group_shift(key_groups))
    counted = np.zeros(key_groups, np.int64)
    # Rows that every shard gets are nobody's.
    counted[groups] = count_groups(rows.hi, shift, key_groups)[groups]
    found = {int(group): int(counted[group]) for group in np.flatnonzero(counted)}
    return Arrivals(found, hot_key(rows, counted, shift))


def hot_key(rows: Input, arrived: Int64Array, shift: np.uint64) -> HotKey | None:
    """The key with most rows of the fullest key group; None if it is one of many.

    `arrived` has the rows of each key group, and `shift` makes a key group of a fingerprint.
    """
    group = int(arrived.argmax())
    if arrived[group] < max(LEAST_ROWS, LEAST_SHARE * rows.num_rows):
        return None
    mine = np.flatnonzero(rows.hi >> shift == np.uint64(group))
    sample = mine[:: -(-len(mine) // SAMPLE)]
    _, first, counts = np.unique(rows.hi[sample], return_index=True, return_counts=True)
    most = int(counts.argmax())
    share = float(counts[most] / len(sample))
    if share < 0.5:
        return None
    return HotKey(group, _text(rows, int(sample[first[most]])), share)


def _text(rows: Input, row: int) -> str:
    values = [column[row].as_py() for column in rows.keys]
    text = ", ".join(repr(value) for value in values) or f"with fingerprint {rows.hi[row]:016x}"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
