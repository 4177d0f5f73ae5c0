"""A query from Kafka to Kafka, as a program to be killed.

python -m tests.faults.kafka_driver SERVERS SOURCE TARGET LOCATION JARS

The source has one partition and is read in epochs of a fixed number of rows, so what each epoch
must write is known without Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from tests.faults import driver

import millrace as mr
from millrace.spark.kafka import add_connector

ROWS = 40
"""Rows of an epoch."""


def build(
    spark: SparkSession, servers: str, source: str, target: str, writers: int = 2
) -> mr.StreamWriter:
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS)
        .load()
        .selectExpr("cast(key as string) as k", "cast(cast(value as string) as long) as v")
    )
    totals = mr.stream(rows).key_by("k").aggregate(name="totals", n=mr.count(), total=mr.sum("v"))
    return totals.to(
        "kafka", topic=target, servers=servers, key="k", headers={"n": "n"}, writers=writers
    )


def expected(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keys and values of all records that the target must have, in order."""
    state: dict[str, tuple[int, int]] = {}
    written = []
    for start in range(0, len(rows), ROWS):
        changed = set()
        for key, value in rows[start : start + ROWS]:
            n, total = state.get(key, (0, 0))
            state[key] = n + 1, total + int(value)
            changed.add(key)
        for key in changed:
            n, total = state[key]
            written.append((key, f'{{"k":"{key}","n":{n},"total":{total}}}'))
    return sorted(written)


def main() -> None:
    servers, source, target, location, jars = sys.argv[1:]
    spark = driver.session()
    add_connector(spark, jars)
    query = build(spark, servers, source, target).start(location, parallelism=2)
    try:
        query.process_all_available()
    finally:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
