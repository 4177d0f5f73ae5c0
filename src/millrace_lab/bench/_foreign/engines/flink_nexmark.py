"""Flink SQL in the queries of `millrace bench nexmark`, on heap.

Configured as `flink.FlinkSide` is. The events, and each query, are SQL that comes with the command:
`ms` is the time of event number `v`, and `views` has, for each kind of events, its condition and
its columns. The number sequence is read in two halves at once, so `v` is made of a number's place
in its half: both readers go on in event time together, each with a watermark of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pyflink.common import WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment, Table, TableDescriptor

from .flink import ENDLESS, MINI_BATCH, SOURCE, FlinkSide


class FlinkNexmark(FlinkSide):
    """`flink-nexmark-heap`."""

    def __init__(self, name: str, workdir: Path) -> None:
        super().__init__(name.replace("flink-nexmark", "flink-sql"), workdir)

    def do_answer(
        self, sql: str, ms: str, views: dict[str, Any], delay_s: int, number: int, path: str
    ) -> int:
        """Write the answer of a query over the first events, with times in microseconds."""
        # Flink applies the changes of a query that has some.
        found = self._query(sql, ms, views, delay_s, number).to_pandas()
        columns = []
        for name in found:
            column = found[name]
            if column.dtype.kind == "M":
                plain = column.dt.tz_localize(None)
                column = plain.astype("datetime64[us]").astype("int64")
            columns.append(column.tolist())
        rows = list(zip(*columns, strict=True))
        Path(path).write_text(json.dumps(rows))
        return len(rows)

    def do_timed_query(
        self,
        sql: str,
        ms: str,
        views: dict[str, Any],
        delay_s: int,
        fill: int,
        warm_s: float,
        windows: int,
        window_s: float,
    ) -> dict[str, Any]:
        """Windows of an endless job, after this many events."""
        table = self._query(sql, ms, views, delay_s, ENDLESS)
        dropped = TableDescriptor.for_connector("blackhole").build()
        client = table.execute_insert(dropped).get_job_client()
        return self._measured(client, fill=fill, warm_s=warm_s, windows=windows, window_s=window_s)

    def _query(self, sql: str, ms: str, views: dict[str, Any], delay_s: int, number: int) -> Table:
        """A query over the first events, of which there is an even number."""
        env = StreamExecutionEnvironment.get_execution_environment(self._configuration())
        t_env = StreamTableEnvironment.create(env)
        t_env.get_config().set("table.local-time-zone", "UTC")
        for key, value in MINI_BATCH.items():
            t_env.get_config().set(key, value)
        sequence = NumberSequenceSource(0, number - 1)
        numbers = env.from_source(sequence, WatermarkStrategy.no_watermarks(), SOURCE)
        place = f"CASE WHEN f0 < {number // 2} THEN f0 * 2 ELSE f0 * 2 - {number - 1} END"
        # A computed column may not name another.
        over = re.sub(r"\bv\b", f"({place})", ms)
        schema = (
            Schema.new_builder()
            .column("f0", "BIGINT")
            .column_by_expression("v", place)
            .column_by_expression("ts", f"TO_TIMESTAMP_LTZ({over}, 3)")
            .watermark("ts", f"ts - INTERVAL '{delay_s}' SECOND")
        )
        t_env.create_temporary_view("events", numbers, schema.build())
        for kind, (condition, columns) in views.items():
            chosen = ", ".join(f"{made} AS `{name}`" for name, made in columns.items())
            t_env.execute_sql(
                f"CREATE TEMPORARY VIEW {kind} AS "
                f"SELECT v AS event_id, ts, {chosen} FROM events WHERE {condition}"
            )
        return t_env.sql_query(sql)
