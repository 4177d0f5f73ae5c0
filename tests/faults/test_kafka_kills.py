"""From Kafka to Kafka: whatever is killed in between, a reader of committed rows sees each once."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from pyspark.sql import SparkSession
from tests import processes
from tests.faults import driver, kafka_driver
from tests.waiting import DEADLINE

import millrace as mr
from millrace import hooks
from millrace.errors import SinkError
from millrace_lab.faults import crashes
from millrace_lab.servers import kafka

EPOCHS = 3
CRASH_EPOCH = 2

pytestmark = pytest.mark.stress


class Topics:
    """A source with rows of a few keys, and an empty target."""

    def __init__(self, servers: str, location: Path | str, writers: int = 2) -> None:
        self.servers, self.location, self._writers = servers, location, writers
        name = uuid.uuid4().hex[:8]
        self.source, self.target = f"in-{name}", f"out-{name}"
        kafka.create_topic(servers, self.source, 1)
        kafka.create_topic(servers, self.target, 3)
        rng = random.Random(7)
        self.rows = [
            (f"k{rng.randint(0, 12)}", str(rng.randint(-50, 50)))
            for _ in range(EPOCHS * kafka_driver.ROWS)
        ]

    def feed(self, rows: Sequence[tuple[str, str]]) -> None:
        kafka.produce(self.servers, self.source, rows)

    def query(self, spark: SparkSession) -> mr.StreamWriter:
        topics = self.servers, self.source, self.target
        return kafka_driver.build(spark, *topics, self._writers)

    def finish(self, spark: SparkSession, parallelism: int = 3) -> None:
        """The last life, in this process, with other shards than those before."""
        query = self.query(spark).start(str(self.location), parallelism=parallelism)
        try:
            query.process_all_available()
        finally:
            query.stop()

    def die_at(self, crash: str, log: Path) -> None:
        program = processes.start(
            "tests.faults.kafka_driver",
            self.servers,
            self.source,
            self.target,
            self.location,
            kafka.connector(),
            log=log,
            **crashes.environment(crash),
        )
        code = program.wait()
        assert code == -signal.SIGKILL, f"ended with {code} instead of dying:\n{program.output()}"
        program.assert_nobody_survives()

    def written(self) -> list[tuple[str, str]]:
        messages = kafka.committed(self.servers, self.target)
        found = []
        for message in messages:
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            found.append((key.decode(), value.decode()))
        return sorted(found)

    def assert_exact(self) -> None:
        assert self.written() == kafka_driver.expected(self.rows)


@pytest.mark.parametrize("point", crashes.DRIVER_POINTS)
def test_killed_once(spark: SparkSession, broker: str, tmp_path: Path, point: str) -> None:
    topics = Topics(broker, tmp_path / "location")
    topics.feed(topics.rows)
    topics.die_at(f"{point}@{CRASH_EPOCH}", tmp_path / "log")
    assert len(topics.written()) < len(kafka_driver.expected(topics.rows))
    topics.finish(spark)
    topics.assert_exact()


def test_killed_and_rescaled_with_state_on_s3(
    spark: SparkSession, broker: str, moto_bucket: str, tmp_path: Path
) -> None:
    topics = Topics(broker, f"{moto_bucket}/location")
    topics.feed(topics.rows)
    topics.die_at(f"{hooks.AFTER_SINK}@{CRASH_EPOCH}", tmp_path / "log")
    query = topics.query(spark).start(str(topics.location), parallelism=1)
    move = query.rescale(3)
    query.process_all_available()
    move.wait(DEADLINE)
    query.stop()
    topics.assert_exact()
    assert mr.open(str(topics.location)).batch_id == EPOCHS - 1


def test_a_batch_that_is_half_written_is_completed(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """A broker refuses a record of the last writer; then come other shards."""
    # The session runs two tasks at a time, so the last of four begins when two have ended.
    topics = Topics(broker, tmp_path / "location", writers=4)
    first = topics.rows[: kafka_driver.ROWS]
    topics.feed(first)
    topics.finish(spark, 2)
    assert topics.written() == kafka_driver.expected(first)
    kafka.alter_topic(broker, topics.target, "max.message.bytes", "2000")
    long = next(key for key in _long_keys() if _writer(spark, key, 4) == 3)
    second = [*topics.rows[kafka_driver.ROWS : 2 * kafka_driver.ROWS - 1], (long, "1")]
    topics.rows = [*first, *second]
    topics.feed(second)
    with pytest.raises(SinkError, match=r"RecordTooLargeException.*start the query again"):
        topics.finish(spark, 2)
    expected = kafka_driver.expected(topics.rows)
    half = topics.written()
    assert len(kafka_driver.expected(first)) < len(half) < len(expected)
    kafka.alter_topic(broker, topics.target, "max.message.bytes", "100000")
    topics.finish(spark, 3)
    topics.assert_exact()


def _long_keys() -> Iterator[str]:
    for number in itertools.count():
        yield "long" * 500 + str(number)


def _writer(spark: SparkSession, key: str, writers: int) -> int:
    rows = spark.sql(f"select pmod(xxhash64(cast('{key}' as binary)), {writers}) as writer")
    return int(rows.collect()[0].writer)


def test_a_writer_of_before_is_fenced(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """A transaction of an earlier life is still open, and its writer comes back to commit it."""
    topics = Topics(broker, tmp_path / "location")
    topics.feed(topics.rows)
    query = topics.query(spark)
    driver.finish(query, tmp_path / "location")
    topics.assert_exact()
    (note,) = (tmp_path / "location" / "sinks").iterdir()
    markers = note.name.removeprefix("kafka-").removesuffix(".json")
    zombies = []
    for number in range(2):
        settings = {"bootstrap.servers": broker, "transactional.id": f"{markers}-{number}"}
        zombie = Producer(settings)
        zombie.init_transactions(60)
        zombie.begin_transaction()
        zombie.produce(topics.target, key=b"zombie", value=b"of an earlier life")
        zombie.flush(60)
        zombies.append(zombie)
    more = topics.rows[: kafka_driver.ROWS]
    topics.rows = [*topics.rows, *more]
    topics.feed(more)
    # This process still has writers of before, which the zombies have fenced; it must not use them.
    topics.finish(spark)
    for zombie in zombies:
        with pytest.raises(KafkaException):
            zombie.commit_transaction(60)
    topics.assert_exact()


def test_a_location_that_was_restored_is_behind_its_topic(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topics = Topics(broker, tmp_path / "location")
    for number in range(EPOCHS):
        start = number * kafka_driver.ROWS
        topics.feed(topics.rows[start : start + kafka_driver.ROWS])
        topics.finish(spark)
        if number == 0:
            shutil.copytree(tmp_path / "location", tmp_path / "backup")
    topics.assert_exact()
    shutil.rmtree(tmp_path / "location")
    shutil.copytree(tmp_path / "backup", tmp_path / "location")
    with pytest.raises(SinkError, match=r"has batch 2 .* already.*restored from a backup"):
        topics.finish(spark)
    topics.assert_exact()
