"""A processor's shared states in one epoch: opened before the keyed rows, written after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, Int64Array
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.operators.input import Input
from millrace.operators.operator import Moment, TableChange
from millrace.operators.process.processor import declarations
from millrace.operators.process.shared.broadcast import (
    KEY,
    VALUE,
    BroadcastHandle,
    BroadcastTable,
    Decoded,
)
from millrace.operators.process.shared.declarations import Broadcast, SharedDeclaration, TaskState
from millrace.operators.process.shared.task import TaskHandle, TaskTable
from millrace.state.replica import Replica

SharedHandles: TypeAlias = Mapping[str, BroadcastHandle | TaskHandle]
"""A processor's shared states by name, while an epoch runs."""


def shared_states(processor: object) -> dict[str, SharedDeclaration]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, SharedDeclaration)}


def broadcasts(processor: object) -> dict[str, Broadcast]:
    return {n: d for n, d in declarations(processor).items() if isinstance(d, Broadcast)}


def side_type(declaration: Broadcast) -> pa.DataType:
    what = f"broadcast state {declaration.name!r}"
    return pa.struct(
        [
            (KEY, types.arrow_type(declaration.key_type, what)),
            (VALUE, types.arrow_type(declaration.value_type, what)),
        ]
    )


class SharedDeclarations:
    """What an operator knows of its processor's shared states, for all epochs."""

    def __init__(self, operator: OperatorName, processor: object) -> None:
        self._operator = operator
        self._states = shared_states(processor)
        self._decoded = {name: Decoded() for name in broadcasts(processor)}

    def open(
        self,
        rows: Input,
        replicas: dict[str, Replica],
        groups: Int64Array,
        moment: Moment,
    ) -> SharedStates:
        """The shared states of one epoch, with its broadcast rows already in them."""
        handles: dict[str, BroadcastHandle | TaskHandle] = {}
        tables: dict[str, BroadcastTable | TaskTable] = {}
        is_broadcast, sides = self._broadcast_rows(rows)
        for name, declaration in self._states.items():
            replica = replicas[name]
            if isinstance(declaration, Broadcast):
                table = BroadcastTable(name, replica, sides.get(name), self._decoded[name])
                tables[name], handles[name] = table, BroadcastHandle(table)
            elif isinstance(declaration, TaskState):
                what = f"task state {name!r} of operator {self._operator!r}"
                task = TaskTable(declaration, what, replica, groups, _assignment(moment))
                tables[name], handles[name] = task, TaskHandle(declaration, task)
        return SharedStates(is_broadcast, handles, tables, groups)

    def _broadcast_rows(self, rows: Input) -> tuple[BoolArray | None, dict[str, pa.StructArray]]:
        """Which rows are broadcast rows, and those of each state, in order."""
        sides: dict[str, pa.StructArray] = {}
        is_broadcast: BoolArray | None = None
        # Rows that do not come from a stream, such as moved ones, lack these columns.
        for name, column in zip(self._decoded, rows.broadcast, strict=False):
            side = types.conform(column, column.type)
            mine = side.is_valid().to_numpy(zero_copy_only=False)
            if mine.any():
                assert rows.part is not None
                is_broadcast = mine if is_broadcast is None else is_broadcast | mine
                order = np.flatnonzero(mine)[np.argsort(rows.part[mine], kind="stable")]
                sides[name] = side.take(pa.array(order))
        return is_broadcast, sides


def _assignment(moment: Moment) -> Assignment:
    assert moment.assignment is not None, "an operator with task state needs the assignment"
    return moment.assignment


class SharedStates:
    """The shared states of one shard in one epoch."""

    def __init__(
        self,
        is_broadcast: BoolArray | None,
        handles: SharedHandles,
        tables: Mapping[str, BroadcastTable | TaskTable],
        groups: Int64Array,
    ) -> None:
        self.is_broadcast = is_broadcast
        """Which of the epoch's rows are broadcast rows; None if none is."""
        self.handles = handles
        self._tables = tables
        self._groups = groups

    def bind(self, processor: Any) -> None:
        """Replace every declaration by its handle."""
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
