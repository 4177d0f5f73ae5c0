"""A query in one local session that scales itself, exactly; real executors are in tests/faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.faults.autoscaled import HIGH, LOW, Producer, Summed, compared, rows_of
from tests.waiting import until

import millrace as mr
from millrace.errors import AutoscaleError


@pytest.mark.stress
def test_a_query_scales_itself_and_stays_exact(spark: SparkSession, tmp_path: Path) -> None:
    location, output = str(tmp_path / "location"), str(tmp_path / "output")
    producer = Producer(tmp_path / "inbox")
    try:
        query = (
            mr.stream(rows_of(spark, tmp_path / "inbox"))
            .key_by("k")
            .process(Summed(), "k long, value long, n long, total long", name="summed")
            .to("parquet", path=output)
            .start(
                location,
                key_groups=32,
                autoscale=mr.autoscale(max=8, cool_down="1 second", settle="4 seconds"),
            )
        )

        producer.follow(query)

        def has(shards: int) -> bool:
            assert query.is_active, query.exception()
            return query.assignment()["summed"].shards == shards

        assert has(1)
        until(lambda: query.scaling().seen is not None, "some epochs")
        producer.rate = HIGH
        # The session has two cores, so there are no more than two shards.
        until(lambda: has(2), "two shards")
        until(lambda: any(d.blocked for d in query.scaling().decisions), "no more to be had")
        producer.rate = LOW
        until(lambda: has(1), "one shard")
    finally:
        producer.close()
    query.process_all_available()
    scaling = query.scaling()
    query.stop()
    changes = [d for d in scaling.decisions if d.action == "rescale"]
    assert changes[0].parallelism == {"summed": 2}
    # What was left over at the end may have been a load of its own.
    assert {"summed": 1} in [d.parallelism for d in changes]
    assert any("2 cores and gives no more" in d.reason for d in scaling.decisions)
    result = compared(location, output, producer.written)
    assert result["state_equal"], result
    assert result["outputs_equal"], result


@pytest.mark.stress
def test_a_query_without_it_says_so(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate").load().selectExpr("value % 3 as k")
    counts = mr.stream(source).key_by("k").aggregate(n=mr.count())
    query = counts.to("noop").start(str(tmp_path / "location"))
    try:
        assert not query.is_autoscaled
        with pytest.raises(AutoscaleError, match="started without autoscale="):
            query.scaling()
    finally:
        query.stop()
