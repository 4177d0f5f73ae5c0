"""A short soak: some disturbances, a zombie among them, and everything equal in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace_lab import processes
from millrace_lab.soak import disk, schedule
from millrace_lab.soak.oracle import check

KINDS = (
    schedule.EXECUTOR_KILLED,
    schedule.DRIVER_STOPPED,
    schedule.DISK_FULL,
    schedule.OUTAGE,
    schedule.COLLECTION,
    schedule.SERVE_KILLED,
)


def possible() -> list[str]:
    """Those of the kinds that this machine can have."""
    missing = schedule.MOUNTS if disk.missing() else ()
    return [kind for kind in KINDS if kind not in missing]


def soaked(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    # As from a shell, which does not say which Python the executors are to run.
    shell = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.Popen(
        [sys.executable, "-m", "millrace_lab", "soak", "--executors", "2", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**shell, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )


@pytest.mark.stress
@pytest.mark.cluster
def test_state_and_outputs_are_those_of_a_batch_run(tmp_path: Path) -> None:
    kinds = possible()
    only = [word for kind in kinds for word in ("--only", kind.split(",")[0])]
    # This seed's first driver loses an executor, and its shuffle output, at a named point; its
    # second has a store that fails.
    options = ["--disturbances", str(len(kinds)), "--seed", "26128"]
    result = equal_in_the_end(tmp_path, *options, "--keep", "kept", *only)
    assert result["restarts"] >= 1
    assert [kind for kind in kinds if not result["disturbances"].get(kind)] == []
    _a_wrong_row_is_found(tmp_path / "kept" / "disk")


def equal_in_the_end(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The result of a soak that has compared something, and found it equal."""
    process = soaked(tmp_path, *arguments, "--json", "out.json")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert result["mismatches"] == []
    assert result["problems"] == []
    # In a few batches, some row may be late already, or none.
    empty = {what for what, rows in result["compared"].items() if not rows}
    assert empty <= {"output of late"}
    assert result["beside"]["reader: epochs compared"] > 0
    assert result["beside"]["client: look-ups compared"] > 0
    # Nothing stays behind.
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("millrace")] == []
    return result


def _a_wrong_row_is_found(disk: Path) -> None:
    """The comparison can fail: one row less, in one of the outputs."""
    assert check(disk / "location", disk / "sinks").mismatches == []
    for output in ("visits", "pairs"):
        path = sorted((disk / "sinks" / output).glob("*.parquet"))[-1]
        whole = pq.read_table(path)
        pq.write_table(whole.slice(1), path)
        [mismatch] = check(disk / "location", disk / "sinks").mismatches
        assert mismatch.startswith(f"output of {output}: 1 rows; is missing")
        pq.write_table(whole, path)


@pytest.mark.cluster
@pytest.mark.stress
def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    process = soaked(tmp_path, "--minutes", "10", "--verbose")
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and "starts" not in line:
        line = process.stdout.readline()
    below = processes.descendants(process.pid)
    drivers = [p for p in below if "soak.driver" in processes.command_line(p)]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "nothing is left running" in output
    assert len(drivers) == 1
    assert processes.members(drivers[0]) == []
