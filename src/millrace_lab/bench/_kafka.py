"""Benchmarks between two topics of Kafka: the broker, who sends to it, who reads from it.

Every side answers an event with a record of its key: how many events of the key there were, and the
time of the last. So each event has a latency: from when it was handed to the producer's client to
when a reader of committed records has the first record of its key that includes it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.bench._benchmark import Benchmark, OptionsT
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._events import Answered, Sent, answered
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.servers import ServerFailedError, ServerMissingError, kafka

PARTITIONS = 2
PATIENCE = 120.0


class KafkaBenchmark(Benchmark[OptionsT]):
    """Sides between two topics, one after the other."""

    def run(self) -> Result:
        folder = self._workdir / "broker"
        folder.mkdir()
        try:
            with ExitStack() as stack:
                self._steps.step("starting Kafka")
                self._connector = str(kafka.connector())
                self._servers = stack.enter_context(kafka.kafka(folder, kafka.LONG_LIFE))
                open_side = stack.enter_context
                self._sender = open_side(SideProcess("kafka-producer", self._workdir))
                self._receiver = open_side(SideProcess("kafka-consumer", self._workdir))
                self._measure_sides()
        except ServerMissingError as error:
            raise BenchmarkError(f"there is no Kafka: {error}") from error
        except ServerFailedError as error:
            raise BenchmarkError(str(error)) from error
        self._conclude()
        return self._result

    @abstractmethod
    def _measure_sides(self) -> None:
        """All of them, with a broker and its clients."""

    @abstractmethod
    def _conclude(self) -> None:
        """Ratios and bars."""

    @contextmanager
    def _side(self, side: str) -> Iterator[SideProcess]:
        with SideProcess(f"kafka-{side}", self._workdir, memory="2g") as process:
            self._steps.step(f"{side}: starting")
            self._result.versions |= process.call("open", connector=self._connector)
            yield process

    @contextmanager
    def _started(self, process: SideProcess, name: str, **settings: Any) -> Iterator[str]:
        """A side's query between two new topics, and who reads the second; the first's name."""
        source, target = f"in-{name}", f"out-{name}"
        for topic in (source, target):
            kafka.create_topic(self._servers, topic, PARTITIONS)
        self._receiver.call("begin", servers=self._servers, topic=target, partitions=PARTITIONS)
        process.call("start", servers=self._servers, source=source, target=target, **settings)
        yield source
        for topic in (source, target):
            kafka.delete_topic(self._servers, topic)

    def _send(self, command: str, topic: str, **load: Any) -> Int64Array:
        """The times of the events that were sent."""
        stamps = self._workdir / "stamps.npy"
        self._sender.call(command, servers=self._servers, topic=topic, path=str(stamps), **load)
        times: Int64Array = np.load(stamps)
        return times

    def _await(self, process: SideProcess, number: int, patience: float = PATIENCE) -> bool:
        """Wait for answers to all events; whether they came."""
        until = time.monotonic() + patience
        while self._receiver.call("covered") < number:
            process.call("check")
            if time.monotonic() > until:
                return False
            time.sleep(0.25)
        return True

    def _answers(self, process: SideProcess, sent: Sent) -> Answered:
        """Stop, and look at what came of the events."""
        process.call("stop")
        records = self._workdir / "records.npy"
        self._receiver.call("end", path=str(records))
        return answered(sent, np.load(records))

    def _compare(self, label: str, found: Answered, *, complete: bool, once: bool) -> None:
        compare = self._result.compare
        compare(f"{label}: {found.wrong} records are not what the events make", not found.wrong)
        if complete:
            compare(f"{label}: not all events are in the output", found.is_complete)
        if once:
            compare(f"{label}: {found.repeated} records came twice", not found.repeated)


def why_not(options: object) -> str | None:
    """Why there is nothing to measure; None if there is."""
    try:
        kafka.connector()
    except ServerMissingError as error:
        return f"left out: there is no Kafka, {error}"
    return None
