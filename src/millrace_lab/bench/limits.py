"""How far it goes: state beyond its memory, huge collections, many timers, one hot key, big values.

Each is a query on real Spark in this process, parallelism 1, and its result is checked. Memory is
that of the Python workers as the kernel counts it, without mapped files (`RssAnon`), sampled while
the epochs run.

- `budget.*`: a count per key whose state is more than ten times the byte budget `memory=`, beside
  the same with a budget it never reaches, and beside few keys with epochs of the same size.
- `map.*`: one key's map grows to very many entries; then epochs that change one.
- `timers.*`: very many timers are due in one epoch.
- `hot.*`: epochs in which one key has 90 % of the rows, beside epochs of even keys.
- `groups.*`: epochs with 256 and with 4,096 key groups.
- `value.*`: one value of 100 MB is set, read again in the next epoch, and read from outside.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace_lab import processes
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._sizes import size_name
from millrace_lab.local_session import local_settings

NAME = "limits"
MB = 1e6
SETTLED = 3
"""The first epochs start workers and load kernels; they are not counted."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = 4_000_000
    budget: int = 32 * 2**20
    rows: int = 200_000
    """Rows of an epoch."""
    entries: int = 1_000_000
    timers: int = 1_000_000
    hot_rows: int = 1_000_000
    value: int = 100_000_000
    epochs: int = 8

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 400_000),
            budget=min(self.budget, 4 * 2**20),
            rows=min(self.rows, 50_000),
            entries=min(self.entries, 50_000),
            timers=min(self.timers, 50_000),
            hot_rows=min(self.hot_rows, 100_000),
            value=min(self.value, 10_000_000),
            epochs=min(self.epochs, 3),
        )


