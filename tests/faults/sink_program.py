"""A program that only writes batches to a sink with a marker, to be killed between any two steps.

    python -m tests.faults.sink_program SINK OPTIONS

OPTIONS is JSON. Without Spark, a life takes a second, so the tests can afford every point of every
sink.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from tests.targets import TableRows

from millrace.ddl import parse_schema
from millrace.spark.sinks import MarkedSink, make_sink
from millrace.types import arrow_schema

SCHEMA = parse_schema("k string, g int, n long")
KEY = ("k", "g")
ROWS = 2500
"""Of a batch: more than a sink sends at once."""
BATCHES = 3


def batch(batch_id: int) -> pa.Table:
    """Keys that the next batch has again, and some of its own."""
    first = batch_id * ROWS // 2
    keys = [None if i == 0 else f"k{first + i}" for i in range(ROWS)]
    columns = [keys, [1] * ROWS, [batch_id * ROWS + i for i in range(ROWS)]]
    return pa.table(columns, schema=arrow_schema(SCHEMA))


def write_all(name: str, options: dict[str, Any]) -> None:
    sink = make_sink(name, options)
    assert isinstance(sink, MarkedSink)
    sink.open(None, "q", SCHEMA)  # type: ignore[arg-type]
    for batch_id in range(BATCHES):
        if batch_id >= first_batch(sink) and not sink.has(batch_id):
            sink.write_rows(TableRows(batch(batch_id)), batch_id)


def first_batch(sink: MarkedSink) -> int:
    """The batch that a location would repeat: the last one that is in the sink."""
    return sink._find_last() or 0


if __name__ == "__main__":
    write_all(sys.argv[1], json.loads(sys.argv[2]))
