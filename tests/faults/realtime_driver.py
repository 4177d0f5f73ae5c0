"""A real-time query from Kafka to Kafka, as a program to be killed while rows come.

python -m tests.faults.realtime_driver SERVERS SOURCE TARGET LOCATION JARS TRIGGER

It feeds the source itself, so that every epoch has rows; what must be in the state in the end is in
the source.
"""

from __future__ import annotations

import sys
import threading

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.faults import driver

import millrace as mr
from millrace import clock

ROWS = 400
PAUSE = 0.01
SLOTS = 4
"""Two partitions of the source, two shards."""


def build(spark: SparkSession, servers: str, source: str, target: str) -> mr.StreamWriter:
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key as string) as k", "cast(cast(value as string) as long) as v")
    )
    totals = mr.stream(rows).key_by("k").aggregate(name="totals", n=mr.count(), total=mr.sum("v"))
    return totals.to("kafka", topic=target, servers=servers, key="k", exactly_once=False)


def feed(servers: str, source: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    dice = clock.dice("real time")
    for _ in range(ROWS):
        producer.produce(source, key=f"k{dice.randint(0, 20)}", value=str(dice.randint(-50, 50)))
        producer.flush()
        clock.sleep(PAUSE)


def main() -> None:
    servers, source, target, location, jars, trigger = sys.argv[1:]
    spark = driver.session(SLOTS, kafka=jars)
    feeder = threading.Thread(target=feed, args=(servers, source), daemon=True)
    feeder.start()
    query = build(spark, servers, source, target).start(location, parallelism=2, trigger=trigger)
    try:
        feeder.join()
        query.process_all_available()
    finally:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
