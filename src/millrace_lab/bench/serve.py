"""Look-ups: a server on one core, and a small client on another that loads it.

Every answer is compared with what was written. Times are the client's own, from the question to the
whole answer. The last part commits epochs and measures how long each takes to show up in answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import flight
from pyspark.sql import types as T

from millrace.arrays import Int64Array
from millrace.ids import OperatorName
from millrace.interchange.writing import OperatorState, Reached, StateWriter
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import Scheme
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._sides.statelog import StateLog
from millrace_lab.bench._sizes import size_name

NAME = OperatorName("totals")
WARM = 300
"""Questions that are not timed."""


@dataclass(frozen=True)
class Options:
    """What to measure."""

    keys: int = 1_000_000
    seconds: float = 8.0
    """For each load."""
    connections: int = 4
    batch: int = 10_000
    """Keys per batch over Flight."""
    epochs: int = 40
    changed: int = 10_000
    """Rows per epoch, while the server follows."""

    def quick(self) -> Options:
        return replace(self, keys=min(self.keys, 100_000), seconds=2.0, epochs=10)


@dataclass(frozen=True)
class Address:
    http: int
    flight: int


class Serve(Benchmark[Options]):
    """One run of the benchmark."""

    name = "serve"

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._location = str(workdir / "location")
        self._random = np.random.default_rng(7)

    def run(self) -> Result:
        options, result = self._options, self._result
        size = size_name(options.keys)
        self._steps.step(f"writing {size} keys")
        _write(self._location, options.keys)
        with server(self._location) as at:
            self._steps.step("one connection")
            times, _ = self._http(at, 1)
            p99 = result.figure(f"http_p99_ms.{size}", _percentile(times, 99))
            result.figure(f"http_p50_ms.{size}", _percentile(times, 50))
            self._steps.step(f"{options.connections} connections")
            times, seconds = self._http(at, options.connections)
            rate = result.figure(f"http_lookups_per_s.{size}", len(times) / seconds)
            result.figure(f"http_loaded_p99_ms.{size}", _percentile(times, 99))
            self._steps.step(f"Flight, {options.batch} keys a batch")
            keys = result.figure(f"flight_keys_per_s.{size}", self._flight(at))
            self._steps.step(f"{options.epochs} epochs while look-ups run")
            shown, times = self._following(at)
            slowest = result.figure(f"epoch_visible_ms.{size}", max(shown))
            result.figure(f"epoch_visible_p50_ms.{size}", statistics.median(shown))
            result.figure(f"http_following_p99_ms.{size}", _percentile(times, 99))
        if options.keys >= 1_000_000:
            result.at_least(f"http_lookups_per_s.{size}", rate, 2000)
            result.at_least(f"flight_keys_per_s.{size}", keys, 200_000)
            result.at_most(f"http_p99_ms.{size}", p99, 5)
            result.at_most(f"epoch_visible_ms.{size}", slowest, 200)
        return result

    def _http(self, at: Address, connections: int) -> tuple[list[float], float]:
        """Questions one after the other on some connections; their milliseconds, and the time."""
        keys = self._random.integers(0, self._options.keys, 1 << 16).tolist()

        async def load() -> tuple[list[float], float]:
            lanes = [Lane(at.http, keys[i::connections]) for i in range(connections)]
            for lane in lanes:
                await lane.open()
            await asyncio.gather(*(lane.ask(WARM) for lane in lanes))
            started = time.perf_counter()
            until = started + self._options.seconds
            times = await asyncio.gather(*(lane.ask(None, until) for lane in lanes))
            seconds = time.perf_counter() - started
            for lane in lanes:
                lane.close()
                self._result.compare("an answer over HTTP is not the state", lane.is_right)
            return [ms for lane_times in times for ms in lane_times], seconds

        return asyncio.run(load())

    def _flight(self, at: Address) -> float:
        asked = 0
        with flight.connect(("127.0.0.1", at.flight)) as client:
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(NAME))
            with writer:
                writer.begin(pa.schema([("key", pa.int64())]))
                started = time.perf_counter()
                while time.perf_counter() - started < self._options.seconds:
                    keys = self._random.integers(0, self._options.keys, self._options.batch)
                    writer.write_batch(pa.RecordBatch.from_arrays([pa.array(keys)], names=["key"]))
                    rows = reader.read_chunk().data
                    same = np.array_equal(rows.column("n").to_numpy(), _count(keys))
                    self._result.compare("an answer over Flight is not the state", same)
                    asked += len(keys)
                seconds = time.perf_counter() - started
                writer.done_writing()
        return asked / seconds

    def _following(self, at: Address) -> tuple[list[float], list[float]]:
        """Milliseconds from an epoch's commit to its first answer, and those of all look-ups."""
        log = StateLog()
        log.do_begin(self._location, self._options.changed, 7)

        async def follow() -> tuple[list[float], list[float]]:
            lane = Lane(at.http, self._random.integers(0, self._options.keys, 1 << 16).tolist())
            lane.is_static = False
            await lane.open()
            await lane.ask(WARM)
            shown, times = [], []
            epoch = lane.epoch
            for _ in range(self._options.epochs):
                committed = asyncio.create_task(asyncio.to_thread(_timed, log))
                while not committed.done():
                    times += await lane.ask(1)
                epoch += 1
                while lane.epoch < epoch:
                    times += await lane.ask(1)
                shown.append(max(lane.answered - committed.result(), 0) * 1000)
            lane.close()
            return shown, times

        return asyncio.run(follow())


