"""Thousands of small epochs with everything open that can be: what grows, and how fast.

A keyed count runs back to back. Beside it are open, from the first epochs to the last: a reader
that refreshes, one that stays at its epoch, one that reads the location as if it were remote (its
copies of segments are in the cache folder), `query.sql`, a view, `millrace serve` with look-ups,
and the live page, which is polled. Every few epochs a sample is taken: the files of the location by
folder and of the cache folder, and memory, threads and open files of each process.

Each series is compared in two parts of the run, `.first` (a tenth to a half of the samples) and
`.last` (the last quarter), by their medians; `.slope` is the rise per 1,000 epochs from `.first`'s
begin to the end, by least squares. `grown.counts` and `grown.memory` are how many series grew
beyond their slack, and the steps of the run name them. Files rise and fall between two collections,
and the JVM's memory between garbage collections, so the slack is not zero. Marks of collected
epochs (`files.collected`) do grow; `marks` compares them with their bound at the last epoch.

- `files.*`: files below each folder of the location, and `files.cache` on this machine.
- `driver.*`, `jvm.*`, `workers.*`, `serve.*`: resident memory without mapped files in MB, threads,
  and descriptors; of the Python workers their sum, and `workers.processes`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr
from millrace.ids import Epoch
from millrace.log.copies import VARIABLE
from millrace.log.marks import most_marks
from millrace.reading.reader import Reader
from millrace_lab import processes
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.local_session import local_settings

NAME = "endurance"
OPERATOR = "counts"
VIEW = "summary"
MB = 1e6
MARKS = "files.collected"
POLL_SECONDS = 0.5
"""As often as the page in a browser."""
COUNT_SLACK = 1.1, 8.0
"""What a count may grow by: a factor, plus a constant."""
MEMORY_SLACK = 1.15, 32.0
"""The same for megabytes."""

Sample = dict[str, float]


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    epochs: int = 5000
    rows: int = 500
    keys: int = 20_000
    sample_every: int = 25
    """Epochs between two samples."""
    retain_epochs: int = 20
    timelines: Path | None = None
    """Where the samples go."""

    def quick(self) -> Options:
        return replace(self, epochs=min(self.epochs, 150), sample_every=5)


class Endurance:
    """One run of the benchmark, on a session and with a cache folder of its own."""

    def __init__(self, spark: SparkSession, options: Options, workdir: Path, steps: Steps) -> None:
        self._spark = spark
        self._options = options
        self._workdir = workdir
        self._steps = steps
        self._location = str(workdir / "location")
        self._cache = Path(os.environ[VARIABLE])
        self._result = Result(NAME)
        self._failures: list[BaseException] = []
        self.samples: list[Sample] = []

    def run(self) -> Result:
        query = self._start()
        try:
            self._await_epoch(query, 3)
            with ExitStack() as opened:
                self._live(query, opened)
        finally:
            query.stop()
        self._compare_end(query)
        self._report()
        return self._result

    def _start(self) -> mr.Query:
        o = self._options
        rows = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", o.rows)
            .option("numPartitions", 2)
            .load()
        )
        keyed = rows.selectExpr(f"pmod(xxhash64(value), {o.keys}) as key")
        counted = mr.stream(keyed).key_by("key").aggregate(name=OPERATOR, n=mr.count())
        return counted.to("noop").start(
            self._location, parallelism=2, retain_epochs=o.retain_epochs
        )

    def _live(self, query: mr.Query, opened: ExitStack) -> None:
        """Open everything, and use it until the last epoch."""
        sql = f"select count(*) as keys, sum(n) as rows from {OPERATOR}"
        query.view(VIEW, sql)
        page = opened.enter_context(query.ui())
        address, served = opened.enter_context(_serving(f"local://{self._location}"))
        staying = opened.enter_context(mr.open(self._location))
        following = opened.enter_context(mr.open(self._location))
        remote = opened.enter_context(mr.open(f"local://{self._location}"))
        http = opened.enter_context(httpx.Client(trust_env=False, timeout=60))
        opened.enter_context(self._polling(page.url))
        seen = staying.sql(sql)
        o = self._options
        sampled = 0
        while query.epoch < o.epochs:
            self._check(query)
            epoch = query.epoch
            for reader in (following, remote):
                self._total(reader, sql)
            query.sql(sql)
            self._look_up(http, address, epoch)
            self._result.compare("a reader that stays sees other rows", staying.sql(sql) == seen)
            if epoch >= sampled + o.sample_every:
                sampled = epoch
                self._steps.step(f"epoch {epoch} of {o.epochs}")
                self.samples.append(self._sample(epoch, served))
            time.sleep(0.2)
        self._compare_servings(query, http, address, sql)

    def _total(self, reader: Reader, sql: str) -> pa.Table:
        """Refresh a reader and read all of its state."""
        epoch = reader.refresh()
        found = reader.sql(sql)
        rows = found.column("rows")[0].as_py()
        self._result.compare(
            f"epoch {epoch} has {rows} rows counted", rows == epoch * self._options.rows
        )
        return found

    def _look_up(self, http: httpx.Client, address: str, epoch: int) -> None:
        answer = http.get(f"{address}/v1/{OPERATOR}", params={"key": str(epoch % 100)}).json()
        self._result.compare(f"a look-up answered {answer}", "epoch" in answer)

    def _compare_servings(
        self, query: mr.Query, http: httpx.Client, address: str, sql: str
    ) -> None:
        """At the last epoch, all of them say the same."""
        query.stop()
        epoch = int(query.epoch)
        keys = [{"key": key} for key in range(100)]
        with mr.open(self._location) as reader:
            wanted = reader.get(list(range(100)))["n"].to_pylist()
            total = self._total(reader, sql)
        while True:
            answer = http.post(f"{address}/v1/{OPERATOR}/lookup", json={"keys": keys}).json()
            if answer["epoch"] == epoch:
                break
            time.sleep(0.05)
        found = [row and row["n"] for row in answer["rows"]]
        self._result.compare("what is served is not the state", found == wanted)
        view = mr.open(self._location).view(VIEW)
        self._result.compare(
            "the view is not the state", view.epoch == epoch and view.rows == total
        )

    def _compare_end(self, query: mr.Query) -> None:
        with mr.open(self._location) as reader:
            counted = reader.sql(f"select sum(n) as rows from {OPERATOR}")["rows"][0].as_py()
        rows = int(query.epoch) * self._options.rows
        self._result.compare("rows are missing, or counted twice", counted == rows)

    def _await_epoch(self, query: mr.Query, epoch: int) -> None:
        while query.epoch < epoch:
            self._check(query)
            time.sleep(0.05)

    def _check(self, query: mr.Query) -> None:
        if not query.is_active:
            raise BenchmarkError(f"the query has ended: {query.exception()}")
        if self._failures:
            raise BenchmarkError(f"the page cannot be polled: {self._failures[0]}")

    @contextmanager
    def _polling(self, url: str) -> Iterator[None]:
        """As a browser that has the page open, and Prometheus."""
        stop = threading.Event()

        def poll() -> None:
            last = 0
            with httpx.Client(trust_env=False, timeout=60) as http:
                while not stop.wait(POLL_SECONDS):
                    try:
                        given = http.get(f"{url}api/snapshot", params={"after": max(0, last - 20)})
                        last = given.raise_for_status().json()["epoch"]
                        http.get(f"{url}metrics").raise_for_status()
                    except (httpx.HTTPError, ValueError) as error:
                        self._failures.append(error)
                        return

        thread = threading.Thread(target=poll, name="endurance-page")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # Samples.

    def _sample(self, epoch: int, served: int) -> Sample:
        found: Sample = {"epoch": epoch}
        for folder, number in sorted(_files(Path(self._location)).items()):
            found[f"files.{folder}"] = number
        found["files.cache"] = sum(_files(self._cache).values())
        java, workers = _spark_processes()
        for role, pids in (
            ("driver", [os.getpid()]),
            ("jvm", java),
            ("workers", workers),
            ("serve", [served]),
        ):
            for name, value in _used(pids).items():
                found[f"{role}.{name}"] = value
        found["workers.processes"] = len(workers)
        return found

    def _report(self) -> None:
        o, result = self._options, self._result
        result.figure("epochs", o.epochs)
        grown: dict[str, list[str]] = {"counts": [], "memory": []}
        for name in sorted({name for sample in self.samples for name in sample} - {"epoch"}):
            growth = growth_of(self.samples, name)
            result.figure(f"{name}.first", growth.first)
            result.figure(f"{name}.last", growth.last)
            result.figure(f"{name}.slope", growth.slope)
            kind = "memory" if name.endswith("_mb") else "counts"
            if name == MARKS:
                result.at_most("marks", self.samples[-1][MARKS], most_marks(Epoch(o.epochs)))
            elif growth.is_beyond(*(MEMORY_SLACK if kind == "memory" else COUNT_SLACK)):
                grown[kind].append(f"{name} from {growth.first:.4g} to {growth.last:.4g}")
        for kind, names in grown.items():
            self._steps.say(f"{kind} that grew: {'; '.join(names) or 'none'}")
            result.at_most(f"grown.{kind}", len(names), 0)
        if o.timelines is not None:
            o.timelines.parent.mkdir(parents=True, exist_ok=True)
            o.timelines.write_text(json.dumps(self.samples) + "\n")


@dataclass(frozen=True)
class Growth:
    """A series in two parts of a run."""

    first: float
    last: float
    slope: float
    """Per 1,000 epochs."""

    def is_beyond(self, factor: float, more: float) -> bool:
        return self.last > self.first * factor + more


def growth_of(samples: list[Sample], name: str) -> Growth:
    """How a series grew; where a sample lacks it, it is 0."""
    if len(samples) < 4:
        raise BenchmarkError(f"{len(samples)} samples are too few; run more epochs.")
    begin, half, quarter = len(samples) // 10, len(samples) // 2, len(samples) * 3 // 4
    values = [sample.get(name, 0.0) for sample in samples]
    epochs = [sample["epoch"] for sample in samples[begin:]]
    line = statistics.linear_regression(epochs, values[begin:])
    return Growth(
        statistics.median(values[begin:half]),
        statistics.median(values[quarter:]),
        line.slope * 1000,
    )


def _files(folder: Path) -> Counter[str]:
    """How many files each folder right below this one has; its own count as `.`."""
    found: Counter[str] = Counter()
    for path, _, names in os.walk(folder):
        parts = Path(path).relative_to(folder).parts
        found[parts[0] if parts else "."] += len(names)
    return found


def _spark_processes() -> tuple[list[int], list[int]]:
    """Spark's JVM below this process, and the Python processes below that."""
    java, workers = [], []
    for pid in processes.descendants(os.getpid()):
        command = processes.command_line(pid)
        if command.endswith("pyspark.worker"):
            workers.append(pid)
        elif "org.apache.spark" in command:
            java.append(pid)
    return java, workers


