"""Kafka: one broker in KRaft mode. `make servers` downloads it, and Spark's connector."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.servers.places import free_port, is_open, server
from tests.servers.running import running
from tests.waiting import until

JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def connector() -> Path:
    """The folder with the jars of Spark's connector."""
    return server("kafka/complete").parent / "connector"


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
def kafka(folder: Path) -> Iterator[str]:
    """The address of a broker that runs meanwhile."""
    jars = server("kafka/complete").parent / "broker"
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    settings.write_text(_settings(folder, port, controller))
    java = os.path.join(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")
    base = [java, *JVM, "-cp", f"{jars}/*"]
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
    admin = AdminClient({"bootstrap.servers": servers})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    for done in admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values():
        done.result()


def delete_topic(servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_topics([name], operation_timeout=60).values():
        done.result()
    # It leaves the list after it has left the cluster's metadata.
    until(lambda: name not in topics(servers), f"{name} deleted")


def topics(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics)


def alter_topic(servers: str, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()


def produce(servers: str, topic: str, rows: Iterable[tuple[str, str]]) -> None:
    """Records of a key and a value."""
    producer = Producer({"bootstrap.servers": servers})
    for key, value in rows:
        producer.produce(topic, key=key.encode(), value=value.encode())
    assert producer.flush(60) == 0


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
    until(lambda: found.extend(consumer.consume(1, 0.2)) or found, "a record, or the end")
    error = found[0].error()
    if error is None:
        return found[0]
    assert error.code() == KafkaError._PARTITION_EOF, error
    return None
