"""When to merge deltas into a base, and small deltas into a run. Pure.

Writing a new base for a key group costs its rows; it saves replaying its delta. Merging a key group
when the delta rows logged since its base are `MERGE_RATIO` times the base's adds 1/2.25 = 0.44 of
what the deltas themselves write, whatever the size of the state.

Key groups that are filled together would reach that ratio together, and all merges would come at
once. So what is bounded is the log of all key groups of a shard together: when it is longer than it
would be if their merges were spread evenly, which is half of the ratio (a key group's log is
between nothing and the ratio, evenly), those with the longest log for their base are merged. This
puts them out of step in the first cycle. From then on they are merged one after the other, each at
about the ratio, and the log is never longer than at steady state. Until they are out of step they
are merged earlier and more often, but only after a time without merges that makes up for it.

A row counts as a row, whether a delta or a base holds it: both have the same columns.

Three more rules keep other things bounded: a key group that alone is changed is merged at twice the
ratio; memory (the index of unmerged rows, with those of this epoch, must fit the budget); and the
number of files (when there are many pieces, the newest small ones become one run, at the price of
writing them again).

Known rough edge: runs are not merged into larger runs, so a very large state under very small
epochs keeps one run per `RUN_PIECES` epochs until its key groups reach the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.arrays import Int64Array

MERGE_RATIO = 2.25
BACKLOG = 2.5
"""One epoch merges at most this many times what an average one has to."""
LOG_PIECES = 512
"""Deltas of a shard's key groups that are left as they are, however small."""
RUN_PIECES = 32
RUN_ROWS = 8192
"""A delta with fewer rows than this is small."""

INDEX_ROW_BYTES = 64
"""What a row adds to the index: 24 bytes a slot, of which 5/16 to 5/8 are taken."""


@dataclass(frozen=True)
class GroupLoad:
    """What the planner knows of some key groups; arrays of equal length."""

    groups: Int64Array
    base_rows: Int64Array
    logged_rows: Int64Array
    """Rows in the log since the base: what a new replica would have to replay."""
    index_bytes: Int64Array


def log_limit(base_rows: Int64Array) -> float:
    """Rows that the log of some key groups together may have."""
    groups = len(base_rows)
    # Evenly spread over n key groups, logs are 1/n, 2/n .. n/n of the ratio when one is merged.
    return MERGE_RATIO * (groups + 1) / (2 * groups) * float(base_rows.sum()) if groups else 0.0


def plan_merges(load: GroupLoad, changed_rows: int, index_budget: int) -> Int64Array:
    """The key groups to merge in this epoch, ascending."""
    ratio = load.logged_rows / np.maximum(load.base_rows, 1)
    excess = float(load.logged_rows.sum()) - log_limit(load.base_rows)
    allowance = BACKLOG * changed_rows / MERGE_RATIO
    chosen: list[int] = []
    for i in np.argsort(-ratio, kind="stable").tolist():
        cost = int(load.base_rows[i])
        if (excess <= 0 and ratio[i] < 2 * MERGE_RATIO) or load.logged_rows[i] == 0:
            break
        if chosen and cost > allowance:
            break
        chosen.append(i)
        excess -= int(load.logged_rows[i])
        allowance -= cost
    room = max(0, index_budget - changed_rows * INDEX_ROW_BYTES)
    over = int(load.index_bytes.sum()) - int(load.index_bytes[chosen].sum()) - room
    if over > 0:
        for i in np.argsort(-load.index_bytes, kind="stable").tolist():
            if over <= 0 or load.index_bytes[i] == 0:
                break
            # A table that was only reserved holds nothing that a merge would free.
            if load.logged_rows[i] and i not in chosen:
                chosen.append(i)
                over -= int(load.index_bytes[i])
    return np.sort(load.groups[np.asarray(chosen, np.int64)])


def has_many_pieces(pieces: int) -> bool:
    """Whether a log of this many deltas and runs may need another run at all."""
    return pieces >= LOG_PIECES


def plan_run(rows: Sequence[int]) -> int:
    """How many of the newest deltas to merge into a run; 0 for none.

    `rows` are the row counts of the live deltas and runs, newest first.
    """
    if not has_many_pieces(len(rows)):
        return 0
    small = next((i for i, n in enumerate(rows) if n >= RUN_ROWS), len(rows))
    return small if small >= RUN_PIECES else 0
