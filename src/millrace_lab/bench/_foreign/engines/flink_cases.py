"""Flink SQL in the cases of `millrace bench operators`, on heap or RocksDB.

Configured as `flink.FlinkSide` is. The number sequence is read in two halves at once, so row number
`p` is made of a number's place in its half: both readers go on in event time together. Each half
has a watermark ten seconds behind its own rows, and Flink takes the smaller one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from pyflink.common import WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment, Table, TableDescriptor

from .cases import BY_NAME, DELAY_S, columns_sql
from .flink import ENDLESS, MINI_BATCH, SOURCE, FlinkSide


class FlinkCases(FlinkSide):
    """`flink-operators-heap` and `flink-operators-rocksdb`."""

    def __init__(self, name: str, workdir: Path) -> None:
        super().__init__(name.replace("flink-operators", "flink-sql"), workdir)

    def do_output(self, case: str, keys: int, rows: int, minutes: int, path: str) -> int:
        """Write what a case emits of the first minutes."""
        emitted = self._case(case, rows * minutes, keys, rows).to_pandas()
        columns = []
        for name in BY_NAME[case].columns:
            column = emitted[name]
            if column.dtype.kind == "M":
                columns.append(column.to_numpy("datetime64[ms]").astype(np.int64))
            else:
                columns.append(column.fillna(-1).to_numpy(np.int64))
        np.save(path, np.stack(columns, axis=1))
        return len(emitted)

    def do_timed_case(
        self,
        case: str,
        keys: int,
        rows: int,
        warm: int,
        warm_s: float,
        windows: int,
        window_s: float,
    ) -> dict[str, Any]:
        """Windows of an endless job, after some minutes of event time."""
        table = self._case(case, ENDLESS, keys, rows)
        dropped = TableDescriptor.for_connector("blackhole").build()
        client = table.execute_insert(dropped).get_job_client()
        return self._measured(
            client, fill=warm * rows, warm_s=warm_s, windows=windows, window_s=window_s
        )

    def _case(self, case: str, number: int, keys: int, rows: int) -> Table:
        """A case over the first rows, of which there is an even number."""
        env = StreamExecutionEnvironment.get_execution_environment(self._configuration())
        t_env = StreamTableEnvironment.create(env)
        t_env.get_config().set("table.local-time-zone", "UTC")
        for key, value in MINI_BATCH.items():
            t_env.get_config().set(key, value)
        sequence = NumberSequenceSource(0, number - 1)
        numbers = env.from_source(sequence, WatermarkStrategy.no_watermarks(), SOURCE)
        half = number // 2
        place = f"(CASE WHEN f0 < {half} THEN f0 * 2 ELSE f0 * 2 - {number - 1} END)"
        columns = {
            name: re.sub(r"\bv\b", place, sql) for name, sql in columns_sql(rows, keys).items()
        }
        schema = Schema.new_builder().column("f0", "BIGINT")
        for name in ("p", "k", "amount"):
            schema = schema.column_by_expression(name, columns[name])
        schema = schema.column_by_expression("ts", f"TO_TIMESTAMP_LTZ({columns['ms']}, 3)")
        schema = schema.watermark("ts", f"ts - INTERVAL '{DELAY_S}' SECOND")
        t_env.create_temporary_view("events", numbers, schema.build())
        return t_env.sql_query(BY_NAME[case].flink)
