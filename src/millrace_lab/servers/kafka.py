"""Kafka: one broker in KRaft mode. `make servers` downloads it, and Spark's connector."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from millrace import clock
from millrace_lab.servers.places import free_port, installed, is_open
from millrace_lab.servers.running import ServerFailedError, running

_admin: Any = confluent_kafka.admin
"""Its parts are not among what the package declares."""

SHORT_LIFE = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A broker that is there for a test."""
LONG_LIFE = ("-Xmx512m", "-XX:+UseSerialGC")
"""One that is measured."""


def connector() -> Path:
    """The folder with the jars of Spark's connector."""
    return installed("kafka/complete").parent / "connector"


def _settings(folder: Path, port: int, controller: int) -> str:
    own = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": f"{folder}/data",
        # One broker, and many short tests.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in own.items())


@contextmanager
def kafka(folder: Path, jvm: Sequence[str] = SHORT_LIFE) -> Iterator[str]:
    """The address of a broker that runs meanwhile."""
    jars = installed("kafka/complete").parent / "broker"
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    settings.write_text(_settings(folder, port, controller))
    java = os.path.join(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")
    base = [java, *jvm, "-cp", f"{jars}/*"]
    # The tests' options are for Spark.
    environment = {"JAVA_TOOL_OPTIONS": ""}
    cluster = str(uuid.uuid4())
    subprocess.run(
        [*base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    command = [*base, "kafka.Kafka", str(settings)]
    with running(command, folder / "kafka.log", lambda: is_open(port), environment):
        yield f"127.0.0.1:{port}"


def create_topic(servers: str, name: str, partitions: int = 2, **config: str) -> None:
    admin = _admin.AdminClient({"bootstrap.servers": servers})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    for done in admin.create_topics(
        [_admin.NewTopic(name, partitions, 1, config=settings)]
    ).values():
        done.result()


def delete_topic(servers: str, name: str) -> None:
    admin = _admin.AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_topics([name], operation_timeout=60).values():
        done.result()
    # It leaves the list after it has left the cluster's metadata.
    while name in topics(servers):
        clock.sleep(0.05)


def topics(servers: str) -> set[str]:
    return set(_admin.AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics)


def alter_topic(servers: str, name: str, key: str, value: str) -> None:
    entry = _admin.ConfigEntry(key, value, incremental_operation=_admin.AlterConfigOpType.SET)
    resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, name, incremental_configs=[entry])
    admin = _admin.AdminClient({"bootstrap.servers": servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()


def produce(servers: str, topic: str, rows: Iterable[tuple[str, str]]) -> None:
    """Records of a key and a value."""
    producer = Producer({"bootstrap.servers": servers})
    for key, value in rows:
        producer.produce(topic, key=key.encode(), value=value.encode())
    if left := producer.flush(60):
        raise ServerFailedError(f"Kafka has not taken {left} records within a minute")


def committed(servers: str, topic: str) -> list[Message]:
    """Every record that a reader of committed transactions gets, partition by partition."""
    found = []
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        for partition in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            # The end is that of committed transactions: what follows an open one is behind it.
            while (message := _next(consumer)) is not None:
                found.append(message)
    finally:
        consumer.close()
    return found


def _next(consumer: Consumer) -> Message | None:
    """The next record; None at the end of the partition."""
    found: list[Message] = []
    while not found:
        found = consumer.consume(1, 0.2)
    error = found[0].error()
    if error is None:
        return found[0]
    if error.code() != KafkaError._PARTITION_EOF:
        raise ServerFailedError(f"Kafka: {error}")
    return None
