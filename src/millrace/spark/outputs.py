"""An operator's outputs on their way from a shard to their readers.

A shard returns one stream of Arrow batches. A single output travels unchanged. Several
share it: a row has a tag, and a struct column per output of which all but the tagged one are NULL.
Outputs that nobody reads are not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import types
from millrace.operators import Change, Operator
from millrace.operators.operator import MAIN_OUTPUT

OUTPUT_ROWS = 65536
"""Rows per record batch that goes back to Spark."""

_TAG = "_output"


def schema_of(operator: Operator, output: str) -> T.StructType:
    """The schema of one output."""
    return operator.output_schema if output == MAIN_OUTPUT else operator.side_schemas[output]


def sent_schema(operator: Operator, outputs: Sequence[str]) -> T.StructType:
    """The schema of what a shard sends."""
    if len(outputs) == 1:
        return schema_of(operator, outputs[0])
    fields = [T.StructField(_TAG, T.IntegerType())]
    for i, output in enumerate(outputs):
        # A row of another output has NULL here, and so in all fields.
        parts = [T.StructField(f.name, f.dataType) for f in schema_of(operator, output).fields]
        fields.append(T.StructField(f"_{i}", T.StructType(parts)))
    return T.StructType(fields)


def outgoing(
    operator: Operator, change: Change, outputs: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """What a shard sends: the rows of all outputs that are read, one output after the other."""
    tagged = None if len(outputs) == 1 else types.arrow_schema(sent_schema(operator, outputs))
    for number, output in enumerate(outputs):
        rows = change.output if output == MAIN_OUTPUT else change.sides.get(output)
        if rows is None:
            continue
        for start in range(0, rows.num_rows, OUTPUT_ROWS):
            batch = rows.slice(start, OUTPUT_ROWS)
            yield batch if tagged is None else _tagged(batch, number, tagged)


def _tagged(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    size = batch.num_rows
    columns = [pa.array(np.full(size, number, np.int32))]
    for i, sent in enumerate(list(schema)[1:]):
        if i == number:
            parts = [types.conform(c, f.type) for c, f in zip(batch, sent.type, strict=True)]
            columns.append(pa.StructArray.from_arrays(parts, fields=list(sent.type)))
        else:
            columns.append(pa.nulls(size, sent.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pick(sent: DataFrame, outputs: Sequence[str], output: str) -> DataFrame:
    """The rows of one output, from what the shards sent."""
    number = outputs.index(output)
    return sent.where(F.col(_TAG) == F.lit(number)).select(f"_{number}.*")
