"""Eviction: rows that time has passed are gone without being written.

A table whose rows have a time, and from which they go in the order of that time, needs no deletions
in its log: the limit is a function of the operator's watermark, which every manifest has. So a
reader leaves such rows out when it reads, and a merge when it writes a new base. Until then they
are on disk and in no result.

Invariant: the limit of an operator never falls, and an operator does not look for a row that is
gone, so it makes no difference whether a replica still has it. An operator counts the rows that go
in the epoch in which they do (`state.time_index` finds them), and a merge does not count them
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from millrace.arrays import BoolArray


@dataclass(frozen=True)
class Eviction:
    """Rows whose time is before the limit are gone; a row without a time stays."""

    column: str
    limit: int

    def over(self, times: Any) -> BoolArray:
        """Which of some times, in an Arrow array, are before the limit."""
        mask: BoolArray = pc.fill_null(pc.less(times, self.limit), False).to_numpy(
            zero_copy_only=False
        )
        return mask