def _timed(log: StateLog) -> float:
    log.do_measure(1)
    return time.perf_counter()


class Lane:
    """One connection, with one question under way at a time."""

    def __init__(self, port: int, keys: list[int]) -> None:
        self._port = port
        self._keys = keys
        self._at = 0
        self.is_static = True
        """Whether no key has changed since the state was written."""
        self.is_right = True
        self.epoch = 0
        self.answered = 0.0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, number: int | None, until: float = 0.0) -> list[float]:
        """A number of questions, or all until a time; milliseconds of each."""
        times: list[float] = []
        while number is None or len(times) < number:
            key = self._keys[self._at % len(self._keys)]
            self._at += 1
            started = time.perf_counter()
            if number is None and started >= until:
                break
            answer = await self._one(key)
            self.answered = time.perf_counter()
            times.append((self.answered - started) * 1000)
            self.epoch = answer["epoch"]
            row = answer["row"]
            expected = int(_count(np.asarray([key]))[0])
            right = row["n"] == expected if self.is_static else row["n"] >= expected
            self.is_right &= row["key"] == key and right
        return times

    async def _one(self, key: int) -> dict[str, Any]:
        self._writer.write(
            b"GET /v1/totals?key=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % key,
        )
        return await answered(self._reader)


async def answered(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next answer of the server."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise BenchmarkError(f"the server answered {head.decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(await reader.readexactly(int(length[1])))
    return answer


def _count(keys: Int64Array) -> Int64Array:
    """What the state has for keys before anything is added."""
    return keys % 97 + 1


def _write(location: str, keys: int) -> None:
    specs = [AggregateSpec("n", "count", "*", T.IntegerType(), ())]
    operator = AggregateOperator(NAME, [Column("key", T.LongType())], specs)
    numbers = np.arange(keys, dtype=np.int64)
    scheme = Scheme.fresh()
    hi, lo = fingerprints([pa.array(numbers)], scheme)
    content = {
        "_hi": pa.array(hi),
        "_lo": pa.array(lo),
        "_deleted": pa.array(np.zeros(keys, np.bool_)),
        "key": pa.array(numbers),
        "n": pa.array(_count(numbers)),
    }
    writer = StateWriter(location, 256, 2, scheme)
    writer.operator(NAME, OperatorState(operator.spec(), {"": pa.table(content)}))
    writer.commit(Reached(batch_id=0))


@contextmanager
def server(location: str) -> Iterator[Address]:
    """`millrace serve` in a process of its own, on a core of its own if there are two."""
    command = [sys.executable, "-m", "millrace.cli", "serve", location]
    process = subprocess.Popen(
        [*command, "--port", "0", "--flight-port", "0"], stderr=subprocess.PIPE, text=True
    )
    mine = os.sched_getaffinity(0)
    try:
        if len(mine) > 1:
            core = max(mine)
            for thread in psutil.Process(process.pid).threads():
                os.sched_setaffinity(thread.id, {core})
            os.sched_setaffinity(0, mine - {core})
        assert process.stderr is not None
        printed = "".join(process.stderr.readline() for _ in range(3))
        ports = re.findall(r"127\.0\.0\.1:(\d+)", printed)
        if len(ports) != 2:
            raise BenchmarkError(f"the server did not start: {printed}{process.stderr.read()}")
        yield Address(*map(int, ports))
    finally:
        os.sched_setaffinity(0, mine)
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _percentile(times: list[float], percent: float) -> float:
    return float(np.percentile(times, percent))


run = Serve.measure
