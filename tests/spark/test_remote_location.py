"""A query whose location is in a bucket: Spark's logs, the state and its readers, all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import support
from tests.waiting import until

import millrace as mr
from millrace.log import open_store
from millrace_lab.servers.proxy import Proxy

pytestmark = pytest.mark.xdist_group("s3")

AGGREGATES = {"n": mr.count(), "total": mr.sum("value")}
BUCKETS = ["moto_bucket", pytest.param("minio_bucket", marks=pytest.mark.stress)]
OUTAGE = [2, pytest.param(60, marks=pytest.mark.stress)]


def rows(epoch: int) -> list[tuple[str, int]]:
    return [(f"device-{i % 40}", i * epoch) for i in range(200)]


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("seconds", OUTAGE)
def test_a_query_in_a_bucket(
    spark: SparkSession,
    tmp_path: Path,
    network: Proxy,
    request: pytest.FixtureRequest,
    bucket: str,
    seconds: float,
) -> None:
    location = f"{request.getfixturevalue(bucket)}/streams/totals"
    folder = support.Folder(tmp_path / "in", "device string, value int")

    def start(parallelism: int) -> mr.Query:
        stream = mr.stream(folder.stream(spark)).key_by("device")
        totals = stream.aggregate(name="totals", **AGGREGATES)
        return totals.to("noop").start(location, parallelism=parallelism)

    def check(where: str) -> None:
        expected = support.batch_state(folder.batch(spark), ["device"], AGGREGATES)
        with mr.open(location) as reader:
            support.assert_same(reader.to_arrow(), expected, ["device"], where)

    folder.drop(rows(1))
    query = start(2)
    query.process_all_available()
    check("started")
    move = query.rescale(4)
    folder.drop(rows(2))
    query.process_all_available()
    move.wait()
    folder.drop(rows(3))
    query.process_all_available()
    check("rescaled")

    # The network goes away in the middle of everything, and comes back.
    before = query.epoch
    network.cut()
    folder.drop(rows(4))
    query.await_termination(timeout=seconds)
    assert query.is_active
    assert query.epoch == before
    network.mend()
    query.process_all_available()
    until(lambda: query.epoch > before, "an epoch after the outage")
    check("after the outage")
    query.stop()

    folder.drop(rows(5))
    again = start(1)
    again.process_all_available()
    again.stop()
    check("restarted")
    kept = open_store(location)
    assert kept.list("spark/offsets")
    assert kept.size("spark/metadata") is not None
    assert not [path for path in kept.list("") if path.endswith(".tmp")]
