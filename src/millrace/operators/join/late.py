"""Late rows of the operators over two streams: an output beside the main one for each stream."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.operators.join.arrivals import Division
from millrace.operators.join.columns import Columns, struct_of
from millrace.operators.operator import Column
from millrace.operators.process.outputs import LATE

LATE_RIGHT = "late right rows"
"""Late rows of the right stream; those of the left one are `LATE`."""


def late_schemas(
    keys: Sequence[Column], left: Sequence[Column], right: Sequence[Column]
) -> dict[str, T.StructType]:
    """The outputs: the key's columns first, then the stream's others."""
    return {LATE: struct_of((*keys, *left)), LATE_RIGHT: struct_of((*keys, *right))}


def late_rows(
    schemas: dict[str, T.StructType],
    divided: Sequence[Division],
    keys: Columns,
    streams: Sequence[Columns],
) -> dict[str, pa.RecordBatch]:
    """The late rows of an epoch, as they came."""
    found = {}
    for name, of, columns in zip((LATE, LATE_RIGHT), divided, streams, strict=True):
        if len(of.late):
            arrays = [*keys.take(of.late), *columns.take(of.late)]
            schema = types.arrow_schema(schemas[name])
            found[name] = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return found


def counted(divided: Sequence[Division], evicted: int) -> dict[str, int]:
    """What `progress` says of an epoch's rows; nothing of what there were none."""
    counters = {
        "late": sum(len(of.late) for of in divided),
        "without_time": sum(of.without_time for of in divided),
        "evicted": evicted,
    }
    return {name: count for name, count in counters.items() if count}
