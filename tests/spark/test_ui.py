"""The live page of a running query: the figures are the query's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from pyspark.sql import SparkSession
from tests.waiting import DEADLINE

import millrace as mr
from millrace.ui import Page

ROWS = 1000


def seen(page: Page) -> dict[str, Any]:
    """What the page says now."""
    page.watch.refresh()
    body: dict[str, Any] = httpx.get(
        page.url + "api/snapshot", trust_env=False, timeout=DEADLINE
    ).json()
    return body


def test_a_query_shows_its_epochs_and_its_end(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    keys = source.selectExpr("value % 50 AS k")
    counts = mr.stream(keys).key_by("k").aggregate(n=mr.count(), name="counts")
    query = counts.to("noop").start(str(tmp_path / "location"), parallelism=2)
    with query.ui() as page:
        try:
            while query.epoch < 3:
                assert not query.await_termination(timeout=1)
            running = seen(page)
            assert (running["state"], running["error"]) == ("running", "")
            assert [e["alive"] for e in running["executors"]] in ([], [True])
            query.rescale(3).wait(DEADLINE)
        finally:
            query.stop()
        ended = seen(page)
        # What was seen of Spark's figures while it ran stays.
        rows = [dict(zip(ended["columns"], row, strict=True)) for row in ended["points"]]
        page.watch._asked_at = float("-inf")
        marks = [mark["title"] for mark in seen(page)["marks"]]
    assert ended["state"] == "stopped"
    assert [row["epoch"] for row in rows] == list(range(1, query.epoch + 1))
    assert rows[0]["rows"] == ROWS
    assert all(row["took_ms"] > 0 for row in rows)
    assert rows[-1]["state_rows"] == 50
    assert (rows[0]["shards"], rows[-1]["shards"]) == (2, 3)
    assert ended["operators"][0] == {
        "name": "counts",
        "kind": "aggregate",
        "rows": 50,
        "bytes": rows[-1]["state_bytes"],
        "shards": 3,
        "watermark_ms": None,
        "late": 0,
        "evicted": 0,
    }
    assert marks == ["query started", "rescale 2 → 3", "query stopped"]
