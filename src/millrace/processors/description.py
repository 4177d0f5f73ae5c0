"""A processor as a reader knows it: from its spec alone, without the code that wrote it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace import types
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.operators.operator import TableLayout
from millrace.processors.layout import VALUE_KINDS, layout


class ProcessDescription:
    """The tables of a processor."""

    def __init__(self, name: OperatorName, spec: dict[str, Any]) -> None:
        self.name = name
        self.keys = tuple(Key(k["name"], types.from_json(k["type"])) for k in spec["keys"])
        self._states = spec["states"]

    @property
    def tables(self) -> dict[str, TableLayout]:
        return layout(self.keys, self._states)

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Keys and values, one row per key."""
        values = [s["name"] for s in self._states if s["kind"] in VALUE_KINDS]
        return state.select([k.name for k in self.keys] + values)
