"""A processor's shared states in one epoch: opened before the keyed rows, written after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace import types
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.operators.aggregate import PART
from millrace.operators.operator import Moment, TableChange
from millrace.processors.processor import declarations
from millrace.processors.shared.broadcast import (
    KEY,
    VALUE,
    BroadcastHandle,
    BroadcastTable,
    Decoded,
)
from millrace.processors.shared.declarations import Broadcast, SharedDeclaration, TaskState
from millrace.processors.shared.task import TaskHandle, TaskTable
from millrace.state.replica import Replica

Int64Array = npt.NDArray[np.int64]

SharedHandles: TypeAlias = Mapping[str, BroadcastHandle | TaskHandle]
"""A processor's shared states by name, while an epoch runs."""


def shared_states(processor: object) -> dict[str, SharedDeclaration]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, SharedDeclaration)}


def broadcasts(processor: object) -> dict[str, Broadcast]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, Broadcast)}


def side_column(number: int) -> str:
    """The column of a processor's n-th broadcast state among its rows: a struct of key and value,
    NULL in all rows but those of its stream."""
    return f"_b{number}"


def side_type(declaration: Broadcast) -> pa.DataType:
    what = f"broadcast state {declaration.name!r}"
    return pa.struct(
        [
            (KEY, types.arrow_type(declaration.key_type, what)),
            (VALUE, types.arrow_type(declaration.value_type, what)),
        ]
    )


class SharedStates:
    """What an operator knows of its processor's shared states, for all epochs."""

    def __init__(self, operator: OperatorName, processor: object) -> None:
        self._operator = operator
        self._states = shared_states(processor)
        self._sides = {name: side_column(i) for i, name in enumerate(broadcasts(processor))}
        self._decoded = {name: Decoded() for name in self._sides}

    def fields(self) -> list[pa.Field]:
        """The columns that broadcast rows add to an operator's input."""
        return [
            pa.field(self._sides[name], side_type(declaration))
            for name, declaration in self._states.items()
            if isinstance(declaration, Broadcast)
        ]

    def open(
        self,
        rows: pa.Table,
        replicas: dict[str, Replica],
        groups: Int64Array,
        moment: Moment,
    ) -> SharedSession:
        handles: dict[str, BroadcastHandle | TaskHandle] = {}
        tables: dict[str, BroadcastTable | TaskTable] = {}
        keyed, sides = self._divide(rows)
        for name, declaration in self._states.items():
            replica = replicas[name]
            if isinstance(declaration, Broadcast):
                table = BroadcastTable(name, replica, sides.get(name), self._decoded[name])
                tables[name], handles[name] = table, BroadcastHandle(table)
            elif isinstance(declaration, TaskState):
                what = f"task state {name!r} of operator {self._operator!r}"
                task = TaskTable(declaration, what, replica, groups, _assignment(moment))
                tables[name], handles[name] = task, TaskHandle(declaration, task)
        return SharedSession(keyed, handles, tables, groups)

    def _divide(self, rows: pa.Table) -> tuple[pa.Table, dict[str, pa.StructArray]]:
        """The keyed rows, and those of each broadcast state in order."""
        sides: dict[str, pa.StructArray] = {}
        is_side = np.zeros(rows.num_rows, np.bool_)
        for name, column in self._sides.items():
            side = types.conform(rows.column(column), rows.schema.field(column).type)
            mine = side.is_valid().to_numpy(zero_copy_only=False)
            if mine.any():
                is_side |= mine
                part = rows.column(PART).to_numpy()[mine]
                order = np.flatnonzero(mine)[np.argsort(part, kind="stable")]
                sides[name] = side.take(pa.array(order))
        keyed = rows.filter(pa.array(~is_side)) if is_side.any() else rows
        return keyed, sides


def _assignment(moment: Moment) -> Assignment:
    assert moment.assignment is not None, "an operator with task state is told the assignment"
    return moment.assignment


class SharedSession:
    """The shared states of one shard in one epoch."""

    def __init__(
        self,
        rows: pa.Table,
        handles: SharedHandles,
        tables: Mapping[str, BroadcastTable | TaskTable],
        groups: Int64Array,
    ) -> None:
        self.rows = rows
        """The keyed rows."""
        self.handles = handles
        self._tables = tables
        self._groups = groups

    def bind(self, processor: Any) -> None:
        """Put a handle in the place of every declaration."""
        for name, handle in self.handles.items():
            setattr(processor, name, handle)

    def close(self) -> None:
        """The keys are done: using a state is an error from here on."""
        for handle in self.handles.values():
            handle.close()

    def changes(self) -> dict[str, TableChange]:
        """Changed rows by table."""
        found = {}
        for name, table in self._tables.items():
            change = (
                table.changes(self._groups)
                if isinstance(table, BroadcastTable)
                else table.changes()
            )
            if change is not None:
                found[name] = change
        return found
