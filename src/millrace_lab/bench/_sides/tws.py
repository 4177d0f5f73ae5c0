"""PySpark's own keyed state: `transformWithState` in row mode, one counter per key, on RocksDB."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace_lab.bench._sides.engine import COUNTS, Engine, common_settings
from millrace_lab.bench._sides.rocksdb import STATE_SETTINGS, plain_session


class CountProcessor(StatefulProcessor):
    """As few state calls as it takes: one get and one update per key and epoch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        before = self._count.get()
        n = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((n,))
        yield Row(key=key[0], n=n)

    def close(self) -> None:
        pass


class TransformWithStateEngine(Engine):
    """`pyspark_tws`."""

    def __init__(self, workdir: Path, memory: str) -> None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {
            **common_settings(workdir, memory),
            **STATE_SETTINGS,
            "spark.python.unix.domain.socket.enabled": "true",
        }
        super().__init__(plain_session("pyspark-tws", settings), workdir)

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        counted = source.groupBy("key").transformWithState(
            statefulProcessor=CountProcessor(),
            outputStructType="key BIGINT, n BIGINT",
            outputMode="Update",
            timeMode="None",
        )
        writer = (
            counted.writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(folder))
        )
        return (writer.trigger(**trigger) if trigger else writer).start()

    def table(self, folder: Path) -> pa.Table:
        state = self.spark.read.format("statestore").option("stateVarName", "count")
        counts = state.load(str(folder)).selectExpr("key.key AS key", "value.n AS n").toArrow()
        return pa.table(counts.columns, names=["key", "n"]).cast(COUNTS)