def _used(pids: list[int]) -> Sample:
    found: Sample = {"anon_mb": 0.0, "threads": 0.0, "fds": 0.0}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            threads, fds = process.num_threads(), process.num_fds()
        except psutil.NoSuchProcess:
            continue
        found["anon_mb"] += processes.anonymous_bytes(pid) / MB
        found["threads"] += threads
        found["fds"] += fds
    return found


@contextmanager
def _serving(location: str) -> Iterator[tuple[str, int]]:
    """`millrace serve` in a process of its own: its address and its number."""
    command = [sys.executable, "-m", "millrace.cli", "serve", location]
    process = subprocess.Popen(
        [*command, "--port", "0", "--flight-port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        printed = "".join(process.stderr.readline() for _ in range(3))
        address = re.search(r"http://127\.0\.0\.1:\d+", printed)
        if address is None:
            raise BenchmarkError(f"the server did not start: {printed}{process.stderr.read()}")
        yield address[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Copies of segments go to this folder meanwhile, in processes that are started as well."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        shutil.rmtree(folder, ignore_errors=True)


def run(options: Options, workdir: Path, steps: Steps) -> Result:
    """The whole run, with a session of its own."""
    with cache_folder(workdir / "cache"):
        spark = mr.session(
            "millrace-endurance", master="local[2]", config=local_settings("1g", workdir)
        )
        spark.sparkContext.setLogLevel("OFF")
        try:
            return Endurance(spark, options, workdir, steps).run()
        finally:
            spark.stop()