class Entries(mr.Processor):
    """One map; every row sets an entry."""

    entries = mr.Map("long", "long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        for row in rows:
            self.entries[row.entry] = row.value


class Alarms(mr.Processor):
    """Every row sets a timer of its own, all for the same time."""

    due = mr.EventTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        for row in rows:
            if row.alarm is not None:
                self.due.set(row.alarm, label=str(row.value))

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[Any]:
        yield (key.k, timer.label)


class Sums(mr.Processor):
    """A count and a sum, row by row in Python."""

    n = mr.Value("long", default=0)
    total = mr.Value("long", default=0)

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        self.n.set(self.n.get() + len(rows))
        self.total.set(self.total.get() + sum(row.value for row in rows))


class Blob(mr.Processor):
    """A value of many bytes, set once; later epochs read it."""

    blob = mr.Value("binary")

    def __init__(self, size: int) -> None:
        self.size = size

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        if not self.blob.exists():
            self.blob.set(b"\x5a" * self.size)
        yield (len(self.blob.get()),)


class Limits:
    """One run of the benchmark."""

    def __init__(
        self,
        fresh: Callable[[], SparkSession],
        options: Options,
        workdir: Path,
        steps: Steps,
    ) -> None:
        self._fresh = fresh
        """A session whose Python workers have held nothing yet, if memory is to mean something."""
        self._spark = fresh()
        self._options = options
        self._workdir = workdir
        self._steps = steps
        self._result = Result(NAME)

    def run(self) -> Result:
        self._budget()
        self._map()
        self._timers()
        self._hot()
        self._groups()
        self._value()
        return self._result

    # Scenarios.

    def _budget(self) -> None:
        o, result = self._options, self._result
        fill = -(-o.keys // o.rows)
        keys = {
            "few": f"value % {o.rows}",
            "many": f"if(batch < {fill}, value % {o.keys}, pmod(xxhash64(value), {o.keys}))",
        }
        peaks, times, written = {}, {}, {}
        for name, key, memory in (
            ("few_keys", keys["few"], o.budget),
            ("small_budget", keys["many"], o.budget),
            ("large_budget", keys["many"], 2 * 2**30),
        ):
            self._steps.step(f"{size_name(o.keys)} keys: {name.replace('_', ' ')}")
            self._spark = self._fresh()
            source = self._numbers(o.rows).selectExpr(f"{key} as k", "value")
            counted = (
                mr.stream(source)
                .key_by("k")
                .aggregate(name="t", n=mr.count(), total=mr.sum("value"), top=mr.max("value"))
            )
            with self._memory() as memory_used:
                reports = self._epochs(counted.to("noop"), name, fill + o.epochs, memory=memory)
            timed = reports[fill:]
            peaks[name] = memory_used()
            times[name] = statistics.median(r["seconds"] for r in timed)
            written[name] = statistics.mean(r["operators"]["t"]["bytes_written"] for r in timed)
            result.figure(f"budget.epoch_ms.{name}", times[name] * 1e3)
            result.figure(f"budget.written_mb_per_epoch.{name}", written[name] / MB)
            result.figure(f"budget.worker_anon_mb.{name}", peaks[name] / MB)
            heap = max(r["operators"]["t"]["heap_bytes"] for r in reports[SETTLED:])
            result.figure(f"budget.reported_heap_mb.{name}", heap / MB)
            state = self._bytes(name)
            result.figure(f"budget.state_mb.{name}", state / MB)
            if name != "few_keys":
                table = mr.open(self._location(name)).to_arrow("t")
                rows = sum(table["n"].to_pylist())
                result.compare(f"{name}: keys", table.num_rows == o.keys)
                result.compare(f"{name}: rows", rows == len(reports) * o.rows)
            if name == "small_budget":
                ratio = state / o.budget
                result.figure("budget.mb", o.budget / MB)
                result.at_least("state over budget", ratio, 10)
        # What the state adds to a worker, beside an epoch of the same size on little state.
        added = peaks["small_budget"] - peaks["few_keys"]
        result.figure("budget.added_anon_mb", added / MB)
        result.at_most("memory added by the state, in budgets", added / o.budget, 1)
        result.ratio("budget.epoch.large_budget", times["large_budget"] / times["small_budget"])

    def _map(self) -> None:
        o, result = self._options, self._result
        fill = -(-o.entries // o.rows)
        self._steps.step(f"a map of {size_name(o.entries)} entries")
        source = (
            self._numbers(o.rows)
            .where(f"batch < {fill} or value % {o.rows} = 0")
            .selectExpr("1L as k", f"value % {o.entries} as entry", "value")
        )
        stream = mr.stream(source).key_by("k").process(Entries(), "x long", name="t")
        reports = self._epochs(stream.to("noop"), "map", fill + o.epochs)
        result.figure(
            "map.fill_entries_per_s",
            (fill - 1) * o.rows / sum(r["seconds"] for r in reports[1:fill])
            if fill > 1
            else o.rows / reports[0]["seconds"],
        )
        result.figure(
            f"map.change_one_of_{size_name(o.entries)}.epoch_ms",
            statistics.median(r["seconds"] for r in reports[fill:]) * 1e3,
        )
        found = mr.open(self._location("map")).to_arrow("t", state="entries")
        result.compare("map: entries", found.num_rows == o.entries)

    def _timers(self) -> None:
        o, result = self._options, self._result
        fill = -(-o.timers // o.rows)
        self._steps.step(f"{size_name(o.timers)} timers due in one epoch")
        self._spark = self._fresh()
        base = 1_700_000_000
        source = (
            self._numbers(o.rows)
            .where(f"(batch < {fill} and value < {o.timers}) or value % {o.rows} = 0")
            .selectExpr(
                "value % 10000 as k",
                "value",
                f"if(batch < {fill} and value < {o.timers}, "
                f"timestamp_seconds({base} + 600), null) as alarm",
                f"timestamp_seconds({base} + if(batch < {fill}, 0, 3600) + batch) as at",
            )
        )
        fired: dict[int, int] = {}

        def count(df: DataFrame, batch_id: int) -> None:
            fired[batch_id] = df.count()

        stream = (
            mr.stream(source, event_time="at", watermark="0 seconds")
            .key_by("k")
            .process(Alarms(), "k long, label string", name="t")
        )
        with self._memory() as memory_used:
            reports = self._epochs(stream.for_each_batch(count), "timers", fill + 3)
        most = max(fired, key=lambda batch: fired[batch])
        seconds = next(r["seconds"] for r in reports if r["batch_id"] == most)
        result.figure("timers.fired_in_one_epoch", fired[most])
        result.figure("timers.epoch_s", seconds)
        result.figure("timers.worker_anon_mb", memory_used() / MB)
        result.compare("timers: all in one epoch, once", sum(fired.values()) == o.timers)
        result.compare("timers: in one epoch", fired[most] == o.timers)

    def _hot(self) -> None:
        o, result = self._options, self._result
        times = {}
        for kind in ("even", "hot"):
            key = f"pmod(xxhash64(value), {o.hot_rows // 10})"
            if kind == "hot":
                key = f"if(value % 10 < 9, -1L, {key})"
            source = self._numbers(o.hot_rows).selectExpr(f"{key} as k", "value")
            keyed = mr.stream(source).key_by("k")
            for how, stream in (
                ("aggregate", keyed.aggregate(name="t", n=mr.count(), total=mr.sum("value"))),
                ("processor", keyed.process(Sums(), "x long", name="t")),
            ):
                self._steps.step(f"{kind} keys, {how}")
                name = f"{kind}_{how}"
                reports = self._epochs(stream.to("noop"), name, SETTLED + 3)
                times[name] = statistics.median(r["seconds"] for r in reports[SETTLED:])
                result.figure(f"hot.epoch_ms.{name}", times[name] * 1e3)
                table = mr.open(self._location(name)).to_arrow("t").to_pydict()
                rows = len(reports) * o.hot_rows
                result.compare(f"{name}: count", sum(table["n"]) == rows)
                result.compare(f"{name}: sum", sum(table["total"]) == rows * (rows - 1) // 2)
        for how in ("aggregate", "processor"):
            result.ratio(f"hot.epoch.even_{how}", times[f"even_{how}"] / times[f"hot_{how}"])

    def _groups(self) -> None:
        o, result = self._options, self._result
        for groups in (256, 4096):
            self._steps.step(f"{groups} key groups")
            source = self._numbers(o.rows).selectExpr(f"value % {o.rows} as k", "value")
            counted = mr.stream(source).key_by("k").aggregate(name="t", n=mr.count())
            name = f"groups_{groups}"
            reports = self._epochs(
                counted.to("noop"), name, SETTLED + o.epochs, key_groups=groups, parallelism=2
            )
            seconds = statistics.median(r["seconds"] for r in reports[SETTLED:])
            result.figure(f"groups.epoch_ms.{groups}", seconds * 1e3)
            table = mr.open(self._location(name)).to_arrow("t")
            result.compare(f"{name}: keys", table.num_rows == o.rows)
            counts = set(table["n"].to_pylist())
            result.compare(f"{name}: counts", counts == {len(reports)})

    def _value(self) -> None:
        o, result = self._options, self._result
        self._steps.step(f"a value of {o.value / MB:.0f} MB")
        self._spark = self._fresh()
        source = self._numbers(2).selectExpr("1L as k", "value")
        stream = mr.stream(source).key_by("k").process(Blob(o.value), "size long", name="t")
        sizes: list[int] = []

        def note(df: DataFrame, batch_id: int) -> None:
            sizes.extend(row["size"] for row in df.collect())

        with self._memory() as memory_used:
            reports = self._epochs(stream.for_each_batch(note), "value", 3)
        found = mr.open(self._location("value")).to_arrow("t")["blob"][0].as_py()
        result.compare("value: read again", set(sizes) == {o.value})
        result.compare("value: read from outside", found == b"\x5a" * o.value)
        result.figure("value.mb", o.value / MB)
        result.figure("value.set_epoch_s", reports[0]["seconds"])
        result.figure("value.read_epoch_s", reports[-1]["seconds"])
        result.figure("value.worker_anon_mb", memory_used() / MB)

    # What they share.

    def _numbers(self, rows: int) -> DataFrame:
        """Numbers from 0, a number of them in each batch, with their batch."""
        source = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", 2)
            .load()
        )
        return source.selectExpr("value", f"value div {rows} as batch")

    def _location(self, name: str) -> str:
        return str(self._workdir / name)

    def _bytes(self, name: str) -> int:
        """The live state on disk."""
        from millrace.log import Journal, open_store

        journal = Journal.open(open_store(self._location(name)))
        return sum(entry.bytes for entry in journal.trail(journal.head()).segments())

    def _epochs(
        self,
        sinked: mr.StreamWriter,
        name: str,
        epochs: int,
        *,
        memory: int = 2 * 2**30,
        key_groups: int = 256,
        parallelism: int = 1,
    ) -> list[dict[str, Any]]:
        """Run at least some epochs; what each of them reports."""
        query = sinked.start(
            self._location(name),
            parallelism=parallelism,
            memory=memory,
            key_groups=key_groups,
            retain_epochs=1,
        )
        try:
            while query.epoch < epochs:
                if not query.is_active:
                    raise BenchmarkError(f"{name}: {query.exception()}")
                time.sleep(0.02)
        finally:
            query.stop()
        return query.recent_progress()

    @contextmanager
    def _memory(self) -> Iterator[Callable[[], int]]:
        """Samples the largest of the Python workers, which are new, while the block runs."""
        peak = [0]
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(0.05):
                for pid in processes.descendants(os.getpid()):
                    # Not the JVM, whose command names the daemon among its settings.
                    if processes.command_line(pid).endswith("pyspark.worker"):
                        peak[0] = max(peak[0], processes.anonymous_bytes(pid))

        thread = threading.Thread(target=sample, name="millrace-limits", daemon=True)
        thread.start()
        try:
            yield lambda: peak[0]
        finally:
            stop.set()
            thread.join()


class _Sessions:
    """One session after the other: a new one has new Python workers."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._current: SparkSession | None = None

    def __call__(self) -> SparkSession:
        self.close()
        self._current = spark = mr.session(
            "millrace-limits",
            master="local[2]",
            config=local_settings("2g", self._workdir),
        )
        # Stopping between two epochs shows up as an error in Spark's log.
        spark.sparkContext.setLogLevel("OFF")
        return spark

    def close(self) -> None:
        if self._current is not None:
            self._current.stop()
            self._current = None


def run(options: Options, workdir: Path, steps: Steps) -> Result:
    """All limits."""
    sessions = _Sessions(workdir)
    try:
        return Limits(sessions, options, workdir, steps).run()
    finally:
        sessions.close()
