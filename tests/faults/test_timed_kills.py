"""A window, a session, a join and a deduplication, killed at every named point and rescaled live.

Every emitted row, the batch it came out in, and what is left in state are those of one batch.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests import processes
from tests.faults import timed
from tests.faults.test_moving import ended

from millrace_lab.faults import crashes
from millrace_lab.soak.oracle import check_timed

CRASH_EPOCH = 7
"""Windows and sessions are over in it, rows without partner come out, and ids are forgotten."""
EPOCHS = 9


@pytest.mark.stress
@pytest.mark.parametrize("point", crashes.DRIVER_POINTS)
def test_killed_once(spark: SparkSession, tmp_path: Path, point: str) -> None:
    location, sinks = tmp_path / "location", tmp_path / "sinks"
    program = processes.start(
        "tests.faults.timed",
        location,
        sinks,
        EPOCHS,
        log=tmp_path / "log",
        **crashes.environment(f"{point}@{CRASH_EPOCH}"),
    )
    code = program.wait()
    assert code == -signal.SIGKILL, f"ended with {code} instead of dying:\n{program.output()}"
    program.assert_nobody_survives()
    query = timed.start(spark, location, sinks, parallelism=3)
    try:
        timed.run_until(query, EPOCHS)
    finally:
        query.stop()
    verdict = check_timed(location, sinks)
    assert verdict.mismatches == []
    empty = [what for what, rows in verdict.compared.items() if not rows]
    # Rows that are late by far come later than this.
    assert empty == ["output of late"]


@pytest.mark.stress
@pytest.mark.cluster
def test_rescaled_while_an_executor_dies(tmp_path: Path) -> None:
    result = ended(tmp_path, "tests.faults.timed_moving", "live")
    assert result["mismatches"] == []
    assert [what for what, rows in result["compared"].items() if not rows] == []
    assert result["shards"] == [2], result
