"""A location that lives through several drivers, and what must be in it in the end."""

from __future__ import annotations

import random
import signal
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests import processes
from tests.faults import driver
from tests.spark import support

import millrace as mr
from millrace_lab.faults import crashes

EPOCHS = 3


class Truth:
    """The input of all these tests, and what Spark's batch API makes of it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        rng = random.Random(11)
        self.folder = support.Folder(path, "k string, g int, v long, d decimal(9,2), s string")
        for size in (70, 40, 55):
            self.folder.drop([_row(rng) for _ in range(size)])
        assert self.folder.drops == EPOCHS
        rows = self.folder.batch(spark)
        keys = list(driver.KEYS)
        self.state = support.batch_state(rows, keys, driver.AGGREGATES)
        self.outputs = support.batch_outputs(rows, keys, driver.AGGREGATES, EPOCHS)


def _row(rng: random.Random) -> tuple[object, ...]:
    key = rng.choice([None, "", "hot", "hot", "hot", f"k{rng.randint(0, 20)}"])
    value = rng.choice([None, rng.randint(-100, 100)])
    amount = Decimal(rng.randint(-999, 999)) / 100
    return key, rng.choice([None, 1, 2]), value, amount, str(value)


class Case:
    """One location and one sink, through any number of lives."""

    def __init__(
        self, spark: SparkSession, truth: Truth, tmp_path: Path, sink: str, path: str = "sink"
    ) -> None:
        self._spark, self.truth, self._sink = spark, truth, sink
        self.location, self.path = tmp_path / "location", tmp_path / path
        self._log = tmp_path / "log"

    def start(self, crash: str = "", *hang: Path) -> processes.Program:
        """A driver in a process of its own."""
        return processes.start(
            "tests.faults.driver",
            self.truth.folder.path,
            self.location,
            self._sink,
            self.path,
            *hang,
            log=self._log,
            **(crashes.environment(crash) if crash else {}),
        )

    def die_at(self, crash: str) -> None:
        program = self.start(crash)
        code = program.wait()
        assert code == -signal.SIGKILL, f"ended with {code} instead of dying:\n{program.output()}"
        program.assert_nobody_survives()

    def committed(self) -> int:
        manifests = self.location / "manifests"
        return len(list(manifests.glob("*.json"))) if manifests.exists() else 0

    def finish_here(self) -> None:
        """The last life, in this process."""
        sinked = driver.build(self._spark, self.truth.folder.path, self._sink, self.path)
        query = driver.finish(sinked, self.location)
        assert query.exception() is None
        assert query.epoch == EPOCHS

    def written(self) -> dict[int, pa.Table]:
        """What the sink holds, by batch id."""
        if self._sink == "function":
            return {int(p.stem): pq.read_table(p) for p in self.path.glob("*.parquet")}
        found = {}
        for folder in self.path.glob("batch_id=*"):
            found[int(folder.name.partition("=")[2])] = pq.read_table(folder, partitioning=None)
        return found

    def calls(self) -> list[int]:
        """The batch ids that the function was called with, in order."""
        return [int(line) for line in (self.path / "calls").read_text().split()]

    def assert_state_exact(self) -> pa.Table:
        reader = mr.open(str(self.location))
        assert reader.epoch == EPOCHS
        state = reader.to_arrow("totals")
        support.assert_same(state, self.truth.state, list(driver.KEYS), "state")
        return state

    def assert_exact(self) -> None:
        """The state, each batch's rows in the sink, and what the sink adds up to."""
        written = self.assert_adds_up()
        assert sorted(written) == list(range(EPOCHS))
        for batch_id, table in written.items():
            expected = self.truth.outputs[batch_id + 1]
            support.assert_same(table, expected, list(driver.KEYS), f"batch {batch_id}")

    def assert_adds_up(self) -> dict[int, pa.Table]:
        """The state, and what the sink adds up to; returns what is in the sink."""
        keys = list(driver.KEYS)
        state = self.assert_state_exact()
        written = self.written()
        in_order = [written[batch_id] for batch_id in sorted(written)]
        support.assert_same(support.last_per_key(in_order, keys), state, keys, "last outputs")
        return written
