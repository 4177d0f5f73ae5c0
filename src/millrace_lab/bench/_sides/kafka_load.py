"""The two ends of `bench end-to-end` and `realtime`, in processes of their own: who produces, who
consumes.

Event `i` has the key `key_of(i)`, and as its value the time at which it was handed to Kafka's
client, in microseconds. One client sends all events, so those of a key are in order. The consumer
reads committed records only, and notes when it got them: a record is there when its reader can have
it.
"""

from __future__ import annotations

import threading
import time
import uuid

import numpy as np
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millrace.arrays import Int64Array

LINGER_MS = 1
SLICE = 0.005
"""Seconds between which events are sent together."""
TAKEN = 5_000
"""The most records of one call."""


def key_of(numbers: Int64Array, keys: int) -> Int64Array:
    """The key of each event: well spread, and the same everywhere."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    spread: Int64Array = ((mixed >> np.uint64(33)) % np.uint64(keys)).astype(np.int64)
    return spread


class Sender:
    """`kafka-producer`."""

    def do_ready(self) -> str:
        return "ready"

    def do_send(
        self, servers: str, topic: str, rate: int, seconds: float, keys: int, path: str
    ) -> int:
        """Send events at a rate for some seconds, however many are waiting; writes their times."""
        number = int(rate * seconds)
        chosen = key_of(np.arange(number), keys)
        return self._send(servers, topic, chosen, keys, float(rate), path)

    def do_load(self, servers: str, topic: str, keys: int, path: str) -> int:
        """Send one event of each key, as fast as the client takes them; writes their times."""
        return self._send(servers, topic, np.arange(keys), keys, None, path)

    def do_burst(self, servers: str, topic: str, number: int, keys: int, path: str) -> int:
        """Send events as fast as the client takes them; writes their times."""
        return self._send(servers, topic, key_of(np.arange(number), keys), keys, None, path)

    def _send(
        self,
        servers: str,
        topic: str,
        chosen: Int64Array,
        keys: int,
        rate: float | None,
        path: str,
    ) -> int:
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": LINGER_MS,
                "queue.buffering.max.messages": 2_000_000,
            }
        )
        names = [str(key).encode() for key in range(keys)]
        listed, number = chosen.tolist(), len(chosen)
        stamps: Int64Array = np.zeros(number, np.int64)
        sent, started = 0, time.perf_counter()
        while sent < number:
            if rate is None:
                due = min(number, sent + TAKEN)
            else:
                due = min(number, int((time.perf_counter() - started) * rate) + 1)
            for event in range(sent, due):
                stamp = time.time_ns() // 1000
                stamps[event] = stamp
                producer.produce(topic, str(stamp).encode(), names[listed[event]])
            sent = max(sent, due)
            producer.poll(0 if rate is None else SLICE)
        left = producer.flush(120)
        if left:
            raise RuntimeError(f"Kafka has not taken {left} of {number} events within two minutes")
        np.save(path, stamps)
        return number

    def close(self) -> None:
        pass


class Receiver:
    """`kafka-consumer`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def do_ready(self) -> str:
        return "ready"

    def do_begin(self, servers: str, topic: str, partitions: int) -> None:
        """Consume from now on, until `end`."""
        self._stopped = threading.Event()
        self._taken: list[tuple[int, list[bytes], list[bytes]]] = []
        """When some records came, their keys and their values."""
        self._counted = 0
        self._last: dict[bytes, int] = {}
        self._failed: BaseException | None = None
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # The broker answers as soon as it has a record.
                "fetch.wait.max.ms": 500,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._thread = threading.Thread(target=self._consume, args=(consumer,), daemon=True)
        self._thread.start()

    def _consume(self, consumer: Consumer) -> None:
        try:
            while not self._stopped.is_set():
                first = consumer.poll(0.1)
                if first is None:
                    continue
                records = [first, *consumer.consume(TAKEN, 0)]
                at = time.time_ns() // 1000
                for record in records:
                    if record.error() is not None:
                        raise KafkaException(record.error())
                keys = [record.key() or b"" for record in records]
                self._taken.append((at, keys, [record.value() or b"" for record in records]))
        except BaseException as error:
            self._failed = error
        finally:
            consumer.close()

    def do_covered(self) -> int:
        """How many events the records so far are about: the sum of the last count of every key."""
        self._check()
        for _, keys, values in self._taken[self._counted :]:
            self._counted += 1
            for key, value in zip(keys, values, strict=True):
                number = int(value.partition(b",")[0])
                self._last[key] = max(self._last.get(key, 0), number)
        return sum(self._last.values())

    def do_end(self, path: str) -> int:
        """Stop, and write all records: key, count, stamp, and when they came; how many."""
        self._stopped.set()
        assert self._thread is not None
        self._thread.join()
        self._check()
        rows = [
            (int(key), *map(int, value.split(b",")), at)
            for at, keys, values in self._taken
            for key, value in zip(keys, values, strict=True)
        ]
        np.save(path, np.asarray(rows, np.int64).reshape(-1, 4))
        return len(rows)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        pass
