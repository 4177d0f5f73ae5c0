"""Task state in one epoch: the shard's value, and the row it is kept in.

The table has a row per shard that has a value, in the first of its key groups, with the key groups
that the shard owned when it was written. Every shard follows the whole table, and every shard runs
in every epoch; so in the first epoch of a new assignment all rows are replaced together, each by
the owner of the key group that it lies in.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import StateAccessError
from millrace.keygroups import Assignment, format_ranges, parse_ranges
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.operator import TableChange
from millrace.operators.process.convert import to_arrow, to_python
from millrace.operators.process.shared.declarations import TaskState
from millrace.operators.process.shared.redistribution import Holding, redistributed
from millrace.state.columns import words
from millrace.state.replica import Replica

SHARD, GROUPS, VALUE = "shard", "groups", "value"


class TaskTable:
    """One shard's value."""

    def __init__(
        self,
        declaration: TaskState,
        what: str,
        replica: Replica,
        groups: Int64Array,
        assignment: Assignment,
    ) -> None:
        """`what` names the state in errors."""
        self.value: Any = None
        self.is_set = False
        self._what = what
        self._replica = replica
        self._type = replica.schema.field(VALUE).type
        stored = replica.read(np.arange(replica.key_groups))
        self._stored = stored
        self._first = int(groups[0]) if len(groups) else None
        if self._first is None:
            # A shard without key groups gets no rows; it has no value until it owns some.
            return
        self._shard = assignment.owners[self._first]
        self._groups = format_ranges(groups.tolist())
        held = [
            Holding(tuple(parse_ranges(ranges).tolist()), value)
            for ranges, value in zip(
                stored.column(GROUPS).to_pylist(), to_python(stored.column(VALUE)), strict=True
            )
        ]
        self.value = redistributed(
            held,
            assignment.owners,
            self._shard,
            declaration.split_function,
            declaration.merge_function,
            what,
        )
        to_arrow([self.value], self._type, f"what the rules of {what} gave for shard {self._shard}")

    def changes(self) -> TableChange | None:
        """The row to write, and deletions for shards that no longer exist."""
        if self._first is None:
            return None
        shift = np.uint64(self._replica.shift)
        own = int(np.uint64(self._first) << shift)
        hi = words(self._stored, HI).tolist()
        mine = set(parse_ranges(self._groups).tolist())
        there = [h for h in hi if (h >> int(shift)) in mine]
        rows = {h: None for h in there if h != own or self.value is None}
        if self.value is not None and (self.is_set or not self._is_stored(own)):
            rows[own] = self.value
        if not rows:
            return None
        fingerprints = sorted(rows)
        values = [rows[h] for h in fingerprints]
        gone = [value is None for value in values]
        columns = {
            HI: pa.array(fingerprints, pa.uint64()),
            LO: pa.array([0] * len(fingerprints), pa.uint64()),
            DELETED: pa.array(gone),
            SHARD: pa.array([self._shard] * len(fingerprints), pa.int32()),
            GROUPS: pa.array([self._groups] * len(fingerprints)),
            VALUE: to_arrow(values, self._type, self._what),
        }
        schema = self._replica.schema
        batch = pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema)
        return TableChange(batch, sum(h not in there for h in fingerprints), sum(gone))

    def _is_stored(self, own: int) -> bool:
        """Whether the shard's row says what it should, if the value was not set."""
        stored = self._stored.select([HI, SHARD, GROUPS]).to_pylist()
        return {HI: own, SHARD: self._shard, GROUPS: self._groups} in stored


class TaskHandle:
    """What `self.model` is while an epoch runs. A value changed in place must be set again."""

    __slots__ = ("_default", "_name", "_table")

    def __init__(self, declaration: TaskState, table: TaskTable) -> None:
        self._name = declaration.name
        self._default = declaration.default
        self._table: TaskTable | None = table

    def _open(self) -> TaskTable:
        if self._table is None:
            raise StateAccessError(
                f"task state {self._name!r} was used after the epoch it belongs to. Use it only "
                "inside of process() and on_timer()."
            )
        return self._table

    def close(self) -> None:
        self._table = None

    def get(self) -> Any:
        """The shard's value, or the default while it has none."""
        value = self._open().value
        return copy.deepcopy(self._default) if value is None else value

    def set(self, value: Any) -> None:
        """Replace the value; None clears it."""
        table = self._open()
        table.value = value
        table.is_set = True

    def clear(self) -> None:
        self.set(None)

    def exists(self) -> bool:
        return self._open().value is not None
