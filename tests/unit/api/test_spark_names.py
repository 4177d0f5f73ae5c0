"""Spark's progress with the figures of Millrace's operators."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress

from millrace.api.spark_names import progress_of
from millrace.epoch.report import EpochReport, OperatorReport
from millrace.ids import Epoch, OperatorName

SOURCE = {
    "description": "files",
    "startOffset": "0",
    "endOffset": "1",
    "latestOffset": None,
    "numInputRows": 3,
    "inputRowsPerSecond": 1.0,
    "processedRowsPerSecond": 1.0,
    "metrics": {},
}
FIGURES: dict[str, Any] = {
    "id": "11111111-1111-1111-1111-111111111111",
    "runId": "22222222-2222-2222-2222-222222222222",
    "name": "visits",
    "timestamp": "2024-01-01T00:00:00.000Z",
    "batchId": 4,
    "batchDuration": 10,
    "durationMs": {"addBatch": 9},
    "eventTime": {"watermark": "2024-01-01T00:00:00.000Z"},
    "stateOperators": [],
    "sources": [SOURCE, {**SOURCE, "description": "idle"}],
    "sink": {"description": "a function", "numOutputRows": -1, "metrics": {}},
    "numInputRows": 3,
}


class Published:
    """What Spark publishes, as far as it is read."""

    json = json.dumps(FIGURES)


def report() -> EpochReport:
    operator = OperatorReport(
        shards=2,
        input_rows=3,
        num_rows_updated=2,
        num_rows_total=9,
        bytes_written=700,
        merged_rows=0,
        heap_bytes=4096,
        executors=["executor-0", "executor-0"],
        counters={"late": 1, "evicted": 4},
        shard_seconds={"apply": 0.0204, "segment": 0.003},
    )
    return EpochReport(Epoch(5), 4, 0.1, {}, {OperatorName("window-1"): operator}, None)


def test_operators_are_in_sparks_own_class() -> None:
    progress = progress_of(Published(), report(), own_sources=1)
    assert isinstance(progress, StreamingQueryProgress)
    assert [source.description for source in progress.sources] == ["files"]
    (operator,) = progress.stateOperators
    assert isinstance(operator, StateOperatorProgress)
    assert (operator.operatorName, operator.numRowsTotal) == ("window-1", 9)
    assert (operator.numRowsUpdated, operator.numRowsRemoved) == (2, 4)
    assert (operator.numRowsDroppedByWatermark, operator.memoryUsedBytes) == (1, 4096)
    assert (operator.allUpdatesTimeMs, operator.commitTimeMs) == (20, 3)
    assert (operator.numShufflePartitions, operator.numStateStoreInstances) == (2, 2)
    assert operator.customMetrics == {"late": 1, "evicted": 4, "bytesWritten": 700}
    assert json.loads(progress.json)["stateOperators"][0]["operatorName"] == "window-1"


def test_without_a_report_the_figures_are_sparks() -> None:
    progress = progress_of(Published(), None, own_sources=0)
    assert (progress.batchId, progress.stateOperators) == (4, [])
    assert len(progress.sources) == 2
