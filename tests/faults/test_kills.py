"""The driver is killed at every named point of an epoch; after a restart everything is exact.

The crash points are data: `millrace.crashpoints.POINTS`. The killed driver is a process of its own;
the last life is in the tests' session, which saves a JVM.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.faults import driver
from tests.faults.lives import Case, Truth

from millrace import crashpoints

CRASH_EPOCH = 2

# Point -> the epoch that is committed when the driver dies there in epoch 2.
COMMITTED = {
    crashpoints.BEFORE_SINK: 1,
    crashpoints.AFTER_SEGMENT: 1,
    crashpoints.AFTER_SINK: 1,
    crashpoints.BEFORE_MANIFEST: 1,
    crashpoints.AFTER_MANIFEST: 2,
    crashpoints.BEFORE_COMMIT: 2,
}

# Point -> how often a user's function gets the batch in all. It runs the frame, and so the shards.
CALLS = {
    crashpoints.BEFORE_SINK: 1,
    crashpoints.AFTER_SEGMENT: 2,
    crashpoints.AFTER_SINK: 2,
    crashpoints.BEFORE_MANIFEST: 2,
    crashpoints.AFTER_MANIFEST: 1,
    crashpoints.BEFORE_COMMIT: 1,
}


@pytest.mark.parametrize("sink", driver.SINKS)
@pytest.mark.parametrize("point", crashpoints.POINTS)
def test_killed_once(
    spark: SparkSession, truth: Truth, tmp_path: Path, point: str, sink: str
) -> None:
    case = Case(spark, truth, tmp_path, sink)
    case.die_at(f"{point}@{CRASH_EPOCH}")
    assert case.committed() == COMMITTED[point]
    case.finish_here()
    case.assert_exact()
    if sink == "function":
        assert case.calls().count(CRASH_EPOCH - 1) == CALLS[point]


@pytest.mark.parametrize(
    "crashes",
    [
        (f"{crashpoints.AFTER_SINK}@1", f"{crashpoints.BEFORE_MANIFEST}@1"),
        (f"{crashpoints.AFTER_MANIFEST}@2", f"{crashpoints.AFTER_SEGMENT}@3"),
    ],
    ids=" then ".join,
)
def test_killed_twice(
    spark: SparkSession, truth: Truth, tmp_path: Path, crashes: Sequence[str]
) -> None:
    case = Case(spark, truth, tmp_path, "parquet")
    for crash in crashes:
        case.die_at(crash)
    case.finish_here()
    case.assert_exact()


def test_the_whole_machine_dies(spark: SparkSession, truth: Truth, tmp_path: Path) -> None:
    """Driver, JVM and workers are killed at once, as soon as the first epoch is committed."""
    case = Case(spark, truth, tmp_path, "parquet")
    program = case.start()
    while not case.committed() and program.process.poll() is None:
        time.sleep(0.005)
    program.kill_all()
    program.assert_nobody_survives()
    assert program.process.returncode == -signal.SIGKILL, program.output()
    case.finish_here()
    case.assert_exact()
