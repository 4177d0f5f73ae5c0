"""Reading state from outside: a replica at a committed epoch, without Spark.

A reader sees one committed epoch across all shards and operators, while the stream goes on.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.errors import UnknownEpochError, UnknownOperatorError
from millrace.ids import Epoch, OperatorName
from millrace.log import Journal, open_store
from millrace.operators import from_spec
from millrace.state.replica import Replica


class Reader:
    """The state of a location at one epoch."""

    def __init__(self, location: str, epoch: int | None = None) -> None:
        self._journal = Journal.open(open_store(location))
        head = self._journal.head()
        if epoch is None and head == 0:
            raise UnknownEpochError(
                f"{location} has no committed epoch yet. Start its query, or wait for its first "
                "epoch."
            )
        self.location = location
        self._trail = self._journal.trail(head if epoch is None else Epoch(epoch))

    @property
    def epoch(self) -> Epoch:
        return self._trail.epoch

    @property
    def batch_id(self) -> int | None:
        """The Spark batch that made this epoch."""
        return self._trail.batch_id

    @property
    def watermark_ms(self) -> int | None:
        return self._trail.watermark_ms

    @property
    def operators(self) -> list[str]:
        return sorted(self._trail.specs)

    def to_arrow(self, operator: str | None = None) -> pa.Table:
        """An operator's state: its key columns and values, one row per key.

        The operator may be left out if there is only one.
        """
        name = self._name(operator)
        described = from_spec(name, self._trail.specs[name])
        key_groups = self._trail.key_groups
        replica = Replica(self._journal.store, described.state_schema, key_groups)
        every = np.arange(key_groups)
        replica.follow(self._trail.operator(name), self._trail.epoch, every)
        shown = [
            described.show(replica.read(part))
            for part in np.array_split(every, min(16, key_groups))
        ]
        return pa.Table.from_batches(shown)

    def _name(self, operator: str | None) -> OperatorName:
        names = self.operators
        if operator is None and len(names) == 1:
            return OperatorName(names[0])
        if operator is None or operator not in names:
            asked = "which operator?" if operator is None else f"there is no operator {operator!r}."
            raise UnknownOperatorError(
                f"{asked} {self.location} has {', '.join(map(repr, names))} at epoch {self.epoch}."
            )
        return OperatorName(operator)

    def __repr__(self) -> str:
        return f"<Reader {self.location} epoch={self.epoch} operators={self.operators}>"


def open_location(location: str, *, epoch: int | None = None) -> Reader:
    """Open a location's state at its last committed epoch, or at an earlier one."""
    return Reader(location, epoch)
