"""When to merge deltas into a base, and small deltas into a run. Pure.

Writing a key group's base anew costs its rows; it saves replaying its delta. A key group is merged
when the delta rows logged since its base reach `MERGE_RATIO` times the base: at steady state that
adds 1/2.25 = 0.44 of what the deltas themselves write, whatever the size of the state, and the
replay after a crash is bounded by the same ratio. One epoch merges about as many rows as it can
afford at that rate, so no epoch is special.

Two more rules keep other things bounded: memory (the index of unmerged rows must fit the budget)
and the number of files (many small deltas in a row become one run).

Known rough edge: runs are not merged into larger runs, so a very large state under very small
epochs keeps one run per `RUN_PIECES` epochs until its key groups reach the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MERGE_RATIO = 2.25
RUN_PIECES = 32
RUN_ROWS = 8192
"""A delta with fewer rows than this is small."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupLoad:
    """What the planner knows of some key groups; arrays of equal length."""

    groups: Int64Array
    base_rows: Int64Array
    logged_rows: Int64Array
    """Rows in the log since the base: what a new replica would have to replay."""
    index_rows: Int64Array
    index_bytes: Int64Array


def plan_merges(load: GroupLoad, changed_rows: int, index_budget: int) -> Int64Array:
    """The key groups to merge in this epoch, ascending."""
    ratio = load.logged_rows / np.maximum(load.base_rows, 1)
    due = np.flatnonzero((ratio >= MERGE_RATIO) & (load.logged_rows > 0))
    due = due[np.argsort(-ratio[due], kind="stable")]
    cost = load.base_rows + load.index_rows
    chosen: list[int] = []
    spent = 0
    allowance = changed_rows / MERGE_RATIO
    for i in due.tolist():
        if chosen and spent + cost[i] > allowance:
            break
        chosen.append(i)
        spent += int(cost[i])
    excess = int(load.index_bytes.sum()) - index_budget
    excess -= int(load.index_bytes[chosen].sum())
    if excess > 0:
        for i in np.argsort(-load.index_bytes, kind="stable").tolist():
            if excess <= 0 or load.index_bytes[i] == 0:
                break
            # A table that was only reserved holds nothing that a merge would free.
            if load.logged_rows[i] and i not in chosen:
                chosen.append(i)
                excess -= int(load.index_bytes[i])
    return np.sort(load.groups[np.asarray(chosen, np.int64)])


def plan_run(trailing_rows: list[int]) -> int:
    """How many of the newest deltas to merge into a run; 0 for none.

    `trailing_rows` are the row counts of the live deltas and runs, newest first.
    """
    small = 0
    for rows in trailing_rows:
        if rows >= RUN_ROWS:
            break
        small += 1
    return small if small >= RUN_PIECES else 0
