"""The driver of a query with side outputs and initial, broadcast and task state is killed in its
first epoch and after it, and goes on with another parallelism; every output has each batch once,
and so has every kind of state."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests import processes
from tests.faults import branches, driver
from tests.spark import support

import millrace as mr
from millrace import hooks
from millrace_lab.faults import crashes

CRASHES = [
    f"{hooks.AFTER_SEGMENT}@1",
    f"{hooks.AFTER_SINK}@1",
    f"{hooks.AFTER_MANIFEST}@1",
    f"{hooks.BEFORE_MANIFEST}@2",
]


@pytest.mark.stress
@pytest.mark.parametrize("crash", CRASHES)
def test_killed_once(spark: SparkSession, tmp_path: Path, crash: str) -> None:
    rng = random.Random(13)
    folder = support.Folder(tmp_path / "in", "user string, seconds long")
    batches = [
        [(rng.choice([None, "ann", "bob", "cyd"]), rng.randint(1, 60)) for _ in range(size)]
        for size in (40, 25, 30)
    ]
    rates = support.Folder(tmp_path / "rates", "name string, rate long")
    for number, rows in enumerate(batches, start=1):
        folder.drop(rows)
        rates.drop([("hour", number)])
    location, sinks = tmp_path / "location", tmp_path / "sinks"
    program = processes.start(
        "tests.faults.branches",
        folder.path,
        rates.path,
        location,
        sinks,
        log=tmp_path / "log",
        **crashes.environment(crash),
    )
    code = program.wait()
    assert code == -signal.SIGKILL, f"ended with {code} instead of dying:\n{program.output()}"
    program.assert_nobody_survives()
    driver.finish(branches.build(spark, folder.path, rates.path, sinks), location, 3)

    totals: Counter[str | None] = Counter(dict(branches.BEGINNING))
    crossed: Counter[str | None] = Counter()
    for batch_id, rows in enumerate(batches):
        hundreds: Counter[tuple[str | None, int]] = Counter()
        for user, seconds in rows:
            before = totals[user]
            totals[user] += seconds * (batch_id + 1)
            if before // 100 < totals[user] // 100:
                hundreds[user, totals[user]] += 1
                crossed[user] += 1
        assert written(sinks / "spent", batch_id) == {(u, totals[u]): 1 for u, _ in rows}
        assert written(sinks / "hundreds", batch_id) == hundreds
    reader = mr.open(str(location))
    assert reader.epoch == len(batches)
    assert {r["user"]: r["total"] for r in reader.to_arrow("spent").to_pylist()} == totals
    assert reader.to_arrow("spent", state="rates").to_pylist() == [{"key": "hour", "value": 3}]
    seen = reader.to_arrow("spent", state="seen").column("value")
    assert pc.sum(seen).as_py() == sum(map(len, batches))
    assert {r["user"]: r["n"] for r in reader.to_arrow("crossed").to_pylist()} == crossed


def written(sink: Path, batch_id: int) -> Counter[tuple[str | None, int]]:
    table = pq.read_table(sink / f"batch_id={batch_id}", partitioning=None)
    return Counter((row["user"], row["total"]) for row in table.to_pylist())
