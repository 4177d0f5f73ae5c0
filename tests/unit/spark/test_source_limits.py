"""Which batches took all that their sources give at once, from what Spark publishes and lists."""

from __future__ import annotations

import json
from typing import Any

from millrace import clock
from millrace.log import open_store, spark_logs
from millrace.log.store import Store
from millrace.spark.source_limits import ReadLimit, SourceLimits


def store() -> Store:
    return open_store(f"memory://limits-{clock.fresh_id()}")


def listed(store: Store, batch: int, files: int, *, name: str = "") -> None:
    """What Spark writes about the files of a batch."""
    lines = [json.dumps({"path": f"file:///{n}", "batchId": batch}) for n in range(files)]
    path = f"{spark_logs.SOURCES}/0/{name or batch}"
    store.create(path, "\n".join(["v1", *lines]).encode())


def progress(end: Any, latest: Any = None, rows: int = 10) -> dict[str, Any]:
    source = {"description": "s", "endOffset": end, "latestOffset": latest, "numInputRows": rows}
    return {"sources": [source]}


def test_files_are_counted() -> None:
    location = store()
    limits = SourceLimits(location, lambda: [ReadLimit(files=3)])
    listed(location, 0, 3)
    listed(location, 1, 2)
    assert limits.is_full(progress('{"logOffset":0}'))
    assert not limits.is_full(progress({"logOffset": 1}))
    # A batch without rows of this source has read none of its files.
    assert not limits.is_full(progress({"logOffset": 0}, rows=0))


def test_a_compacted_list_counts_as_the_batch_before() -> None:
    location = store()
    limits = SourceLimits(location, lambda: [ReadLimit(files=3)])
    listed(location, 1, 300, name="1.compact")
    assert not limits.is_full(progress({"logOffset": 1}))
    listed(location, 8, 3)
    listed(location, 9, 300, name="9.compact")
    assert limits.is_full(progress({"logOffset": 8}))
    assert limits.is_full(progress({"logOffset": 9}))


def test_rows_are_compared_with_their_limit() -> None:
    limits = SourceLimits(store(), lambda: [ReadLimit(rows=10)])
    assert limits.is_full(progress(7, rows=10))
    assert not limits.is_full(progress(8, rows=9))


def test_a_source_that_says_what_it_has_left_is_never_full() -> None:
    limits = SourceLimits(store(), lambda: [ReadLimit(rows=10)])
    assert not limits.is_full(progress({"t": {"0": 10}}, {"t": {"0": 90}}, rows=10))


def test_sources_without_a_limit_are_never_full() -> None:
    limits = SourceLimits(store(), lambda: [ReadLimit()])
    assert not limits.is_full(progress({"logOffset": 0}))
