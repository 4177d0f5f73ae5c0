"""Reading state from outside: a replica at a committed epoch, without Spark.

A reader sees one committed epoch across all shards and operators, while the stream goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import UnknownEpochError, UnknownOperatorError
from millrace.ids import Epoch, OperatorName
from millrace.log import Journal, open_store
from millrace.log.segment import DELETED, HI, LO
from millrace.operators import aggregate, from_spec
from millrace.operators.operator import MAIN, table_name
from millrace.processors.description import ProcessDescription
from millrace.state.owners import OWNER_HI, OWNER_LO
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

    def tables(self, operator: str | None = None) -> list[str]:
        """What `state=` of `to_arrow` may be: an operator's collections, timers, shared states."""
        return [table for table in self._described(self._name(operator)).tables if table != MAIN]

    def to_arrow(self, operator: str | None = None, *, state: str | None = None) -> pa.Table:
        """An operator's state: its key columns and values, one row per key.

        The operator may be left out if there is only one. `state` names a list, map, set or timer
        table of a processor: then there is one row per entry, with the key it belongs to. Of a
        broadcast state there is one row per entry, of a task state one per shard.
        """
        name = self._name(operator)
        described = self._described(name)
        if state is not None and state not in self.tables(name):
            raise UnknownOperatorError(
                f"operator {name!r} has no collection {state!r}; it has "
                f"{', '.join(map(repr, self.tables(name))) or 'none'}."
            )
        every = np.arange(self._trail.key_groups)
        parts = np.array_split(every, min(16, len(every)))
        main = self._replica(name, described, MAIN, every)
        if state is None:
            return pa.Table.from_batches([described.show(main.read(part)) for part in parts])
        owned = self._replica(name, described, state, every)
        if not described.tables[state].owned:
            return pa.Table.from_batches([_without_system(owned.read(part)) for part in parts])
        keys = [key.name for key in described.keys]
        return pa.Table.from_batches([_with_keys(owned.read(part), main, keys) for part in parts])

    def _described(self, name: OperatorName) -> Any:
        spec = self._trail.specs[name]
        if spec["kind"] == aggregate.KIND:
            return from_spec(name, spec)
        return ProcessDescription(name, spec)

    def _replica(
        self, name: OperatorName, described: Any, table: str, groups: npt.NDArray[np.int64]
    ) -> Replica:
        layout = described.tables[table]
        replica = Replica(
            self._journal.store, layout.schema, self._trail.key_groups, owned=layout.owned
        )
        log = self._trail.operator(table_name(name, table))
        replica.follow(log, self._trail.epoch, groups)
        return replica

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


def _without_system(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a table that belong to no key."""
    return rows.drop_columns([HI, LO, DELETED])


def _with_keys(rows: pa.RecordBatch, main: Replica, keys: list[str]) -> pa.RecordBatch:
    """Rows of a collection, with their owner's key instead of its fingerprint."""
    owners = main.find(rows.column(OWNER_HI).to_numpy(), rows.column(OWNER_LO).to_numpy())
    arrays = main.gather(owners, keys)
    names = [n for n in rows.schema.names if n not in (HI, LO, DELETED, OWNER_HI, OWNER_LO)]
    # A map's own columns are called key and value; a key column of that name comes first.
    return pa.RecordBatch.from_arrays(
        [*arrays, *(rows.column(n) for n in names)], names=[*keys, *names]
    )


def open_location(location: str, *, epoch: int | None = None) -> Reader:
    """Open a location's state at its last committed epoch, or at an earlier one."""
    return Reader(location, epoch)
