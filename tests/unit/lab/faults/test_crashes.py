"""Who dies at a named point, and that it happens once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import hooks
from millrace.errors import UsageError
from millrace_lab.faults import crashes

WORKER = "from millrace import hooks; hooks.reach('before-segment', 3)"
# An executor starts a daemon, which starts the worker.
DAEMON = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"
EXECUTOR = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DAEMON!r}])"


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Whom `os.kill` was called for, and with what; nobody dies."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: calls.append((pid, number)))
    return calls


def set_crash(monkeypatch: pytest.MonkeyPatch, crash: str, marks: Path) -> None:
    for name, value in crashes.environment(crash, marks).items():
        monkeypatch.setenv(name, value)


def test_an_executor_dies_and_nobody_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    set_crash(monkeypatch, "before-segment@3:executor", tmp_path)
    assert subprocess.run([sys.executable, "-c", EXECUTOR]).returncode == -signal.SIGKILL
    hooks.reach(hooks.BEFORE_SEGMENT, 3)
    assert killed == []


def test_a_worker_dies_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    set_crash(monkeypatch, "before-segment@3:worker", tmp_path)
    hooks.reach(hooks.BEFORE_SEGMENT, 3)
    hooks.reach(hooks.BEFORE_SEGMENT, 3)
    assert killed == [(os.getpid(), signal.SIGKILL)]


@pytest.mark.parametrize("crash", ["", "before-segment@2:worker", "after-segment@3:worker"])
def test_elsewhere_nobody_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]], crash: str
) -> None:
    set_crash(monkeypatch, crash, tmp_path)
    hooks.reach(hooks.BEFORE_SEGMENT, 3)
    assert killed == []


@pytest.mark.parametrize("victim", ["", ":driver"])
def test_a_driver_dies_at_its_own_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]], victim: str
) -> None:
    set_crash(monkeypatch, f"after-sink@3{victim}", tmp_path)
    hooks.reach(hooks.AFTER_SINK, 3)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_worker_kills_the_driver_that_was_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    set_crash(monkeypatch, "after-segment@3", tmp_path)
    monkeypatch.delenv(crashes.DRIVER, raising=False)
    with pytest.raises(UsageError, match="MILLRACE_CRASH_DRIVER is not set"):
        hooks.reach(hooks.AFTER_SEGMENT, 3)
    monkeypatch.setenv(crashes.DRIVER, "4711")
    hooks.reach(hooks.AFTER_SEGMENT, 3)
    assert killed == [(4711, signal.SIGKILL)]


def test_registering_names_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(crashes.DRIVER, "")
    crashes.register_driver()
    assert os.environ[crashes.DRIVER] == str(os.getpid())
