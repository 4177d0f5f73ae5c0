"""The demonstration as a user runs it: to its end, and until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.conftest import ROOT

import millrace as mr


@contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "millrace.demo", "--rows-per-epoch", "2000", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path},
        # A group of its own, so that an interrupt reaches what a terminal's would, and not pytest.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def of_session(leader: int) -> list[psutil.Process]:
    """Processes that a session's leader has left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_runs_restarts_and_agrees_with_a_batch(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    with demo(tmp_path, "--seconds", "1", "--keep", str(keep)) as process:
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "restarted from the location with parallelism 4" in output
    assert output.count("batch recomputation") == 1
    assert "): equal\n" in output
    assert "WARN" not in output
    # It is equal because there was something to compare.
    state = mr.open(str(keep / "location"))
    assert state.epoch >= 2
    assert sum(state.to_arrow("totals")["n"].to_pylist()) > 0.8 * 2000 * state.epoch


def test_ctrl_c_is_clean(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "600") as process:
        assert process.stdout is not None
        # Two lines are the heading; the third is the first epoch.
        seen = [process.stdout.readline() for _ in range(4)]
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert of_session(process.pid) == []
    output = "".join(seen) + rest
    assert process.returncode == 130, output
    assert "interrupted" in rest
    assert "Traceback" not in output
    assert "Exception" not in output
    assert list(tmp_path.glob("millrace-demo-*")) == []
