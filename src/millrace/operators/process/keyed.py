"""What all operators that run a processor have in common, whatever the processor looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray
from millrace.ids import OperatorName
from millrace.operators.input import Input
from millrace.operators.operator import Column, Moment, TableLayout
from millrace.operators.process import spec
from millrace.operators.process.arrivals import Arrivals, divide
from millrace.operators.process.layout import layout
from millrace.operators.process.outputs import LATE, late_rows, side_schemas
from millrace.operators.process.processor import declarations
from millrace.operators.process.shared.states import SharedDeclarations
from millrace.operators.process.sweep import sweep_of
from millrace.state.writing import Sweep


@dataclass(frozen=True)
class Schemas:
    """What goes into a processor and what comes out."""

    keys: Sequence[Column]
    fields: Sequence[Column]
    """The columns of the stream, those of the key included."""
    output: T.StructType
    event_time: str | None = None
    """The column with the event time."""
    initial: Sequence[Column] = ()
    """The columns of the initial state; none if there is no initial state."""


@dataclass(frozen=True)
class Arrived:
    """An epoch's rows: those of the initial state, those to process, and those that are late."""

    initial: Arrivals
    rows: Arrivals
    late: pa.RecordBatch | None

    @property
    def late_count(self) -> int:
        return 0 if self.late is None else int(self.late.num_rows)

    @property
    def sides(self) -> dict[str, pa.RecordBatch]:
        """The side output with the late rows, if there are any."""
        return {} if self.late is None else {LATE: self.late}


class KeyedOperator:
    """An operator that runs a processor; subclasses decide how they call it."""

    compares_with_watermark = True
    """Whether late rows are older than the watermark of this epoch, not of the one before."""

    def __init__(self, name: OperatorName, schemas: Schemas, processor: object) -> None:
        self.name = name
        self.schemas = schemas
        self.keys = tuple(schemas.keys)
        self.fields = tuple(schemas.fields)
        self.initial = tuple(schemas.initial)
        self.output_schema = schemas.output
        self.event_time = schemas.event_time
        self.side_schemas = side_schemas(processor, self.fields, self.event_time)
        self._states = spec.state_specs(declarations(processor))
        self._key_types = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        fields = [pa.field(k.name, t) for k, t in zip(self.keys, self._key_types, strict=True)]
        self.tables: dict[str, TableLayout] = layout(fields, self._states)
        self._shared = SharedDeclarations(name, processor)
        self.program: Any = processor
        """What a worker needs, beside the name and the schemas, to make this operator."""

    def spec(self) -> dict[str, Any]:
        return spec.to_json(self.keys, self._states)

    def code(self) -> bytes:
        """What a worker needs to run it."""
        dumps: Any = cloudpickle.dumps
        return bytes(dumps((type(self), (self.name, self.schemas, self.program))))

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return watermark_us

    def no_rows(self) -> Input:
        nothing = np.empty(0, np.uint64)
        keys = tuple(pa.array([], key_type) for key_type in self._key_types)
        return Input(nothing, nothing, keys, np.empty(0, np.int32))

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return sweep_of(table, self._states, moment)

    def _is_late(self, rows: Input, moment: Moment) -> BoolArray | None:
        """Which rows are older than the watermark; a row without event time is not late."""
        if moment.watermark_us is None or not rows.num_rows:
            return None
        return late_mask(pc.less(rows.event_us, moment.watermark_us))

    def _arrived(self, rows: Input, is_broadcast: BoolArray | None, moment: Moment) -> Arrived:
        is_late = None if self.event_time is None else self._is_late(rows, moment)
        parts = divide(rows, is_broadcast, is_late)
        late = late_rows(rows, parts.late, self.fields) if len(parts.late) else None
        return Arrived(Arrivals(rows, parts.initial), Arrivals(rows, parts.rows), late)


def late_mask(older: Any) -> BoolArray:
    """A mask from a comparison of event times: a row without event time is not late."""
    mask: BoolArray = pc.fill_null(older, False).to_numpy(zero_copy_only=False)
    return mask
