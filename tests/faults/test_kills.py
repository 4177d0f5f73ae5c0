"""The driver is killed at every named point of an epoch; after a restart everything is exact.

The crash points are data: `crashes.DRIVER_POINTS`. The killed driver is a process of its own;
the last life is in the tests' session, which saves a JVM.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.faults import driver
from tests.faults.lives import Case, Truth
from tests.stress import few
from tests.waiting import until

from millrace import hooks
from millrace_lab.faults import crashes

CRASH_EPOCH = 2

# Point -> the epoch that is committed when the driver dies there in epoch 2.
COMMITTED = {
    hooks.BEFORE_SINK: 1,
    hooks.AFTER_SEGMENT: 1,
    hooks.AFTER_SINK: 1,
    hooks.BEFORE_MANIFEST: 1,
    hooks.AFTER_MANIFEST: 2,
    hooks.BEFORE_COMMIT: 2,
}

# Point -> how often a user's function gets the batch in all. It runs the frame, and so the shards.
CALLS = {
    hooks.BEFORE_SINK: 1,
    hooks.AFTER_SEGMENT: 2,
    hooks.AFTER_SINK: 2,
    hooks.BEFORE_MANIFEST: 2,
    hooks.AFTER_MANIFEST: 1,
    hooks.BEFORE_COMMIT: 1,
}


@pytest.mark.parametrize(
    ("point", "sink"),
    few(
        itertools.product(crashes.DRIVER_POINTS, driver.SINKS),
        (hooks.AFTER_MANIFEST, "parquet"),
    ),
)
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
        (f"{hooks.AFTER_SINK}@1", f"{hooks.BEFORE_MANIFEST}@1"),
        (f"{hooks.AFTER_MANIFEST}@2", f"{hooks.AFTER_SEGMENT}@3"),
    ],
    ids=" then ".join,
)
@pytest.mark.stress
def test_killed_twice(
    spark: SparkSession, truth: Truth, tmp_path: Path, crashes: Sequence[str]
) -> None:
    case = Case(spark, truth, tmp_path, "parquet")
    for crash in crashes:
        case.die_at(crash)
    case.finish_here()
    case.assert_exact()


@pytest.mark.stress
def test_the_whole_machine_dies(spark: SparkSession, truth: Truth, tmp_path: Path) -> None:
    """Driver, JVM and workers are killed at once, while the second epoch is being written."""
    case = Case(spark, truth, tmp_path, "parquet")
    hang = driver.HangInSecond(tmp_path)
    program = case.start("", tmp_path)
    until(
        lambda: hang.writing.exists() or program.process.poll() is not None,
        "writing the second epoch",
    )
    program.kill_all()
    program.assert_nobody_survives()
    assert program.process.returncode == -signal.SIGKILL, program.output()
    assert case.committed() == 1
    case.finish_here()
    case.assert_exact()
