"""Who dies at a named point, and that it happens once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import crashpoints

# The module alone: importing the whole package takes seconds.
MODULE = Path(crashpoints.__file__).read_text()
WORKER = f"exec({MODULE!r}); reach('before-segment', 3); print('alive')"
# An executor starts a daemon, which starts the worker.
DAEMON = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"
EXECUTOR = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DAEMON!r}])"


def run(code: str, crash: str, marks: Path) -> subprocess.CompletedProcess[str]:
    environment = {crashpoints.VARIABLE: crash, crashpoints.MARKS: str(marks)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("victim", "code"), [("worker", WORKER), ("executor", EXECUTOR)])
def test_a_victim_dies_once(tmp_path: Path, victim: str, code: str) -> None:
    crash = f"before-segment@3:{victim}"
    assert run(code, crash, tmp_path).returncode == -signal.SIGKILL
    again = run(code, crash, tmp_path)
    assert (again.returncode, again.stdout) == (0, "alive\n")


@pytest.mark.parametrize("crash", ["", "before-segment@2:worker", "after-segment@3:worker"])
def test_elsewhere_nobody_dies(tmp_path: Path, crash: str) -> None:
    assert run(WORKER, crash, tmp_path).stdout == "alive\n"


def test_the_driver_dies_by_default(tmp_path: Path) -> None:
    for crash in ("before-segment@3", "before-segment@3:driver"):
        assert run(WORKER, crash, tmp_path).returncode == -signal.SIGKILL
