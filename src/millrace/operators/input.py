"""What an operator gets of an epoch: one shard's rows, column by column.

How rows travel from Spark to a shard is not an operator's business: `millrace.epoch.rows` turns a
table as Spark sends it into an `Input`. Nothing is converted or copied on the way; an operator
brings the columns that it reads to their declared types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from millrace.arrays import Int32Array, Int64Array, UInt64Array

Values: TypeAlias = Any
"""An Arrow array, in one piece or in chunks."""


@dataclass(frozen=True)
class Input:
    """One shard's rows, in the order in which they came. Every array has an entry per row."""

    hi: UInt64Array
    lo: UInt64Array
    keys: tuple[Values, ...]
    part: Int32Array | None = None
    """The input partition that each row comes from; None if that does not matter."""
    partials: tuple[tuple[Values, ...], ...] = ()
    """For an aggregate: the partial results of each of its functions."""
    columns: tuple[Values, ...] = ()
    """For a processor: the columns of the stream. For a join: those of the left one."""
    event_us: Values | None = None
    """Event times in microseconds; None without event time."""
    initial: tuple[Values, ...] = ()
    """The columns of the initial state, in rows that are part of it."""
    is_initial: Values | None = None
    """Which rows are part of the initial state; None after the first epoch."""
    broadcast: tuple[Values, ...] = ()
    """For each broadcast state: structs of key and value, NULL in all rows but those of its own
    stream."""

    pane: Values | None = None
    """For windows: the start of each row's pane in microseconds, NULL without event time."""
    count: Values | None = None
    """For windows and sessions: how many rows of the stream each row stands for."""
    late: Values | None = None
    """For windows and sessions whose late rows are read: such a row as a struct of the stream's
    columns, NULL in rows that are in time."""

    first_us: Values | None = None
    last_us: Values | None = None
    """For sessions: the first and last event time of what each row stands for, NULL without."""

    is_right: Values | None = None
    """For joins: whether each row comes from the right stream."""
    right: tuple[Values, ...] = ()
    """For joins: the columns of the right stream, with any values in rows of the left; and the
    other way round in `columns`."""

    @property
    def num_rows(self) -> int:
        return len(self.hi)

    def by_part(self, positions: Int64Array) -> Int64Array:
        """Positions in order of input partition; those of one partition stay as they are.

        Blocks of a shuffle arrive in any order. By partition, rows are in the same order whenever
        the epoch runs again.
        """
        if self.part is None:
            return positions
        return positions[np.argsort(self.part[positions], kind="stable")]
