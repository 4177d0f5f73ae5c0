"""What both kinds of processors' operators are: keys, a processor, and the schemas around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as T

from millrace import types
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.operators.operator import Moment, TableLayout
from millrace.processors.layout import VALUE_KINDS, layout
from millrace.processors.outputs import LATE, late_rows, side_schemas
from millrace.processors.processor import declarations
from millrace.processors.rows import empty_rows, state_specs
from millrace.processors.shared.session import SharedStates
from millrace.processors.sweep import sweep_of
from millrace.state.writing import Sweep

KIND = "process"


class KeyedOperator:
    """An operator that runs a user's processor; how it does so is a subclass's business."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        fields: Sequence[Key],
        processor: object,
        output: T.StructType,
        event_time: str | None,
        initial: Sequence[Key],
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.fields = tuple(fields)
        self.output_schema = output
        self.event_time = event_time
        self.initial = tuple(initial)
        """The columns of the initial state; none if there is no initial state."""
        self.side_schemas = side_schemas(processor, fields, event_time)
        self._program = processor
        self._states = state_specs(declarations(processor))
        self.tables: dict[str, TableLayout] = layout(self.keys, self._states)
        self._shared = SharedStates(name, processor)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [{"name": k.name, "type": types.to_json(k.type)} for k in self.keys],
            "states": self._states,
        }

    def code(self) -> bytes:
        """What a worker needs to run it."""
        dumps: Any = cloudpickle.dumps
        return bytes(dumps((type(self), self._arguments())))

    def _arguments(self) -> tuple[Any, ...]:
        """What makes this operator once more."""
        parts = (self.name, self.keys, self.fields, self._program, self.output_schema)
        return (*parts, self.event_time, self.initial)

    def no_rows(self) -> pa.Table:
        return empty_rows(self.keys, self.fields, self.event_time, self._shared.fields())

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return sweep_of(table, self._states, moment)

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """The main table's keys and values."""
        values = [s["name"] for s in self._states if s["kind"] in VALUE_KINDS]
        return state.select([k.name for k in self.keys] + values)

    def _late(self, rows: pa.Table) -> dict[str, pa.RecordBatch]:
        """The side output with the late rows, if there are any."""
        return {LATE: late_rows(rows, self.fields)} if rows.num_rows else {}
