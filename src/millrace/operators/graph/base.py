"""What all operators on graphs have in common: nothing happens without edges, nothing expires."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from millrace import types
from millrace.arrays import Int64Array
from millrace.ids import OperatorName
from millrace.operators.input import Input
from millrace.operators.operator import Change, Moment, TableLayout
from millrace.state.replica import Replica


class GraphOperator:
    """An operator over edges. Its spec says all there is to know."""

    runs_without_rows = False
    tables: dict[str, TableLayout]
    output_schema: T.StructType
    side_schemas: dict[str, T.StructType]

    def __init__(self, name: OperatorName, definition: Any) -> None:
        self.name = name
        self.definition = definition
        self.vertex = types.arrow_type(definition.vertex, "a vertex")

    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.definition.to_json()
        return found

    def output_watermark(self, watermark_us: int | None) -> int | None:
        # What is emitted has no event time.
        return watermark_us

    def no_rows(self) -> Input:
        raise NotImplementedError("an operator on graphs has nothing to do without edges")

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        raise NotImplementedError

    def sweep(self, table: str, moment: Moment) -> None:
        return None
